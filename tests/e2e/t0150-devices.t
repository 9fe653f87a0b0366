#!/bin/bash
# --nproc_per_node cpu, gpu and auto. The GPUs are those of a fake driver.
. "${BASH_SOURCE%/*}/tap.sh"
plan 10

cd "$TMP" || exit 255
unset -v OMP_NUM_THREADS # nproc heeds it, too
ln -s "$FAKES/fake_cuda.so" libcuda.so.1

count() { run "$CRUN" --nproc_per_node="$1" sh -c 'echo $WORLD_SIZE'; }
fake()
{
    run env LD_LIBRARY_PATH="$TMP" FAKE_CUDA_DEVICES="$1" "$CRUN" \
        --nproc_per_node="$2" sh -c 'echo $WORLD_SIZE'
}

count cpu
is "$(sort -u <<<"$out")" "$(nproc)" "cpu: as nproc counts"
run taskset -c "$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')" \
    "$CRUN" --nproc_per_node=cpu sh -c 'echo $WORLD_SIZE'
is "$out" 1 "SLU-06 cpu: one allowed CPU, one worker"

fake 3 gpu
is "$status $out" "0 3
3
3" "gpu: one worker per device"
fake 2 auto
is "$out" "2
2" "auto: the devices, where there are any"
fake 0 auto
is "$(sort -u <<<"$out")" "$(nproc)" "auto: the CPUs, where there are none"
fake 0 gpu
is "$status" 2 "gpu without a device is an error"
like "$err" 'shows no device \(error 100' "and says what the driver said"
fake abort gpu
is "$status" 2 "a driver that crashes is an error"
like "$err" 'ended the process that asked' "and is told"

run env CUDA_VISIBLE_DEVICES=GPU-11112222,MIG-aaaa "$CRUN" sh -c \
    'echo $CUDA_VISIBLE_DEVICES'
is "$out" GPU-11112222,MIG-aaaa "ENV-03 the device list reaches workers as it is"
