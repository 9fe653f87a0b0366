#!/bin/bash
# Programs that link libcollective, under crun and alone.
. "${BASH_SOURCE%/*}/tap.sh"
plan 38

cd "$TMP" || exit 255
export OMP_NUM_THREADS=1

run "$CRUN" --nproc_per_node=4 "$EXAMPLES/hello"
is "$status" 0 "hello under crun"
is "$out" "sum of 4 ranks: 6" "hello adds the ranks"
run env WORLD_SIZE=1 "$EXAMPLES/hello"
is "$status $out" "0 sum of 1 ranks: 0" "WORLD_SIZE=1 works without a launcher"
run "$EXAMPLES/hello"
[[ $status -ne 0 ]]
ok $? "NCL-06 nothing set: no silent world of one"
like "$err" 'RANK and WORLD_SIZE are not set' "NCL-06 and says so"
run env WORLD_SIZE=4 "$EXAMPLES/hello"
like "$err" 'RANK is not set' "NCL-06 WORLD_SIZE without RANK"
run env OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 PMI_RANK=1 PMI_SIZE=4 \
    SLURM_PROCID=1 SLURM_NTASKS=4 "$EXAMPLES/hello"
like "$status $err" '^[1-9].*RANK and WORLD_SIZE are not set' \
    "NCL-06 what other starters set is no reason to be alone"

for n in 1 2 3 4 8; do
    run "$CRUN" --nproc_per_node=$n "$HELPERS/coll_check"
    is "$status" 0 "mixed operations, $n ranks"
    is "$(grep -c "of $n ok" <<<"$out")" $n "every rank checked its results"
done

# bits DETERMINISTIC: those of a sum through every back end, each once.
bits()
{
    local backend
    for backend in shm tcp nodes; do
        COLL_DETERMINISTIC=$1 COLL_BACKEND=$backend timeout 60 "$CRUN" \
            --nproc_per_node=5 "$HELPERS/coll_bits" 2>/dev/null
    done | sort -u
}
same=$(bits 1)
is "$(grep -cE '^bits [0-9a-f]{16}$' <<<"$same") of $(wc -l <<<"$same")" \
    "1 of 1" "deterministic: the same bits everywhere"
is "$(bits 0 | wc -l)" 2 "which the order of a ring does not give"
run env WORLD_SIZE=1 RANK=0 COLL_DETERMINISTIC=yes "$HELPERS/coll_bits"
like "$status$err" '^1.*COLL_DETERMINISTIC="yes" is neither 0 nor 1' \
    "COLL_DETERMINISTIC is 0 or 1"

for other in tcp shm; do
    run env COLL_TIMEOUT=60 "$CRUN" "$GRACE" --nproc_per_node=3 sh -c \
        "[ \$RANK = 1 ] && b=$other || b=nodes
         COLL_BACKEND=\$b exec '$HELPERS/coll_bits'"
    like "$err" "rank 1 has the back end \"$other\", rank 0 \"nodes\"" \
        "ranks with different back ends are told so: $other"
done

bad=0
for _ in 1 2 3 4 5; do
    run env COLL_TIMEOUT=20 "$CRUN" --nproc_per_node=4 sh -c \
        "'$EXAMPLES/hello' && '$EXAMPLES/hello' && '$EXAMPLES/hello'"
    [[ $status -eq 0 && $(grep -c 'sum of 4 ranks: 6' <<<"$out") -eq 3 ]] ||
        ((++bad))
done
is "$bad" 0 "PG-08 several programs after each other in one worker"

if command -v g++ >/dev/null; then
    g++ -std=c++98 -pedantic -Wall -Werror -fsyntax-only -x c++ \
        "$ROOT/worker/include/collective.h" 2>err
    ok $? "the header is C++98" || diag "$(cat err)"
else
    skip 1 "no g++ here"
fi

# Nothing is kept in /dev/shm, so neither its size nor its absence matters.
if unshare -Urm true 2>/dev/null; then
    run unshare -Urm sh -c "mount -t tmpfs -o size=64k,ro tmpfs /dev/shm &&
        '$CRUN' --nproc_per_node=4 '$HELPERS/coll_check'"
    is "$status" 0 "CON-01 /dev/shm that is tiny and read-only"
else
    skip 1 "no mount namespaces here"
fi

# A rank dies inside all_reduce: the others learn it and name it. The ranks
# are not started by crun, which would stop the others; a job of its own
# keeps a store open for them.
# survivors HOW TIMEOUT: sets $lines to what the three survivors print.
survivors()
{
    local rank pids=() store_port
    rm -f port out.*
    "$CRUN" sh -c 'echo $MASTER_PORT >port.new; mv port.new port; sleep 1000' 2>/dev/null &
    local keeper=$!
    wait_for 10 test -s port
    store_port=$(cat port)
    for rank in 0 1 2 3; do
        env RANK=$rank WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 COLL_TIMEOUT=$2 \
            TORCHELASTIC_USE_AGENT_STORE=True \
            MASTER_PORT="$store_port" "$HELPERS/coll_die" 2 7 "$1" >out.$rank 2>&1 &
        pids+=($!)
    done
    { wait "${pids[0]}" "${pids[1]}" "${pids[3]}"; } 2>/dev/null
    { kill -9 "${pids[2]}" $keeper; wait "${pids[2]}" $keeper; } 2>/dev/null
    lines=$(cat out.0 out.1 out.3)
}
for how in kill abort exit; do
    survivors $how 60
    is "$(grep -c 'rank 2 .*died during all_reduce #8' <<<"$lines")" 3 \
        "PG-05 $how: each survivor names the dead rank"
    slow=$(grep -Eo 'after [0-9]+ ms' <<<"$lines" |
        awk '$2 > 2000 * '"${CK_TIMEOUT_MULTIPLIER:-1}" | wc -l)
    is "$slow" 0 "PG-05 $how: within two seconds"
done
for limit in $LIMITS; do
    survivors freeze "$limit"
    [[ $(grep -c 'all_reduce #8' <<<"$lines") -lt 3 ]] || break
done
is "$(grep -c "timed out after $limit.0 s in all_reduce #8 waiting for rank 2" \
    <<<"$lines")" 3 "PG-19 a rank that hangs: time-out names it"

# Under crun the job as a whole fails, and the dead rank is the first cause.
run "$CRUN" --nproc_per_node=4 "$HELPERS/coll_die" 2 5 kill
is "$status" 1 "a rank killed in all_reduce fails the job"
like "$err" 'rank 2 .*failed first: signal 9' "the dead rank is the first cause"

# More than 2^32 bytes per buffer.
need_kb=$((11 * 1024 * 1024))
have_kb=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo)
if [[ ${FLAVOR:-release} != release ]]; then
    skip 2 "too slow with sanitizers"
elif ((have_kb < need_kb)); then
    skip 2 "needs 11 GiB of memory"
else
    RUN_TIMEOUT=200 run "$CRUN" --nproc_per_node=2 "$HELPERS/coll_big" \
        $(((1 << 30) + 2))
    is "$status" 0 "PG-11 buffers beyond 4 GiB"
    is "$(grep -c 'of 2 ok' <<<"$out")" 2 "PG-11 results are right"
fi
run "$CRUN" --nproc_per_node=2 sh -c "exec '$HELPERS/coll_big' 1000003"
is "$status" 0 "odd count"
left=$(find /dev/shm -name '*crun*' -o -name '*coll*' 2>/dev/null | wc -l)
is "$left" 0 "CON-02 nothing is left in /dev/shm"
