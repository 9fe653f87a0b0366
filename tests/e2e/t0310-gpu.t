#!/bin/bash
# Operations on GPUs that hang or lose a rank, under crun: what the workers say,
# and what crun's report says. CUDA and NCCL are test doubles.
. "${BASH_SOURCE[0]%/*}/tap.sh"
. "${BASH_SOURCE[0]%/*}/agents.sh"
plan 16

cd "$TMP" || exit 255
unset -v CUDA_VISIBLE_DEVICES
for name in $(compgen -e NCCL_); do unset -v "$name"; done
FAKES=$BUILD/fake_nccl
export OMP_NUM_THREADS=1 FAKE_NCCL_DIR=$TMP FAKE_CUDA_DEVICES=4
STUCK=$HELPERS/gpu_stuck
# For coll_init(), too, which may take its time on a busy machine.
limit=$((2 + CK_TIMEOUT_MULTIPLIER / 2))

# stuck OPTION... -- HOW RANK: crun with workers that find the doubles.
stuck()
{
    local options=()
    while [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    shift
    run "$CRUN" "${options[@]}" \
        env LD_LIBRARY_PATH="$FAKES" "$STUCK" "$@"
}

# --- A rank that never comes --------------------------------------------------

COLL_TIMEOUT=$limit stuck "$HANG_GRACE" --nproc_per_node=4 \
    --report report.json -- sleep 2
is "$status" 1 "a time-out on the device fails the job"
like "$out" "^rank 0: timed out after $limit\.0 s in all_reduce #4 on GPU 0 waiting for rank 2$" \
    "who waits says in what, on which GPU and for whom"
is "$(grep -c 'all_reduce #4 on GPU [013] waiting for rank 2$' <<<"$out")" 3 \
    "and so do the others"
never='collective: rank 2 never entered all_reduce #4 \(1024 float32 sum, default group\), in which ranks 0-1,3 waited for [0-9.]+ s; its last call was all_reduce #3$'
like "$err" "$never" "the report names who never came, and to what"
like "$(tr -d '\n' <report.json)" \
    '"collective": \[ +"rank 2 never entered all_reduce #4 .*" +\],' \
    "so does the report for programs"

# --- The device hangs ---------------------------------------------------------

FAKE_NCCL_FAULT=op_hang:1:4 COLL_TIMEOUT=$limit stuck "$GRACE" --nproc_per_node=3 -- \
    hang 9
like "$status $out" "all_reduce #4 on GPU [012]; so did all other ranks: " \
    "what all ranks have come to and does not end is nobody's fault"
like "$err" "collective: .*all_reduce #4" "the report has it, too"

FAKE_NCCL_FAULT=op_hang:0:4,abort_hang:0,abort_hang:1 COLL_TIMEOUT=$limit \
    stuck "$GRACE" --nproc_per_node=2 -- hang 9
like "$err" 'exitcode +: 3 ' "an abort that hangs keeps no worker from its end"
unlike "$err" 'signal' "nor does it end by a signal"
FAKE_NCCL_FAULT=destroy_hang stuck "$GRACE" --nproc_per_node=2 -- hang 9
is "$status" 0 "nor does a communicator that cannot be left"

# --- A rank that dies ---------------------------------------------------------

# Long before the time-out, which is half an hour.
stuck "$GRACE" --nproc_per_node=4 -- kill 2
is "$(grep -Ec '^rank [013]: all_reduce #4: rank 2 \(local rank 2 on host .*\) failed: .*SIGKILL.*, told by the launcher$' \
    <<<"$out")" 3 "survivors of a rank that dies have it from the launcher"
port=$(free_port)
for node in 0 1; do
    agent $node "$GRACE" --master_addr 127.0.0.1 --master_port "$port" \
        --nnodes 2 --node_rank $node --nproc_per_node 2 \
        env LD_LIBRARY_PATH="$FAKES" NCCL_HOSTID=$node \
        CUDA_VISIBLE_DEVICES=$((2 * node)),$((2 * node + 1)) "$STUCK" kill 3
done
ends 0 1
is "$codes" "1 1" "a rank that dies fails the job of two nodes"
is "$(cat 0.out 1.out | grep -Ec '^rank [012]: all_reduce #4: rank 3 .* failed: .*SIGKILL.*, told by the launcher$')" \
    3 "and the survivors of both have it from their launchers"

# --- Who does not need any of it ----------------------------------------------

LD_LIBRARY_PATH=$FAKES FAKE_CUDA_VERSION=1 run "$CRUN" --nproc_per_node=2 \
    "$EXAMPLES/hello"
is "$status" 0 "a program of the CPU does not care for CUDA"
libraries=$(ldd "$BUILD/libcollective.so" "$EXAMPLES/hello")
unlike "$libraries" 'cuda|nccl' "the library is linked to no library of GPUs"
unlike "$(nm -D --undefined-only "$BUILD/libcollective.so")" \
    ' (cu[A-Z]|cuda|nccl)' "nor wants a symbol of theirs"
