#!/bin/bash
# However a job ends, no process of it is left when crun has returned. The
# workers ignore signals, leave their sessions, double-fork and scrub their
# environment.
. "${BASH_SOURCE%/*}/tap.sh"
plan 15

cd "$TMP" || exit 255
export OMP_NUM_THREADS=1

# With "-k none" kill_storm only watches.
run "$HELPERS/kill_storm" -k none -n 2 "$CRUN" --nproc_per_node=2 \
    "$HELPERS/hostile" -x 0
is "$out" "2 rounds: none killed, the last one ended with status 0, \
processes left at the end: 0" "EXIT-02 leftovers of successful workers are \
ended, and no failure" || diag "$err"
run "$HELPERS/kill_storm" -k none -n 3 "$CRUN" --nproc_per_node=3 \
    "$HELPERS/hostile" -x 3
is "$out" "3 rounds: none killed, the last one ended with status 1, \
processes left at the end: 0" "leftovers of failed workers are ended" ||
    diag "$err"

# --- success by unusual routes ---
run "$CRUN" --nproc_per_node=4 bash -c 'case $RANK in
    0) exit 0 ;;
    1) exec true ;;
    2) exec 0<&- 1>&- 2>&-; exit 0 ;;
    3) sleep 0.3 & exit 0 ;;
esac'
is "$status" 0 "EXIT-02 exit, exec, closed descriptors, a child left: success"
is "$err" "" "EXIT-02 and nothing is said"
begin=${EPOCHREALTIME//[.,]/}
run "$CRUN" sh -c 'setsid sh -c "trap \"echo \\\$(date +%s%N) >term\" TERM
    touch up; while :; do sleep 0.02; done" &
    until [ -e up ]; do sleep 0.01; done; date +%s%N >end'
took=$(((${EPOCHREALTIME//[.,]/} - begin) / 1000))
is "$status" 0 "EXIT-02 a child that does not want to end: success"
[[ -s term && $(($(cat term) - $(cat end))) -gt 0 ]]
ok $? "EXIT-02 it was asked to, by SIGTERM"
((took > 900 && took < 10000 * ${CK_TIMEOUT_MULTIPLIER:-1}))
ok $? "EXIT-02 it had a second ($took ms in all)"

# --- descriptors ---
"$CRUN" --master_port 0 sh -c 'echo $MASTER_PORT >port; setsid sleep 1000 &
    echo $! >pid; until [ -e go ]; do sleep 0.02; done' &
job=$!
wait_for 10 test -s pid
pid=$(cat pid)
is "$(ls "/proc/$pid/fd")" "0
1
2" "PORT-04 a worker's child has descriptors 0, 1 and 2 only"
touch go
wait $job
is "$?" 0 "PORT-04 the worker ends"
[[ ! -e /proc/$pid ]]
ok $? "PORT-04 the child is gone when crun has returned"
run "$CRUN" --master_port "$(cat port)" true
is "$status" 0 "PORT-04 a new job gets the port at once"

# --- process 1 of a container ---
# Each worker leaves a hundred orphans; then a stop from outside.
cat >first.sh <<'S'
for ((i = 0; i < 100; i++)); do (sleep 0.01 & exit) done
sleep 0.5
# One that has ended just now is not reaped yet; one that stays is a zombie.
for ((i = 0; i < 200; i++)); do
    zombies=$(grep -l '^State:.Z' /proc/[0-9]*/status)
    [[ -n $zombies ]] || break
    sleep 0.02
done
echo "${zombies:-none}" >zombies.new.$RANK
mv zombies.new.$RANK zombies.$RANK
exec sleep 1000
S
if unshare -Urfp --mount-proc true 2>/dev/null ||
    unshare -fp --mount-proc true 2>/dev/null; then
    ns=(unshare -fp --mount-proc)
    [[ $EUID -eq 0 ]] || ns=(unshare -Urfp --mount-proc)
    for cause in torchrun cause; do
        rm -f zombies.*
        "${ns[@]}" "$CRUN" --exit_code $cause --nproc_per_node=2 \
            bash first.sh 2>err &
        job=$!
        wait_for 20 test -e zombies.0 -a -e zombies.1
        is "$(cat zombies.0 zombies.1)" "none
none" "CON-04 process 1 leaves no zombie"
        # SIGTERM's default action is nothing for a process 1.
        kill -TERM "$(children_of $job)"
        wait $job
        code=$?
        [[ $cause == cause ]] && want=143 || want=1
        is "$code" "$want" "CON-04 SIGTERM ends it, status $want" ||
            diag "$(cat err)"
    done
else
    skip 4 "no namespaces for processes here"
fi
