#!/bin/bash
# scripts/gpu-check against the doubles of CUDA and NCCL: what it will do on a
# machine with a GPU works, and it notices what does not.
. "${BASH_SOURCE%/*}/tap.sh"
plan 12

export GPU_CHECK_SECONDS=0.2 BUILD
RUN_TIMEOUT=110

run "$ROOT/scripts/gpu-check" --fake
is "$status" 0 "all that needs no GPU is well" || diag "$out$err"
like "$out" '^[0-9]+ passed, 0 failed, [0-9]+ left out' "the last line counts"
for what in all_reduce reduce_scatter_v all_to_all_v all_gather_coalesced \
    batch coll_work_wait_stream; do
    like "$out" "^$what +2  PASS " "$what is checked"
done
like "$out" '^time-out +4  PASS .* waiting for rank 3' \
    "a time-out names the rank"

# The same, with a NCCL that fails in its fifth launch.
mkdir -p "$TMP/build/gpu"
for file in crun fake_nccl gpu/gpu_overhead; do
    ln -s "$BUILD/$file" "$TMP/build/$file"
done
cat >"$TMP/build/gpu/gpu_check" <<EOF
#!/bin/sh
[ "\$1" = versions ] || export FAKE_NCCL_FAULT=op_error:1:5:5
exec "$BUILD/gpu/gpu_check" "\$@"
EOF
chmod +x "$TMP/build/gpu/gpu_check"
BUILD=$TMP/build run "$ROOT/scripts/gpu-check" --fake operations
is "$status" 1 "an error of NCCL is a failure"
# It is noticed in that operation, or in a later one.
like "$out" '^[a-z_]+ +2  FAIL ' "in the line of the operation"
like "$out" '^    \| .*rank 1: [a-z_]+ of .* NCCL says: ncclInvalidUsage' \
    "with the reason below it"
