#!/bin/bash
# What signals to crun do.
. "${BASH_SOURCE%/*}/tap.sh"
plan 51

cd "$TMP" || exit 255
export OMP_NUM_THREADS=1

# Stop signals that follow each other within half a second count as one.
merge=0.6

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

# insist SIGNAL: sends it until crun has ended. A front that gets little CPU
# time may see two of them within half a second of its own.
insist()
{
    while kill "-$1" "$job" 2>/dev/null; do
        sleep $merge
    done
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
    [[ $sig == HUP ]] && case="SIG-04 without nohup: " || case=
    is "$code" 1 "${case}SIG$sig stops the job with status 1"
    is "$(cat got.0 got.1)" "0
1" "SIG-01 SIG$sig reaches each worker once"
    like "$(cat err)" "stopped by SIG$sig sent to crun" "and is named"
done

# A worker that ignores the signal, and an impatient user.
start sh -c 'trap "" INT; touch ready.$RANK; while :; do sleep 0.05; done'
kill -INT "$job"
wait_for 10 grep -q 'received SIGINT' err
kill -INT "$job" # at once: the same request
sleep $merge
insist INT
end
is "$code" 1 "SIG-02 a second SIGINT kills"
like "$(cat err)" 'ranks 0-1: stopped by crun with SIGKILL' "SIG-02 and says so"

# --- at a terminal ---
# on_terminal OPTIONS... PROGRAM: crun as a shell's command at a terminal, in
# the shell's process group. What is written to descriptor 9 is typed; "status"
# gets the exit status, and "read" the line that the shell reads afterwards.
mkfifo keys
exec 9<>keys
on_terminal()
{
    rm -f ready.* got.* saved.* status read
    "$HELPERS/on_pty" sh -c 'trap : INT; stty -a >tty.before; "$@" 2>err
        echo $? >status.new; mv status.new status
        read -r line; echo "$line" >read; stty -a >tty.after' sh \
        "$CRUN" --nproc_per_node=2 "$@" <keys >shown &
    terminal=$!
    wait_for 20 test -e ready.0 -a -e ready.1 || diag "workers not ready"
}
on_terminal --exit_code cause sh -c 'trap "echo x >>got.\$RANK; sleep 1
    echo >saved.\$RANK; exit 0" INT
    touch ready.$RANK; while :; do sleep 0.05; done'
printf '\003' >&9
wait_for 20 test -e status
is "$(cat status)" 130 "SIG-01 Ctrl-C: crun ends with 130 where asked to"
[[ -e saved.0 && -e saved.1 ]]
ok $? "SIG-01 Ctrl-C: it has waited for the workers"
is "$(cat got.0 got.1)" "x
x" "SIG-01 Ctrl-C: it reaches each worker once"
printf 'typed\n' >&9
wait $terminal
is "$(cat read)" typed "SIG-01 Ctrl-C: the terminal is usable"

on_terminal sh -c 'trap "" INT; echo $$ >pid.$RANK
    touch ready.$RANK; while :; do sleep 0.05; done'
printf '\003' >&9
wait_for 10 grep -q 'received SIGINT' err
sleep $merge
begin=${EPOCHREALTIME//[.,]/}
again() { [[ -e status ]] || ! printf '\003' >&9 || sleep $merge; [[ -e status ]]; }
wait_for 20 again # see insist
took=$(((${EPOCHREALTIME//[.,]/} - begin) / 1000))
is "$(cat status)" 1 "SIG-02 Ctrl-C twice: crun ends with 1"
((took < 2000 * CK_TIMEOUT_MULTIPLIER))
ok $? "SIG-02 Ctrl-C twice: within two seconds ($took ms)"
gone() { ! kill -0 "$(cat pid.0)" 2>/dev/null && ! kill -0 "$(cat pid.1)" 2>/dev/null; }
gone
ok $? "SIG-02 Ctrl-C twice: no worker is left"
printf 'typed\n' >&9
wait $terminal
is "$(cat read)" typed "SIG-02 Ctrl-C twice: the terminal is usable"
cmp -s tty.before tty.after
ok $? "SIG-02 Ctrl-C twice: its settings are those of before"

# The shell that has started crun is killed, and with it the terminal goes.
on_terminal sh -c 'echo $$ >pid.$RANK; touch ready.$RANK; exec sleep 1000'
{ kill -KILL "$(children_of $terminal)"; wait $terminal; } 2>/dev/null
wait_for 5 gone
ok $? "ELA-12 the shell of a terminal killed: the workers end"
exec 9>&-

# --- the grace ---
saving='trap "echo x >>got.\$RANK; sleep \$SAVING; echo >saved.\$RANK; exit 0" TERM
    touch ready.$RANK; while :; do sleep 0.05; done'
rm -f saved.*
export SAVING=1000
start --shutdown_timeout=1 sh -c "$saving"
begin=${EPOCHREALTIME//[.,]/}
kill -TERM "$job"
end
took=$(((${EPOCHREALTIME//[.,]/} - begin) / 1000))
is "$code $(ls saved.* 2>/dev/null)" "1 " \
    "SIG-03 workers that need longer than the grace are killed"
((took >= 1000 && took < 5000 * ${CK_TIMEOUT_MULTIPLIER:-1}))
ok $? "SIG-03 after one second, where that is the grace ($took ms)"
like "$(cat err)" 'stopped by crun with SIGKILL' "SIG-03 and that is told"
export SAVING=2
start --shutdown_timeout=100 sh -c "$saving"
begin=${EPOCHREALTIME//[.,]/}
kill -TERM "$job"
end
took=$(((${EPOCHREALTIME//[.,]/} - begin) / 1000))
is "$code $(echo saved.*)" "1 saved.0 saved.1" \
    "SIG-03 workers that need less can save, and crun ends with 1"
((took < 20000 * ${CK_TIMEOUT_MULTIPLIER:-1}))
ok $? "SIG-03 at once when they have ended ($took ms)"
is "$(cat got.0 got.1)" "x
x" "SIG-03 the signal reaches each worker once"
if [[ -n ${CRUN_LONG_TESTS:-} ]]; then
    export SAVING=40
    rm -f saved.*
    start sh -c "$saving"
    begin=${EPOCHREALTIME//[.,]/}
    kill -TERM "$job"
    end
    took=$(((${EPOCHREALTIME//[.,]/} - begin) / 1000000))
    is "$code $((took >= 29 && took <= 32)) $(ls saved.* 2>/dev/null)" "1 1 " \
        "SIG-03 the default is 30 seconds"
else
    skip 1 "SIG-03 the default of 30 s is waited for with CRUN_LONG_TESTS=1"
fi

# An ignored SIGHUP stays ignored, in crun and in the workers.
rm -f ready.*
(trap '' HUP; exec "$CRUN" --nproc_per_node=2 sh -c \
    'grep SigIgn /proc/self/status >ign.$RANK; touch ready.$RANK
     until [ -e go ]; do sleep 0.05; done') 2>err &
job=$!
wait_for 20 test -e ready.0 -a -e ready.1
kill -HUP $job
sigign() { awk '/^SigIgn/ { print $2 }' "/proc/$1/status"; }
agent=$(cut -d' ' -f1 "/proc/$job/task/$job/children")
is "$((0x$(sigign "$job") & 1)) $((0x$(sigign "$agent") & 1))" "1 1" \
    "SIG-04 nohup: crun ignores SIGHUP"
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
sleep $merge
kill -0 "$job"
ok $? "one stop signal leaves them that grace"
insist TERM
end
is "$code" 1 "a second one cuts it short"
like "$(cat err)" 'rank 1 .*failed first: exit code 5' "the failure is reported"

# An agent that does not react: stopped, as a stand-in for one that hangs.
start sh -c 'touch ready.$RANK; sleep 1000'
agent=$(cut -d' ' -f1 "/proc/$job/task/$job/children")
kill -STOP "$agent"
insist INT
end
is "$code" 1 "a third signal kills an agent that hangs"
like "$(cat err)" "agent .* was ended by signal 9" "and says so"

# Signalled as a whole, front, agent and workers: one request all the same.
start sh -c 'trap "sleep 1; echo saved >>got.\$RANK; exit 0" TERM
    touch ready.$RANK; while :; do sleep 0.05; done'
agent=$(cut -d' ' -f1 "/proc/$job/task/$job/children")
# shellcheck disable=SC2046 # words
kill -TERM "$job" "$agent" $(cat "/proc/$agent/task/$agent/children")
end
is "$(cat got.0 got.1 2>&1)" "saved
saved" "a signal to every process is one request"

# What a wrapper script runs has the grace, though the script ends at once.
start sh -c 'sh -c "trap \"sleep 1; echo saved >got.\$RANK; exit 0\" TERM
    touch ready.\$RANK; while :; do sleep 0.05; done"; true'
kill -TERM "$job"
end
is "$(cat got.0 got.1 2>&1)" "saved
saved" "the program of a wrapper script has the grace"

# A member of a worker's group whose parent left the group, and is not ours.
if command -v python3 >/dev/null; then
    cat >member.py <<'P'
import os, signal, time
rank = os.environ["RANK"]
if os.fork() == 0:  # leaves the group once it has forked the member
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), os._exit(0)))
        open("ready." + rank, "w").close()
        while True: time.sleep(0.05)
    os.setsid()
    os.wait()
    time.sleep(1000)
time.sleep(1000)
P
    start member.py
    begin=${EPOCHREALTIME//[.,]/}
    kill -TERM "$job"
    end
    ((${EPOCHREALTIME//[.,]/} - begin < 20000000))
    ok $? "a group that empties unseen does not take the whole grace"
else
    skip 1 "no python3 here"
fi

# A front that is killed while SIGTERM is ignored.
rm -f ready.*
(trap '' TERM; exec "$CRUN" --nproc_per_node=2 sh -c \
    'echo $$ >pid.$RANK; touch ready.$RANK; exec sleep 1000') 2>err &
job=$!
wait_for 20 test -e ready.0 -a -e ready.1
{ kill -9 $job; wait $job; } 2>/dev/null
wait_for 5 gone
ok $? "ELA-12 front killed while SIGTERM is ignored: the workers end"

# What was started before crun took a process over is not crun's.
sh -c 'sleep 1000 & echo $! >stranger; exec "$@"' sh "$CRUN" true
is "$?" 0 "a job beside a stranger"
kill -0 "$(cat stranger)"
ok $? "a child of the process that became crun is left alone"
kill -9 "$(cat stranger)"

# The rank that dies first is named, also if another follows at once.
cat >chain.sh <<'S'
[ $RANK = 1 ] && { exec 3>fifo; touch ready.1; until [ -e go ]; do :; done; kill -9 $$; }
exec 3<fifo; touch ready.0; read -r _ <&3; exit 1
S
wrong=0
for _ in 1 2 3 4 5 6 7 8 9 10; do
    rm -f fifo go ready.*
    mkfifo fifo
    "$CRUN" --nproc_per_node=2 sh chain.sh 2>err &
    job=$!
    wait_for 20 test -e ready.0 -a -e ready.1
    touch go
    wait $job
    grep -q 'rank 1 .*failed first: signal 9' err || ((++wrong))
done
is "$wrong" 0 "EXIT-03 the first to die is named, not its victim"

# A rank that fails while others are still being started.
cat >start.sh <<'S'
case $RANK in
3)  # when rank 9 has ended
    until [ -s pid.9 ] && ! grep -q '^State:.[^ZX]' /proc/$(cat pid.9)/status
    do sleep 0.05; done 2>/dev/null
    exit 1 ;;
9)  echo $$ >pid.9.new; mv pid.9.new pid.9; exit 7 ;;
*)  exec sleep 100 ;;
esac
S
run "$CRUN" --nproc_per_node=64 sh start.sh
like "$err" 'rank 9 .*failed first: exit code 7' "a failure during the start is the first"

# Nobody reads stderr: crun neither blocks nor lingers.
mkfifo full
exec 5<>full
dd if=/dev/zero of=full bs=64k count=1 oflag=nonblock 2>/dev/null
rm -f ready.*
(exec 5>&-; exec "$CRUN" --nproc_per_node=2 sh -c \
    'echo $$ >pid.$RANK; touch ready.$RANK; exec sleep 1000' 2>full) &
job=$!
wait_for 20 test -e ready.0 -a -e ready.1
kill -TERM $job
wait_for 5 gone
ok $? "a full stderr does not keep workers from being stopped"
sleep $merge
insist TERM
{ wait $job; code=$?; } 2>/dev/null
is "$code" 1 "nor crun from ending"
exec 5>&-
