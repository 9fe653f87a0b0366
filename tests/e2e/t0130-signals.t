#!/bin/bash
# What signals to crun do.
. "${BASH_SOURCE%/*}/tap.sh"
plan 22

cd "$TMP" || exit 255
export OMP_NUM_THREADS=1

# start ARGS...: crun in the background with default signal actions (a
# background job of a script starts with SIGINT and SIGQUIT ignored), until
# both workers are ready.
start()
{
    rm -f ready.* got.*
    if command -v python3 >/dev/null; then
        python3 -c 'import os, signal, sys
for s in signal.SIGINT, signal.SIGQUIT, signal.SIGHUP:
    signal.signal(s, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])' "$CRUN" --nproc_per_node=2 "$@" 2>err &
    else
        "$CRUN" --nproc_per_node=2 "$@" 2>err &
    fi
    job=$!
    wait_for 20 test -e ready.0 -a -e ready.1 || diag "workers not ready"
}

# end: waits for crun and sets $code.
end()
{
    wait "$job"
    code=$?
}

trapping='trap "echo \$RANK >>got.\$RANK; exit 0" TERM INT HUP QUIT
touch ready.$RANK; while :; do sleep 0.05; done'

for sig in TERM INT HUP QUIT; do
    start sh -c "$trapping"
    kill -$sig "$job"
    end
    is "$code" 1 "SIG$sig stops the job with status 1"
    is "$(cat got.0 got.1)" "0
1" "SIG-01 SIG$sig reaches each worker once"
    like "$(cat err)" "stopped by SIG$sig sent to crun" "and is named"
done

# A worker that ignores the signal, and an impatient user.
start sh -c 'trap "" INT; touch ready.$RANK; while :; do sleep 0.05; done'
kill -INT "$job"
wait_for 10 grep -q 'received SIGINT' err
kill -INT "$job"
end
is "$code" 1 "SIG-02 a second SIGINT kills"
like "$(cat err)" 'rank 0-1: stopped by crun with SIGKILL' "SIG-02 and says so"

# An ignored SIGHUP stays ignored, in crun and in the workers.
rm -f ready.*
(trap '' HUP; exec "$CRUN" --nproc_per_node=2 sh -c \
    'grep SigIgn /proc/self/status >ign.$RANK; touch ready.$RANK
     until [ -e go ]; do sleep 0.05; done') 2>err &
job=$!
wait_for 20 test -e ready.0 -a -e ready.1
kill -HUP $job
touch go
end
is "$code" 0 "SIG-04 nohup: SIGHUP does not stop the job"
ign=$(awk '{ print $2 }' ign.1)
is "$((0x$ign & 1))" 1 "SIG-04 nohup: workers ignore it too"

# A worker's failure while the others ignore SIGTERM is told at once.
start sh -c 'trap "" TERM; touch ready.$RANK
    [ $RANK = 1 ] && until [ -e fail ]; do sleep 0.05; done && exit 5
    while :; do sleep 0.05; done'
touch fail
wait_for 10 grep -q 'rank 1 .*failed: exit code 5; stopping the other' err
ok $? "a failure is told before the grace is over"
kill -0 "$job"
ok $? "crun still gives the others their grace"
kill -TERM "$job"
end
is "$code" 1 "a stop signal cuts that grace short"
like "$(cat err)" 'rank 1 .*failed first: exit code 5' "the failure is reported"

# An agent that does not react: stopped, as a stand-in for one that hangs.
start sh -c 'touch ready.$RANK; sleep 1000'
agent=$(cut -d' ' -f1 "/proc/$job/task/$job/children")
kill -STOP "$agent"
for _ in 1 2 3; do
    kill -INT "$job"
    wait_for 10 eval '! grep -q "^SigPnd:.*[1-9a-f]\|^ShdPnd:.*[1-9a-f]" \
        /proc/$job/status 2>/dev/null' # taken, so that the next one counts
done
end
is "$code" 1 "a third signal kills an agent that hangs"
like "$(cat err)" "agent .* was ended by signal 9" "and says so"
