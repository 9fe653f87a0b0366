#!/bin/bash
# Stores of libcollective in whole programs, under crun and without it.
. "${BASH_SOURCE%/*}/tap.sh"
plan 35

cd "$TMP" || exit 255
export COLL_TIMEOUT=30 OMP_NUM_THREADS=1

# free_port: a number below those of outgoing connections, where nobody
# listens.
free_port()
{
    local port
    while :; do
        port=$((20000 + RANDOM % 12000))
        (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

# ranks N ARGS...: runs the helper as N processes without a launcher; sets
# $status (0 if all ended with 0), $out and $err.
ranks()
{
    local n=$1 rank pids=() port
    shift
    port=$(free_port)
    for ((rank = 0; rank < n; rank++)); do
        env RANK=$rank WORLD_SIZE="$n" MASTER_ADDR=127.0.0.1 \
            MASTER_PORT="$port" "$HELPERS/stores" "$@" >out.$rank 2>err.$rank &
        pids+=($!)
    done
    status=0
    for rank in "${pids[@]}"; do
        wait "$rank" || status=$?
    done
    out=$(cat out.*)
    err=$(cat err.*)
    rm -f out.* err.*
}

run "$CRUN" --nproc_per_node=4 "$HELPERS/stores" second "$(free_port)"
is "$status" 0 "STO-11 under crun a worker hosts a second store"
is "$(grep -c 'of 4 ok' <<<"$out")" 4 "STO-11 and all use it"
run "$CRUN" --nproc_per_node=3 "$HELPERS/stores" \
    "tcp://127.0.0.1:$(free_port)"
is "$status" 0 "STO-11 under crun, init_method=tcp:// at another port"
is "$(grep -c 'of 3 ok' <<<"$out")" 3 "STO-11 and all meet there"
run "$CRUN" --nproc_per_node=3 sh -c \
    "exec '$HELPERS/stores' tcp://\$MASTER_ADDR:\$MASTER_PORT"
is "$status" 0 "under crun, init_method=tcp:// at crun's own store"
run "$CRUN" --nproc_per_node=3 "$HELPERS/stores" "file://$TMP/store"
is "$status" 0 "under crun, init_method=file://"
[[ ! -e store ]]
ok $? "and the file is gone afterwards"

run "$CRUN" --nproc_per_node=4 "$HELPERS/stores" env
is "$status" 0 "STO-09 under crun rank 0 may leave first"
is "$err" "" "STO-09 and nobody says anything"

ranks 4 env
is "$status" 0 "STO-09 without a launcher rank 0 may leave first"
is "$(grep -c 'of 4 ok' <<<"$out")" 4 "STO-09 and all end well"
is "$err" "" "STO-09 and nobody says anything"
ranks 4 "file://$TMP/store"
is "$status" 0 "without a launcher, init_method=file://"

# A file that an earlier run has left there, of as many ranks or of others, is
# as good as none: nothing that it holds is taken for this run's.
for backend in shm tcp nodes; do
    export COLL_BACKEND=$backend
    rm -f store
    ranks 3 crash "file://$TMP/store"
    [[ $status -eq 9 && -s store ]]
    ok $? "NCL-07 $backend: ranks that crash leave a file"
    cp store left
    for n in 3 2 5; do
        cp left store
        ranks $n "file://$TMP/store"
        is "$status $(grep -c "of $n ok" <<<"$out")" "0 $n" \
            "NCL-07 $backend: $n ranks take nothing from it" || diag "$err"
    done
    # And where a single rank has begun to wait for the others.
    rm -f store
    env RANK=1 WORLD_SIZE=3 "$HELPERS/stores" "file://$TMP/store" 2>err &
    wait_for 10 test -s store
    { kill -KILL $! && wait $!; } 2>/dev/null
    ranks 2 "file://$TMP/store"
    is "$status $(grep -c 'of 2 ok' <<<"$out")" "0 2" \
        "NCL-07 $backend: nor from one that was alone" || diag "$err"
done
unset -v COLL_BACKEND
rm -f store
ranks 2 "tcp://localhost:$(free_port)"
is "$status" 0 "without a launcher, init_method=tcp://"

# Programs one after the other at one address, without a launcher.
port=$(free_port)
pids=()
for rank in 0 1 2; do
    env RANK=$rank WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" \
        sh -c "'$EXAMPLES/hello' && '$EXAMPLES/hello' && '$EXAMPLES/hello'" \
        >out.$rank 2>&1 &
    pids+=($!)
done
bad=0
for pid in "${pids[@]}"; do
    wait "$pid" || ((++bad))
done
is "$bad" 0 "several programs after each other without a launcher"
is "$(cat out.*)" "$(printf 'sum of 3 ranks: 3\n%.0s' 1 2 3)" "with results"

# A port that somebody else has: said at once, and nobody joins him.
"$CRUN" sh -c 'echo $MASTER_PORT >port.new; mv port.new port; sleep 1000' \
    2>/dev/null &
keeper=$!
wait_for 10 test -s port
RUN_TIMEOUT=10 run env RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
    MASTER_PORT="$(cat port)" "$HELPERS/stores" env
is "$status" 1 "PORT-01 rank 0 joins nobody else's store"
like "$err" "$(cat port).*in use" "PORT-01 but says that the port is in use"
{ kill -TERM $keeper; wait $keeper; } 2>/dev/null

port=$(free_port)
"$EXAMPLES/store" host "$port" >host.out &
host=$!
"$EXAMPLES/store" work "$port" &
first=$!
"$EXAMPLES/store" work "$port" &
wait "$host" && wait "$first" && wait $!
ok $? "the example with a store ends well"
is "$(awk '{ sum += $3 } END { print NR, sum }' host.out)" "2 20" \
    "and every piece of work is done once"
