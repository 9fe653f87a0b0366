#!/bin/bash
# A worker fails and all are started anew: how often, when, with what, and
# when not; and the exit status in the end.
. "${BASH_SOURCE%/*}/tap.sh"
plan 48

cd "$TMP" || exit 255
export OMP_NUM_THREADS=1

# fresh: forgets what the workers of the case before have left.
fresh()
{
    rm -f starts up.* pid.* got.* go err
    touch starts
}

# now_ms: milliseconds.
now_ms() { echo $((${EPOCHREALTIME//[.,]/} / 1000)); }

# Rank 1 fails when rank 0 runs.
cat >fail.sh <<'S'
echo "$RANK $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS" >>starts
if [ $RANK = 0 ]; then
    touch up.$TORCHELASTIC_RESTART_COUNT
    exec sleep 1000
fi
until [ -e up.$TORCHELASTIC_RESTART_COUNT ]; do sleep 0.01; done
exit 1
S

# --- how often ---
fresh
run "$CRUN" --nproc_per_node=2 sh fail.sh
is "$status $(sort starts | paste -sd,)" "1 0 0 0,1 0 0" \
    "without the option nothing is restarted"

fresh
run "$CRUN" --nproc_per_node=2 --max_restarts 2 sh fail.sh
is "$status" 1 "ELA-03 a worker that always fails: status 1"
is "$(sort -k 2 starts)" "0 0 2
1 0 2
0 1 2
1 1 2
0 2 2
1 2 2" "ELA-03 three starts; the count is 0, 1, 2, the limit 2"
like "$err" 'rank 1 .*exit code 1' "ELA-03 the failure is reported"
like "$err" 'restart' "ELA-03 and the restarts are"

fresh
run "$CRUN" --nproc_per_node=2 --max-restarts=5 sh -c \
    'echo x >>starts; [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 1'
is "$status" 0 "a job that succeeds after two restarts is a success"
unlike "$err" FAILED "and no failure is reported in the end"

# --- with what ---
fresh
run "$CRUN" --nproc_per_node=2 --max_restarts=2 sh -c \
    "'$HELPERS/store_mark' mark.\$RANK >got.\$RANK.\$TORCHELASTIC_RESTART_COUNT
     touch up.\$RANK.\$TORCHELASTIC_RESTART_COUNT
     until [ -e up.0.\$TORCHELASTIC_RESTART_COUNT ] &&
         [ -e up.1.\$TORCHELASTIC_RESTART_COUNT ]; do sleep 0.01; done
     [ \$TORCHELASTIC_RESTART_COUNT = 2 ]"
is "$status" 0 "workers find the store in each round"
is "$(cat got.?.?)" "0
0
0
0
0
0" "each round has an empty one"
run env COLL_TIMEOUT=20 "$CRUN" --nproc_per_node=3 --max_restarts=3 sh -c \
    "'$EXAMPLES/hello' && [ \$TORCHELASTIC_RESTART_COUNT = 3 ]"
is "$status $(grep -c 'sum of 3 ranks: 3' <<<"$out")" "0 4" \
    "PG-08 a group in each of four rounds"
# Rank 0 has ended well when rank 1 fails: it is started again all the same.
fresh
run "$CRUN" --nproc_per_node=2 --max_restarts=1 sh -c '
    echo "$RANK $TORCHELASTIC_RESTART_COUNT" >>starts
    if [ $RANK$TORCHELASTIC_RESTART_COUNT = 00 ]; then echo $$ >pid.new
        mv pid.new pid.0
    elif [ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ]; then
        until [ -e pid.0 ] && [ ! -e /proc/$(cat pid.0) ]; do sleep 0.01; done
        exit 1
    fi'
is "$status $(sort starts | paste -sd,)" "0 0 0,0 1,1 0,1 1" \
    "who has ended well is started again, too"

# --- the old generation first ---
# Rank 0 and a child of it, in a session of its own, do not want to end.
cat >linger.sh <<'S'
if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then
    for pid in $(cat pid.*); do
        [ ! -e /proc/$pid ] || echo "$pid lives" >>got.$RANK
    done
    exit 0
fi
echo $$ >pid.$RANK
if [ $RANK = 0 ]; then
    trap "" TERM
    setsid sh -c 'trap "" TERM; echo $$ >pid.child; sleep 1000' &
    sleep 1000
    sleep 1000
fi
until [ -s pid.child ]; do sleep 0.01; done
exit 1
S
fresh
run "$CRUN" --nproc_per_node=2 --max_restarts=1 --shutdown_timeout=1 \
    sh linger.sh
is "$status" 0 "workers that ignore SIGTERM do not prevent a restart"
is "$(cat got.* 2>/dev/null)" "" "none of the old ones lives when the new begin"
fresh
run "$HELPERS/kill_storm" -k none "$CRUN" --nproc_per_node=2 \
    --max_restarts=3 "$HELPERS/hostile" -x 3
like "$out" 'status 1, processes left at the end: 0' \
    "nor is anything of any round left in the end"

# --- when ---
fresh
begin=$(now_ms)
run "$CRUN" --max_restarts=2 --restart_delay 0.3 sh -c 'exit 1'
took=$(($(now_ms) - begin))
((took >= 900))
ok $? "--restart_delay: 0.3 s, then twice that ($took ms)"
begin=$(now_ms)
run "$CRUN" --max_restarts=4 --restart_delay 0.2 --restart_delay_max 0.2 \
    sh -c 'exit 1'
took=$(($(now_ms) - begin))
is "$((took >= 800)) $(grep -c 'restart . of 4 in 0.200 s$' <<<"$err")" "1 4" \
    "--restart_delay_max: four times 0.2 s, not 3 s in all ($took ms)"

fresh
run "$CRUN" --max_restarts=100 --crash_loop 3:60 sh -c \
    'echo x >>starts; exit 1'
is "$status $(wc -l <starts)" "1 3" "--crash_loop 3:60: three rounds"
like "$err" 'rounds? in a row|crash' "and says why"
fresh
run "$CRUN" --max_restarts=4 --crash_loop 2:0.001 sh -c \
    'echo x >>starts; sleep 0.05; exit 1'
is "$(wc -l <starts)" 5 "--crash_loop: rounds that live longer do not count"

# --- when not ---
# background ARGS...: crun in the background; its stop signals have their
# default action even so, since a trap of this script's is reset by exec.
background()
{
    (trap : INT QUIT; exec "$CRUN" "$@" 2>err) &
    job=$!
}

fresh
background --max_restarts=5 --nproc_per_node=2 sh -c 'echo x >>starts
    trap "exit 1" TERM; touch up.$RANK; while :; do sleep 0.02; done'
wait_for 20 test -e up.0 -a -e up.1
kill -TERM $job
wait $job
is "$? $(wc -l <starts)" "1 2" "a stop is no failure to be restarted"
like "$(cat err)" 'stopped by SIGTERM' "and is reported as one"

fresh
background --max_restarts=5 --restart_delay 1000 --restart_delay_max 1000 \
    sh -c 'echo x >>starts; echo $$ >pid.0; exit 1'
wait_for 20 grep -qi restart err
ok $? "a restart that is to come is told"
kill -TERM $job
wait $job
is "$? $(wc -l <starts)" "1 1" "a stop while it is waited for ends at once"

fresh
background --max_restarts=5 --restart_delay 1000 sh -c 'echo x >>starts; exit 1'
wait_for 20 grep -qi restart err
agent=$(children_of $job)
[[ -e /proc/$agent/exe ]]
ok $? "the agent waits for it"
{ kill -KILL $job; wait $job; } 2>/dev/null
gone() { [[ ! -e /proc/$agent/exe ]]; } # also while nobody reaps it
wait_for 5 gone
ok $? "ELA-12 the front killed while it is waited for: the agent ends"

fresh
run "$CRUN" --max_restarts=5 "$TMP/no-such-program"
is "$status" 1 "what cannot be executed is not tried again"
printf '#!/no/such/interpreter\n' >broken
chmod +x broken
RUN_TIMEOUT=20 run "$CRUN" --max_restarts=1000000 --no_python ./broken
is "$status" 1 "nor is what turns out so"

fresh
run "$CRUN" --nproc_per_node=4 --max_restarts=0 sh -c '
    echo $$ >pid.$RANK
    if [ $RANK = 3 ]; then
        until [ -s pid.0 ] && [ -s pid.1 ] && [ -s pid.2 ]; do
            sleep 0.01
        done
        exit 1
    fi
    exec sleep 1000'
is "$status" 1 "ELA-07 one worker fails, the others sleep: status 1"
like "$err" 'rank 3 .*failed first: exit code 1' "ELA-07 it is named"
alive=0
for pid in $(cat pid.*); do [[ ! -e /proc/$pid ]] || ((++alive)); done
is "$alive" 0 "ELA-07 none is left"

# --- the exit status ---
run "$CRUN" --exit_code cause --nproc_per_node=2 sh -c \
    '[ $RANK = 0 ] || exit 3; exec sleep 1000'
is "$status" 3 "--exit_code cause: the failed worker's"
run "$CRUN" --exit-code=cause sh -c 'kill -9 $$'
is "$status" 137 "--exit_code cause: 128 and its signal"
run "$CRUN" --exit_code cause --max_restarts 2 sh -c \
    'exit $((TORCHELASTIC_RESTART_COUNT + 10))'
is "$status" 12 "--exit_code cause: of the last round"
run "$CRUN" --exit_code torchrun sh -c 'exit 3'
is "$status" 1 "--exit_code torchrun: 1"
run "$CRUN" --exit_code cause true
is "$status" 0 "--exit_code cause: 0 after a success"
for sig in INT:130 TERM:143; do
    fresh
    background --exit_code cause sh -c \
        'trap "exit 0" INT TERM; touch up.0; while :; do sleep 0.02; done'
    wait_for 20 test -e up.0
    kill -${sig%:*} $job
    wait $job
    is "$?" "${sig#*:}" "SIG-01 --exit_code cause: SIG${sig%:*} to crun"
done

# --- which signals ---
counting='trap "echo \$RANK >>got.usr1" USR1
    trap "echo \$RANK >>got.usr2" USR2
    touch up.$RANK; until [ -e go ]; do sleep 0.02; done'
fresh
background --nproc_per_node=2 sh -c "$counting"
wait_for 20 test -e up.0 -a -e up.1
kill -USR1 $job
lines() { [[ -e $1 && $(wc -l <"$1") -ge $2 ]]; }
wait_for 10 lines got.usr1 2
ok $? "SIGUSR1 to crun is passed on to the workers"
kill -USR1 $job
wait_for 10 lines got.usr1 4
ok $? "and again, each time"
kill -USR2 $job
wait_for 10 lines got.usr2 2
ok $? "SIGUSR2 too"
touch go
wait $job
is "$?" 0 "and the job goes on to its end"
is "$(sort got.usr1 | uniq -c | paste -sd' ' | tr -s ' ')" " 2 0 2 1" \
    "each worker had each signal once"

fresh
background --nproc_per_node=2 --signals_to_handle SIGUSR1,SIGTERM sh -c \
    'trap "echo \$RANK >>got.usr1; exit 0" USR1
    touch up.$RANK; while :; do sleep 0.02; done'
wait_for 20 test -e up.0 -a -e up.1
kill -USR1 $job
wait $job
is "$? $(sort got.usr1 | paste -sd,)" "1 0,1" \
    "--signals_to_handle SIGUSR1: it stops the job"
like "$(cat err)" 'stopped by SIGUSR1 sent to crun' "and is named"

fresh
background --signals_to_handle SIGUSR1 sh -c \
    'echo $$ >pid.0; touch up.0; exec sleep 1000'
wait_for 20 test -e up.0
kill -TERM $job
{ wait $job; code=$?; } 2>/dev/null
is "$code" 143 "a signal that is not in the list has its default action"
gone() { [[ ! -e /proc/$(cat pid.0) ]]; }
wait_for 5 gone
ok $? "and even so no worker is left"

# --- a stop at the moment a restart is due ---
# The agent is frozen while its delay runs out, and finds the end of the delay
# and the stop in one turn. The pipe that nobody reads keeps it from ending
# before it could begin a round.
bad=0
# has_passed_on FRONT: it has taken its signals and waits for the next one.
has_passed_on()
{
    [[ $(grep -Ec '^(State:.S|S..Pnd:.0*$)' "/proc/$1/status") -eq 3 ]]
}
for _ in 1 2 3; do
    fresh
    mkfifo console
    "$CRUN" --max_restarts=1 --restart_delay=1 sh -c '
        echo x >>starts; [ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0
        seq 100000; exit 3' >console 2>err &
    front=$!
    exec 6<console
    until agent=$(children_of $front) && [[ -n $agent ]]; do sleep 0.01; done
    until grep -q 'restart 1 of 1' err; do sleep 0.01; done
    kill -STOP $agent
    sleep 1.2
    kill -TERM $front
    wait_for 20 has_passed_on $front
    kill -CONT $agent
    cat <&6 >got.console
    wait $front
    [[ $? -eq 1 && $(wc -l <starts) -eq 1 && $(wc -l <got.console) -eq 100000 ]] ||
        ((++bad))
    exec 6<&-
    rm console
done
is "$bad" 0 "a stop that comes with the end of the delay: no further round"

# --- a stop while the last output is written ---
fresh
mkfifo console
"$CRUN" sh -c 'seq 100000; touch done.0' >console 2>err &
front=$!
exec 6<console
until [ -e done.0 ]; do sleep 0.01; done
agent=$(children_of $front)
until [ -z "$(children_of $agent)" ]; do sleep 0.01; done
kill -TERM $front
cat <&6 >got.console
wait $front
is "$(wc -l <got.console)" 100000 "a stop does not cut output that is read"
exec 6<&-
