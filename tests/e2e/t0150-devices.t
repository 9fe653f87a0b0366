#!/bin/bash
# --nproc_per_node cpu, gpu and auto. The GPUs are those of fake drivers.
. "${BASH_SOURCE%/*}/tap.sh"
plan 37

cd "$TMP" || exit 255
unset -v OMP_NUM_THREADS # nproc heeds it, too
unset -v CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER HIP_VISIBLE_DEVICES
mkdir cuda nvml both none
for folder in cuda both; do
    ln -s "$FAKES/fake_cuda.so" "$folder/libcuda.so.1"
done
for folder in nvml both; do
    ln -s "$FAKES/fake_nvml.so" "$folder/libnvidia-ml.so.1"
done
# What a machine may really have is not found: no library is empty.
for folder in cuda nvml none; do
    for name in libcuda.so.1 libnvidia-ml.so.1 libamdhip64.so \
        libamdhip64.so.{5,6,7}; do
        [[ -e $folder/$name ]] || touch "$folder/$name"
    done
done

count() { run "$CRUN" --nproc_per_node="$1" sh -c 'echo $WORLD_SIZE'; }

# with FOLDER COUNT [NAME=VALUE...]: the drivers are those of FOLDER.
with()
{
    local folder=$1 nproc=$2
    shift 2
    run env LD_LIBRARY_PATH="$TMP/$folder" "$@" "$CRUN" \
        --nproc_per_node="$nproc" sh -c 'echo $WORLD_SIZE'
    out=$(sort -u <<<"$out")
}

count cpu
is "$(sort -u <<<"$out")" "$(nproc)" "cpu: as nproc counts"
run taskset -c "$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')" \
    "$CRUN" --nproc_per_node=cpu sh -c 'echo $WORLD_SIZE'
is "$out" 1 "SLU-06 cpu: one allowed CPU, one worker"

# The CUDA driver alone.
with cuda gpu FAKE_CUDA_DEVICES=3
is "$status $out" "0 3" "gpu: one worker per device"
with cuda auto FAKE_CUDA_DEVICES=2
is "$out" 2 "auto: the devices, where there are any"
with cuda auto FAKE_CUDA_DEVICES=0
is "$out" "$(nproc)" "auto: the CPUs, where there are none"
unlike "$err" 'counts CPUs' "without a word"
with cuda gpu FAKE_CUDA_DEVICES=0 CUDA_VISIBLE_DEVICES=7
is "$status" 1 "gpu without a device is an error"
like "$err" 'CUDA driver shows no device \(error 100, CUDA_VISIBLE_DEVICES=7' \
    "and says what the driver said"
like "$err" 'libnvidia-ml.so.1: ' "and what NVML said"
with cuda gpu FAKE_CUDA_DEVICES=abort
is "$status" 1 "a driver that crashes is an error"
like "$err" 'ended the process that asked' "and is told"
with cuda auto FAKE_CUDA_DEVICES=abort
is "$status $out" "0 $(nproc)" "auto counts CPUs then"
like "$err" 'auto counts CPUs: .* ended the process that asked' "and warns"
with none gpu
is "$status" 1 "gpu without a driver is an error"
like "$err" 'no CUDA driver: .*libcuda.so.1.*no ROCm driver: .*libamdhip64' \
    "that names what was looked for"
with none auto
is "$status $out" "0 $(nproc)" "auto: the CPUs, where there is no driver"
count xpu
is "$status" 2 "xpu is refused"
like "$err" '=xpu: crun does not count .* give their number' "with advice"

# NVML: the CUDA driver is not asked where it would only take its time.
nvml() { with both gpu FAKE_CUDA_DEVICES=abort "$@"; }
nvml FAKE_NVML_GPUS='- - - -'
is "$status $out" "0 4" "NVML counts without the CUDA driver"
nvml FAKE_NVML_GPUS='- - - -' CUDA_VISIBLE_DEVICES=3,1
is "$out" 2 "and only what CUDA_VISIBLE_DEVICES leaves"
nvml FAKE_NVML_GPUS='- - - -' CUDA_VISIBLE_DEVICES=0,1,2,9,3
is "$out" 3 "up to the first entry that is none"
nvml FAKE_NVML_GPUS='- - - -' \
    CUDA_VISIBLE_DEVICES=GPU-22222222-2222-2222-2222-222222222222
is "$out" 1 "ENV-03 a UUID is one worker"
nvml FAKE_NVML_GPUS='- - - -' CUDA_VISIBLE_DEVICES=GPU-3,GPU-11111111
is "$out" 2 "ENV-03 and so is a shortened one"
nvml FAKE_NVML_GPUS='- x - x'
is "$out" 2 "GPUs that a scheduler has given to others do not count"
nvml FAKE_NVML_GPUS='- - - -' CUDA_VISIBLE_DEVICES=
is "$status" 1 "an empty CUDA_VISIBLE_DEVICES leaves none"
like "$err" 'NVML shows 4 GPUs, of which CUDA_VISIBLE_DEVICES= leaves none' \
    "which is told"

# Where rules differ between drivers, the driver itself is asked.
with both gpu FAKE_CUDA_DEVICES=1 FAKE_NVML_GPUS='m -'
is "$out" 1 "ENV-03 MIG devices are counted by the CUDA driver"
with both gpu FAKE_CUDA_DEVICES=1 FAKE_NVML_GPUS='- -' \
    CUDA_VISIBLE_DEVICES=GPU-11111111,MIG-aaaa
is "$out" 1 "ENV-03 and so is a list of several kinds"
with nvml gpu FAKE_NVML_GPUS='m m' CUDA_VISIBLE_DEVICES=MIG-aaaa,MIG-bbbb
is "$out" 1 "ENV-03 a process sees one MIG device at most"
with both gpu FAKE_CUDA_DEVICES=3 FAKE_NVML_GPUS='- l -'
is "$out" 3 "the CUDA driver is asked where NVML fails, too"
with nvml gpu FAKE_NVML_INIT=18
is "$status" 1 "and without it that is the error"
like "$err" 'nvmlInit: Driver/library version mismatch \(error 18\)' \
    "in the words of NVML"

# The variable is the worker's.
list=GPU-11112222,MIG-aaaa
run env CUDA_VISIBLE_DEVICES=$list "$CRUN" sh -c 'echo $CUDA_VISIBLE_DEVICES'
is "$out" "$list" "ENV-03 the device list reaches workers as it is"
list=' 1 ,GPU-1,,x'
run env CUDA_VISIBLE_DEVICES="$list" "$CRUN" \
    sh -c 'echo "$CUDA_VISIBLE_DEVICES"'
is "$out" "$list" "ENV-03 whatever it holds"

see() { run "$CRUN" --nproc_per_node=2 --virtual_local_rank "$@"; }
# shellcheck disable=SC2016
script='echo "$RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES"'
see sh -c "$script"
is "$(sort <<<"$out")" "0 0 0
1 0 1" "--virtual_local_rank: a worker sees the device of its rank"
CUDA_VISIBLE_DEVICES=GPU-11112222,MIG-aaaa,5 see sh -c "$script"
is "$(sort <<<"$out")" "0 0 GPU-11112222
1 0 MIG-aaaa" "or its entry of the list"
CUDA_VISIBLE_DEVICES=3 see sh -c "$script"
like "$status $err" 'CUDA_VISIBLE_DEVICES=3 has no entry for local rank 1' \
    "which must be long enough"
