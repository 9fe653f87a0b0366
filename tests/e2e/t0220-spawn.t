#!/bin/bash
# coll_spawn(): programs that start their own workers, alone and under crun.
. "${BASH_SOURCE%/*}/tap.sh"
plan 17

cd "$TMP" || exit 255
spawn=$HELPERS/spawn_check

run "$EXAMPLES/spawn" 3
is "$status $out" "0 pi is about 3.141593, say 3 workers" "the example runs"
run "$spawn" sum 8
is "$status $out" "0 sum 28 of 8" "workers meet without a launcher"

# Each worker of the launcher is a caller with workers of its own.
run "$CRUN" --nproc_per_node=2 "$spawn" sum 3
is "$status" 0 "a worker of crun may spawn"
is "$out" "sum 3 of 3
sum 3 of 3" "workers that have nothing to do with those of crun"

run "$spawn" die 4
is "$status" 1 "a worker that dies is a failure"
like "$err" '^coll_spawn: rank 3 \(pid [0-9]+\) failed first: signal 11 \(SIGSEGV\)' \
    "that is told"
run "$CRUN" --nproc_per_node=2 "$spawn" die 2
is "$status" 1 "under crun, too"
like "$err" 'rank 1 \(pid [0-9]+\) failed first: signal 11 \(SIGSEGV\)' \
    "which shows it"

# Every process of a job has the fifo open: its end is theirs.
mkfifo alive
are_ready() { [[ $(grep -c ready hold.out) -eq $1 ]]; }

# ends SIGNAL NREADY TITLE COMMAND...: a job of which the first process gets
# the signal when all are ready.
ends()
{
    local sig=$1 count=$2 title=$3 pid reader rc
    shift 3
    : >hold.out
    timeout 60 cat alive &
    reader=$!
    exec 4>alive # waits for the reader
    "$@" >hold.out 2>hold.err 3>&4 4>&- &
    pid=$!
    exec 4>&-
    wait_for 20 are_ready "$count"
    ok $? "$title: ready"
    {
        kill -s "$sig" "$pid"
        wait "$reader"
        rc=$?
        wait "$pid"
    } 2>/dev/null
    ok $rc "$title: nothing survives"
}

ends KILL 3 "a caller that is killed" "$spawn" hold 3
# What bash runs in the background ignores SIGINT.
ends INT 2 "Ctrl-C" env --default-signal=INT "$spawn" hold 2
ends KILL 4 "a launcher that is killed" "$CRUN" --nproc_per_node=2 \
    "$spawn" hold 2

ln -s "$FAKES/fake_cuda.so" libcuda.so.1
cuda() { run env LD_LIBRARY_PATH="$TMP" FAKE_CUDA_DEVICES=1 "$spawn" cuda 2; }
cuda
is "$out" "sum 1 of 2" "CUDA that is only loaded does not matter"
is "$status" 1 "CUDA that is initialized does"
like "$err" '^coll_spawn: CUDA is initialized in this process' "and is told"
