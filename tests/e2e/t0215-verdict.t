#!/bin/bash
# What crun says of a collective operation that is stuck: which rank never
# entered it, or who called another one.
. "${BASH_SOURCE[0]%/*}/tap.sh"
. "${BASH_SOURCE[0]%/*}/agents.sh"
plan 20

cd "$TMP" || exit 255
export OMP_NUM_THREADS=1
STUCK=$HELPERS/coll_stuck
never='  collective: rank 2 never entered all_reduce #4 \(1024 float32 sum, default group\), in which ranks 0-1,3 waited for [0-9.]+ s; its last call was broadcast #3$'

# hang PATTERN ARGS...: crun, with $err as PATTERN says. The time-out of the
# library is for coll_init(), too, which may take its time on a busy machine.
hang()
{
    local limit pattern=$1
    shift
    for limit in $LIMITS; do
        COLL_TIMEOUT=$limit run "$CRUN" "$@"
        ! grep -Eq -e "$pattern" <<<"$err" || break
    done
}

# A rank that computes for ever, and a time-out of the library.
hang "$never" "$HANG_GRACE" --nproc_per_node=4 --report report.json \
    "$STUCK" dump 2
is "$status" 1 "a time-out fails the job"
like "$err" "$never" "the report names who never came, and to what"
like "$(tr -d '\n' <report.json)" \
    '"collective": \[ +"rank 2 never entered all_reduce #4 .*" +\],' \
    "so does the report for programs"
calls=$(grep '^{' <<<"$out")
is "$(grep -Eo '"seq": [0-9]+, "kind": "[a-z_]+"' <<<"$calls" |
    tr -dc 'a-z_0-9\n' | tr '\n' ' ')" \
    "seq0kindcoll_init seq1kindbroadcast seq2kindbroadcast seq3kindbroadcast " \
    "coll_recorder_dump() writes the calls in order"
like "$(tail -n 1 <<<"$calls")" \
    '^\{"group": 0, "ranks": null, "seq": 3, "kind": "broadcast", "dtype": "float32", "op": null, "count": 3, "root": 1, "entered_ns": [0-9]+, "finished_ns": [0-9]+, "status": 0\}$' \
    "with all that is known of them"

init='collective: rank 2 never entered coll_init, in which ranks 0-1,3 waited for'
hang "$init" "$GRACE" --nproc_per_node=4 "$STUCK" init 2
like "$err" "$init" "a rank that never calls coll_init() is named"

late='collective: rank 1 entered all_reduce #4 .* only when ranks 0,2 had waited for [0-9.]+ s$'
hang "$late" "$HANG_GRACE" --nproc_per_node=3 sh -c "'$STUCK' late 1; exit 1"
like "$err" "$late" "so is one that comes when the others have given up"

# The recorders of a round go with it.
round='^\[crun .*rank 1 never entered all_reduce #4 '
hang "$round" "$HANG_GRACE" --nproc_per_node=3 --max_restarts=1 sh -c "
    [ \$TORCHELASTIC_RESTART_COUNT = 1 ] || exec '$STUCK' sleep 1"
like "$err" "$round" "what a round hung in is told before the next one"

# Different operations.
run "$CRUN" "$GRACE" --nproc_per_node=3 sh -c "'$HELPERS/coll_mismatch'; exit 1"
like "$err" 'collective: operation #1 of the default group differs: rank 0 called all_reduce \(3 float32 sum\), ranks 1-2 called barrier$' \
    "who called what, where ranks differ"
# shellcheck disable=SC2016 # for the workers
run "$CRUN" "$GRACE" --nproc_per_node=3 sh -c 'COLL_ALGORITHM=all_reduce:$(
    test $RANK = 0 && echo one_shot || echo two_shot) "$0"; exit 1' \
    "$HELPERS/coll_bits"
like "$err" 'collective: operation #1 of the default group differs: ranks 0-2 called all_reduce \(.*\) alike; what is not recorded differs: forced algorithms' \
    "calls that differ in what is forced"
# shellcheck disable=SC2016
run "$CRUN" "$GRACE" --nproc_per_node=3 sh -c 'COLL_BACKEND=$(
    test $RANK = 1 && echo tcp || echo shm) exec "$0"' "$HELPERS/coll_bits"
like "$err" 'collective: coll_init failed on ranks? [0-9,-]+ for the environment' \
    "ranks that are set differently"

# A rank that is killed within an operation.
state_is()
{
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    stat=${stat##*) }
    [[ ${stat%% *} == "$2" ]]
}
enter() { [[ $(grep -c enters out.hang) -eq 3 ]]; }
launch()
{
    rm -f pid.*
    env --default-signal=INT "$CRUN" "$HANG_GRACE" --nproc_per_node=4 sh -c "
        echo \$\$ >pid.\$RANK.new; mv pid.\$RANK.new pid.\$RANK
        exec '$STUCK' sleep 2" >out.hang 2>err.hang &
    job=$!
    wait_for 30 test -e pid.0 -a -e pid.1 -a -e pid.2 -a -e pid.3
    wait_for 30 enter && wait_for 30 state_is "$(cat pid.1)" S
}
launch
kill -KILL "$(cat pid.1)"
wait $job
is $? 1 "a rank is killed in an operation, and the job fails"
like "$(cat err.hang)" "${never%% in which*}" \
    "what it was waiting for is told nevertheless"
run "$CRUN" "$GRACE" --nproc_per_node=3 "$HELPERS/coll_die" 1 5 kill
like "$err" 'collective: rank 1 never entered all_reduce #6 .*, in which rank(s 0,2| 0| 2) waited for .*; its last call was all_reduce #5$' \
    "a rank that is killed outside is missing in the next one"

# Somebody stops a hung job: what has not waited for a second does not hang.
launch
wait_for 30 state_is "$(cat pid.0)" S && wait_for 30 state_is "$(cat pid.3)" S
began=${EPOCHREALTIME//[.,]/}
seconds_are_over() { ((${EPOCHREALTIME//[.,]/} - began > 2000000)); }
wait_for 30 seconds_are_over
kill -INT $job
wait $job
is $? 1 "a hung job is stopped by SIGINT"
like "$(cat err.hang)" "$never" "and says what it hung in"

# Each node tells what it knows.
other='collective: rank 3 never entered all_reduce #4 .*, in which rank 2 waited'
for limit in $LIMITS; do
    export COLL_TIMEOUT=$limit
    port=$(free_port)
    for node in 0 1; do
        agent $node "$HANG_GRACE" --master_addr 127.0.0.1 --master_port "$port" \
            --nnodes 2 --node_rank $node --nproc_per_node 2 "$STUCK" sleep 3
    done
    ends 0 1
    ! grep -Eq "$other" 1.err || break
done
unset COLL_TIMEOUT
is "$codes" "1 1" "a time-out fails the job of two nodes"
like "$(cat 0.err)" \
    'collective: (ranks 0-1 all waited|rank [01] ended within|all_reduce #4 .* failed on rank [01] and)' \
    "one node tells that all its ranks have waited"
like "$(cat 1.err)" "$other" "the other one for whom"

run "$CRUN" --nproc_per_node=3 --report report.json "$EXAMPLES/hello"
like "$(cat report.json)" '"collective": \[\],' "nothing hung in a success"
