#!/bin/bash
# Ports: jobs that do not collide, and a port that is what it says.
# PORT-03 is in t0160, PORT-04 in t0140.
. "${BASH_SOURCE%/*}/tap.sh"
plan 16

cd "$TMP" || exit 255
export OMP_NUM_THREADS=1

# pair ARGS...: two jobs that run at the same time; sets $codes.
pair()
{
    local first second
    rm -f up.* go port.*
    for i in 1 2; do
        "$CRUN" --nproc_per_node=2 "$@" sh -c "
            '$HELPERS/store_mark' mark.\$RANK >seen.$i.\$RANK &&
            echo \$MASTER_PORT >port.$i && touch up.$i.\$RANK
            until [ -e go ]; do sleep 0.02; done" 2>err.$i &
        [[ $i == 1 ]] && first=$! || second=$!
    done
    wait_for 20 test -e up.1.0 -a -e up.1.1 -a -e up.2.0 -a -e up.2.1 ||
        diag "not all workers are there: $(cat err.*)"
    touch go
    wait $first
    codes=$?
    wait $second
    codes+=" $?"
}

for option in --standalone --role=default; do
    [[ $option == --standalone ]] && what=$option || what="no option"
    pair $option
    is "$codes" "0 0" "PORT-01 two jobs at once, $what"
    is "$(cat seen.?.?)" "0
0
0
0" "PORT-01 each with a store of its own, $what"
    [[ $(cat port.1) != $(cat port.2) ]]
    ok $? "PORT-01 and a port of its own, $what"
done

# A port that was asked for is had once.
"$CRUN" --master_port 0 sh -c 'echo $MASTER_PORT >port
    until [ -e stop ]; do sleep 0.02; done
    '"'$HELPERS/store_mark'"' late' >late 2>/dev/null &
job=$!
wait_for 20 test -s port
port=$(cat port)
begin=${EPOCHREALTIME//[.,]/}
run "$CRUN" --master-port "$port" --nproc_per_node=2 touch started
took=$(((${EPOCHREALTIME//[.,]/} - begin) / 1000))
is "$status" 1 "PORT-01 a second job on a port fails"
like "$err" "$port.*in use" "PORT-01 naming the port"
((took < 5000 * ${CK_TIMEOUT_MULTIPLIER:-1}))
ok $? "PORT-01 within five seconds ($took ms)"
[[ ! -e started ]]
ok $? "PORT-01 and starts no worker"
touch stop
wait $job
is "$? $(cat late)" "0 0" "PORT-01 the first job is not disturbed"

# Port 0.
for args in "--master_port 0" \
    "--rdzv_backend c10d --rdzv_endpoint localhost:0" \
    "--rdzv_endpoint localhost:0" "--standalone"; do
    # shellcheck disable=SC2086 # words
    run "$CRUN" --nproc_per_node=2 $args sh -c \
        "[ \$MASTER_PORT -gt 0 ] && '$EXAMPLES/hello'"
    is "$status $out" "0 sum of 2 ranks: 1" "PORT-05 a real port: $args"
done

# Where rank 0 hosts the store, the port is a free one.
run "$CRUN" --nproc_per_node=2 --no_agent_store sh -c \
    "echo \$TORCHELASTIC_USE_AGENT_STORE && '$EXAMPLES/hello'"
is "$status $(sort -u <<<"$out" | paste -sd' ')" \
    "0 False sum of 2 ranks: 1" "PORT-05 --no_agent_store: a port that is free"
