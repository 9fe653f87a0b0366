#!/bin/bash
# What crun tells NCCL by the environment, and GPUs that workers share. The
# devices are those of fake drivers.
. "${BASH_SOURCE%/*}/tap.sh"
plan 31

cd "$TMP" || exit 255
export OMP_NUM_THREADS=1
for name in $(compgen -e NCCL_) CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER \
    HIP_VISIBLE_DEVICES; do
    unset -v "$name"
done
mkdir gpus
ln -s "$FAKES/fake_nvml.so" gpus/libnvidia-ml.so.1

# on GPUS OPTION...: workers say what they see, on a machine with so many.
on()
{
    local gpus='' i
    for ((i = 0; i < $1; i++)); do gpus+='- '; done
    shift
    # shellcheck disable=SC2016
    run env LD_LIBRARY_PATH="$TMP/gpus" FAKE_NVML_GPUS="$gpus" "$CRUN" "$@" \
        sh -c 'echo $RANK $LOCAL_RANK ${CUDA_VISIBLE_DEVICES-all} \
            ${COLL_SHARE_GPU-none}'
    out=$(sort -n <<<"$out")
}

# --- Sharing ------------------------------------------------------------------

on 2 --nproc_per_node=gpu --share_gpu=2
is "$status $out" "0 0 0 all 2
1 1 all 2
2 2 all 2
3 3 all 2" "--share_gpu: as many workers per device"
on 2 --nproc_per_node=auto --share-gpu 3
is "$(wc -l <<<"$out")" 6 "with auto, too"
on 2 --nproc_per_node=gpu
is "$out" "0 0 all none
1 1 all none" "without it one each"
on 2 --nproc_per_node=gpu --share_gpu=1
is "$out" "0 0 all none
1 1 all none" "which is what 1 means"
PET_SHARE_GPU=2 on 1 --nproc_per_node=gpu
is "$(wc -l <<<"$out")" 2 "PET_SHARE_GPU is the same"
CUDA_VISIBLE_DEVICES=5,3 on 8 --nproc_per_node=gpu --share_gpu=2 \
    --virtual_local_rank
is "$out" "0 0 5 2
1 0 5 2
2 0 3 2
3 0 3 2" "--virtual_local_rank shows each worker the device that it shares"
CUDA_VISIBLE_DEVICES=5,3 on 8 --nproc_per_node=5 --share_gpu=2
like "$status $err" \
    '^1.*--share_gpu: CUDA_VISIBLE_DEVICES=5,3 has no entry for local rank 4' \
    "more workers than can share what is visible are an error"
on 2 --nproc_per_node=4 --share_gpu=65
like "$status ${err//$'\n'/ }" "^2 .*--share_gpu='65': .*from 1 to 64" \
    "a device is shared by no more than 64"
if taskset -c 0 true 2>/dev/null; then
    export HWLOC_SYNTHETIC='numa:1 core:1 pu:1'
    run taskset -c 0 env LD_LIBRARY_PATH="$TMP/gpus" FAKE_NVML_GPUS='- -' \
        FAKE_NVML_BUS=ffff:00:1f "$CRUN" --nproc_per_node=4 --share_gpu=2 \
        --numa_binding=node --report_bindings true
    is "$status $(grep -o 'rank [0-9].*GPU [0-9]' <<<"$err" |
        sed 's/:.*GPU/ GPU/')" "0 rank 0 GPU 0
rank 1 GPU 0
rank 2 GPU 1
rank 3 GPU 1" "--numa_binding goes by the device that is shared" || diag "$err"
    run taskset -c 0 env LD_LIBRARY_PATH="$TMP/gpus" FAKE_NVML_GPUS='- -' \
        "$CRUN" --nproc_per_node=5 --share_gpu=2 --numa_binding=node true
    like "$status $err" '^1.*there are 5 workers, 2 to a device, but 2 dev' \
        "and needs enough of them"
    unset -v HWLOC_SYNTHETIC
else
    skip 2 "CPU 0 may not be used"
fi

# Slurm's binding of one GPU to each task, with a crun in each or over all.
CUDA_VISIBLE_DEVICES=0 on 4 --nproc_per_node=gpu
is "$out" "0 0 0 none" "SLU-05 one visible device is one worker"
# shellcheck disable=SC2016
run "$CRUN" --nproc_per_node=4 sh -c 'CUDA_VISIBLE_DEVICES=0 exec sh -c \
    "echo \$LOCAL_RANK \$CUDA_VISIBLE_DEVICES"'
is "$(sort <<<"$out")" "0 0
1 0
2 0
3 0" "SLU-05 what a worker's own launcher sets is the worker's"
CUDA_VISIBLE_DEVICES=0,1 on 4 --nproc_per_node=4 --virtual_local_rank
like "$status $err" '^1.*CUDA_VISIBLE_DEVICES=0,1 has no entry for local rank' \
    "SLU-05 two devices for four are an error, if crun hands them out"
CUDA_VISIBLE_DEVICES=0,1 on 4 --nproc_per_node=4 --virtual_local_rank \
    --share_gpu 2
is "$(cut -d' ' -f3 <<<"$out" | tr '\n' ' ')" "0 0 1 1 " \
    "SLU-05 unless they are to be shared"

# --- What NCCL is told --------------------------------------------------------

# nccl OPTION...: the variables of NCCL that workers have, and their ranks.
nccl()
{
    # shellcheck disable=SC2016
    run "$CRUN" "$@" sh -c 'env | sed -n "s/^NCCL_/$RANK &/p"'
    out=$(sort <<<"$out")
}

NCCL_ALGO=Ring NCCL_SOCKET_IFNAME='^docker,lo' NCCL_MADE_UP='a  b' nccl \
    --nproc_per_node=2
is "$(grep -v RAS_ADDR <<<"$out")" "0 NCCL_ALGO=Ring
0 NCCL_MADE_UP=a  b
0 NCCL_SOCKET_IFNAME=^docker,lo
1 NCCL_ALGO=Ring
1 NCCL_MADE_UP=a  b
1 NCCL_SOCKET_IFNAME=^docker,lo" "NCL-02 variables of NCCL pass through"
nccl --nproc_per_node=2 --share_gpu 2
is "$(grep -v RAS_ADDR <<<"$out")" "0 NCCL_HOSTID=crun-rank-0
0 NCCL_MULTI_RANK_GPU_ENABLE=1
0 NCCL_NET=Socket
1 NCCL_HOSTID=crun-rank-1
1 NCCL_MULTI_RANK_GPU_ENABLE=1
1 NCCL_NET=Socket" "those who share are told how"
NCCL_MULTI_RANK_GPU_ENABLE=1 nccl --nproc_per_node=1 --share_gpu 2
is "$(grep -v RAS_ADDR <<<"$out")" "0 NCCL_MULTI_RANK_GPU_ENABLE=1" \
    "unless the user has told it"
run "$CRUN" --dry_run --nproc_per_node=2 --share_gpu 2 true
like "$out" '^share_gpu: 2$' "--dry_run has the option"
is "$(grep -c '^#   COLL_SHARE_GPU=2$' <<<"$out")" 2 "and what comes of it"
like "$out" "^#   NCCL_RAS_ADDR='127.0.0.1:<free port>'\$" \
    "but takes no port"
NCCL_DEBUG=INFO nccl --nproc_per_node=2
is "$(grep TIMESTAMP <<<"$out")" \
    "0 NCCL_DEBUG_TIMESTAMP_FORMAT=[rank 0] [%F %T] 
0 NCCL_DEBUG_TIMESTAMP_LEVELS=ALL
1 NCCL_DEBUG_TIMESTAMP_FORMAT=[rank 1] [%F %T] 
1 NCCL_DEBUG_TIMESTAMP_LEVELS=ALL" "with NCCL_DEBUG its lines have the rank"
NCCL_DEBUG=INFO NCCL_DEBUG_TIMESTAMP_FORMAT='' nccl --nproc_per_node=1
is "$(grep TIMESTAMP <<<"$out")" "0 NCCL_DEBUG_TIMESTAMP_FORMAT=" \
    "unless the user has set what is in front of them"

# The real one.
library=
for folder in ${NCCL_HOME:+"$NCCL_HOME"} ${CUDA_HOME:+"$CUDA_HOME"} \
    /usr/local/cuda /usr/local/cuda-* /usr/local /usr; do
    for file in "$folder"/lib{64,,/*-linux-gnu}/libnccl.so.2; do
        [[ -n $library || ! -e $file ]] || library=$file
    done
done
if [[ -n $library && ${FLAVOR:-release} == release ]]; then
    NCCL_DEBUG=INFO run "$CRUN" --nproc_per_node=3 "$HELPERS/nccl_id" "$library"
    for rank in 0 1 2; do
        like "$out" "^\\[rank $rank\\] \\[.* NCCL INFO Bootstrap" \
            "NCCL prints rank $rank" || diag "$err"
    done
else
    skip 3 "no NCCL here that can be used"
fi

# --- Its RAS ------------------------------------------------------------------

run "$CRUN" --nproc_per_node=4 --share_gpu 4 "$HELPERS/ras_listen"
is "$status $(grep -c listening <<<"$out")" "0 4" \
    "all workers can listen at the port for RAS" || diag "$err"
# Two jobs at a time, and each of them in two rounds.
mkfifo go
exec 3<>go # so that nobody waits for the other end of it
# shellcheck disable=SC2016
script='echo $NCCL_RAS_ADDR; [ $TORCHELASTIC_RESTART_COUNT = 1 ]'
: >first
"$CRUN" --share_gpu 2 --max_restarts 1 sh -c "$script && read _ <go" >first \
    2>first.err &
first=$!
# shellcheck disable=SC2016
wait_for 10 sh -c '[ "$(wc -l <first)" -eq 2 ]'
run "$CRUN" --share_gpu 2 --max_restarts 1 sh -c "$script"
echo >&3
wait "$first"
is "$? $status" "0 0" "two jobs with restarts"
is "$(sort -u first | wc -l) $(sort -u <<<"$out" | wc -l)" "1 1" \
    "each has one port for RAS in all its rounds"
is "$(cat first - <<<"$out" | sort -u | grep -c '^127.0.0.1:[1-9][0-9]*$')" 2 \
    "but not that of the other"
NCCL_RAS_ADDR=localhost:28028 nccl --share_gpu 2
like "$out" 'RAS_ADDR=localhost:28028' "an address of the user's stays"
NCCL_RAS_ENABLE=0 nccl --share_gpu 2
unlike "$out" RAS_ADDR "and without RAS there is none"
