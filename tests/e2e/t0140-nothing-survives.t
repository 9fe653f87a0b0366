#!/bin/bash
# Whatever is killed, no process of the job is left. The workers ignore
# signals, leave their sessions, double-fork and scrub their environment.
. "${BASH_SOURCE%/*}/tap.sh"
rounds=${ROUNDS:-10}
plan 9

cd "$TMP" || exit 255
export OMP_NUM_THREADS=1

# alive: which pids of the file still exist. A zombie that some stranger has
# not reaped yet is no running process.
alive()
{
    local pid state
    sort -u pids 2>/dev/null | while read -r pid; do
        state=$(sed 's/.*) //; s/ .*//' "/proc/$pid/stat" 2>/dev/null) ||
            continue
        [[ -z $state || $state == Z ]] || echo "$pid"
    done
}
none_alive() { [[ -z $(alive) ]]; }
settled() { [[ -e pids && $(wc -l <pids) -ge $1 ]]; }
agent_of() { tr ' ' '\n' <"/proc/$1/task/$1/children" | head -n 1; }

# killed WHO SETTLED: starts a job, kills its front or its agent when SETTLED
# processes have told their pid, and counts what is left.
killed()
{
    rm -f pids
    "$CRUN" --nproc_per_node=2 "$HELPERS/hostile" pids 2>/dev/null &
    local job=$! agent=
    wait_for 20 settled "$2" || { diag "never settled"; ((++left)); }
    wait_for 20 eval 'agent=$(agent_of $job); [[ -n $agent ]]'
    if [[ $1 == front ]]; then
        kill -9 "$job"
    else
        kill -9 "$agent"
    fi
    { wait "$job"; code=$?; } 2>/dev/null
    wait_for 5 none_alive || {
        ((++left))
        diag "left after the $1 was killed: $(alive | tr '\n' ' ')"
        alive | xargs -r kill -9
    }
}

for who in front agent; do
    left=0
    for ((i = 0; i < rounds; i++)); do
        killed $who $((1 + i % 8))
    done
    is "$left" 0 "$who killed $rounds times: nothing is left"
done
is "$code" 1 "agent killed: crun ends with status 1"

rm -f pids
run "$CRUN" --nproc_per_node=2 "$HELPERS/hostile" pids exit 0
is "$status" 0 "EXIT-02 leftovers of successful workers are no failure"
none_alive
ok $? "PORT-04 and are gone when crun has returned"

rm -f pids
run "$CRUN" --nproc_per_node=2 "$HELPERS/hostile" pids exit 3
is "$status" 1 "failed workers with leftovers: status 1"
none_alive
ok $? "leftovers of failed workers are gone when crun has returned"

# As the first process of a container crun reaps everything.
if unshare -Urfp --mount-proc true 2>/dev/null ||
    unshare -fp --mount-proc true 2>/dev/null; then
    ns=(unshare -fp --mount-proc)
    [[ $EUID -eq 0 ]] || ns=(unshare -Urfp --mount-proc)
    run "${ns[@]}" "$CRUN" --nproc_per_node=2 sh -c '
        for i in 1 2 3 4 5 6 7 8 9 10; do (sleep 0.01 &); done
        [ $RANK = 0 ] || exit 0
        sleep 1; grep -l "^State:.Z" /proc/[0-9]*/status; true'
    is "$status" 0 "CON-04 crun as process 1"
    is "$out" "" "CON-04 leaves no zombie"
else
    skip 2 "no namespaces for processes here"
fi
