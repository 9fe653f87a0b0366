#!/bin/bash
# The agent channel under crun: who is told of a failure, how soon, and what
# the recorder says of a rank that is dead.
. "${BASH_SOURCE%/*}/tap.sh"
plan 22

cd "$TMP" || exit 255
export OMP_NUM_THREADS=1

# A rank is killed in a loop of all_reduce: the others are told.
run "$CRUN" "$GRACE" --nproc_per_node=3 "$HELPERS/coll_die" 1 5 kill
is "$status" 1 "a rank that is killed fails the job"
is "$(grep -Ec 'error after .*: all_reduce #6: rank 1 \(local rank 1 on host [^)]+\) failed: signal 9 \(SIGKILL\), told by the launcher$' <<<"$out")" \
    2 "each survivor's call names rank, host and signal"
slow=$(awk '/error after/ && $5 > 2000 * '"${CK_TIMEOUT_MULTIPLIER:-1}" \
    <<<"$out" | wc -l)
is "$slow" 0 "without waiting for a time-out"
like "$err" 'rank 1 .*failed first: signal 9' "it is the first cause"
like "$err" 'ranks 0,2 .*on account of it: exit code 3: all_reduce #6: rank 1' \
    "the survivors are not, and say why they ended"
like "$err" 'all_reduce #5 of 1048576 float32, finished' \
    "the report has its last call"

# The programs of a job may be children of what crun started.
run "$CRUN" "$GRACE" --nproc_per_node=3 sh -c \
    "'$HELPERS/coll_die' 1 5 kill; status=\$?; exit \$status"
is "$(grep -c 'all_reduce #6: rank 1 .* failed: exit code 137, told by' \
    <<<"$out")" 2 "a program below a shell is attached, too"

# A rank that dies in the middle of a call: rank 0 waits for rank 1, which is
# stopped, and is killed then.
state_is()
{
    local stat
    stat=$(cat "/proc/$(cat "pid.$1")/stat" 2>/dev/null) || return 1
    stat=${stat##*) }
    [[ ${stat%% *} == "$2" ]]
}
"$CRUN" "$HANG_GRACE" --nproc_per_node=3 --shutdown_timeout=1 sh -c \
    "echo \$\$ >pid.\$RANK.new; mv pid.\$RANK.new pid.\$RANK
    exec '$HELPERS/coll_die' 1 5 freeze" >out.hang 2>err.hang &
job=$!
wait_for 30 test -e pid.0 -a -e pid.1
wait_for 30 state_is 1 T && wait_for 30 state_is 0 S
ok $? "rank 0 waits in a call for rank 1, which is stopped"
kill -KILL "$(cat pid.0)"
wait $job
is $? 1 "rank 0 is killed, and the job fails"
like "$(cat out.hang)" \
    '^rank 2 .*all_reduce #6: rank 0 .*failed: signal 9 .*told by' \
    "rank 2, which waits for rank 1, is told of rank 0"
like "$(cat err.hang)" 'all_reduce #6 of 1048576 float32, not finished' \
    "the report has the call that rank 0 did not finish"

# A rank ends before coll_init(): those who wait there for it are told.
cat >early.sh <<END
count() { [ "\$(grep -c 'is attached' "$TMP/.err")" -ge 3 ]; }
if [ "\$RANK" = 3 ]; then
    until count; do sleep 0.02; done
    date +%s%N >died
    exit 3
fi
"$EXAMPLES/hello"
status=\$?
date +%s%N >told.\$RANK
exit \$status
END
LOGLEVEL=DEBUG run "$CRUN" "$GRACE" --nproc_per_node=4 sh early.sh
is "$status" 1 "a rank that ends before coll_init() fails the job"
is "$(grep -Ec '^coll_init: rank 3 \(local rank 3 on host [^)]+\) failed: exit code 3, told by the launcher$' <<<"$err")" \
    3 "those who wait in coll_init() are told"
late=0
for rank in 0 1 2; do
    [[ -s told.$rank && $(($(cat told.$rank) - $(cat died))) -lt \
        $((5000000000 * ${CK_TIMEOUT_MULTIPLIER:-1})) ]] || ((++late))
done
is "$late" 0 "within seconds"
like "$err" 'rank 3 .*failed first: exit code 3' "rank 3 is the first cause"
like "$err" 'ranks 0-2 .*on account of it: exit code 1: coll_init: rank 3' \
    "the others are not"

# Each round has a channel of its own.
cat >again.sh <<END
[ "\$TORCHELASTIC_RESTART_COUNT" = 0 ] && exec "$HELPERS/coll_die" 1 2 kill
exec "$HELPERS/coll_check"
END
LOGLEVEL=DEBUG run "$CRUN" --nproc_per_node=3 --max_restarts=1 sh again.sh
is "$status" 0 "after a restart all is well"
is "$(grep -c 'rank [0-2] is attached' <<<"$err")" 6 \
    "the workers of both rounds have attached"
is "$(grep -c 'of 3 ok' <<<"$out")" 3 "and computed"

# Without an agent, and with the name of one that is gone.
run env -u CRUN_AGENT WORLD_SIZE=1 "$HELPERS/coll_check"
is "$status" 0 "without CRUN_AGENT"
for agent in "" nonsense crun-agent-00000000000000000000000000000000:0; do
    run "$CRUN" --nproc_per_node=2 env "CRUN_AGENT=$agent" "$HELPERS/coll_check"
    [[ $status -eq 0 && $(grep -c 'of 2 ok' <<<"$out") -eq 2 ]] || break
done
ok $? "with a CRUN_AGENT at which nobody listens"
run "$CRUN" --nproc_per_node=2 env -u CRUN_AGENT "$HELPERS/coll_check"
is "$status" 0 "under crun without it"
