#!/bin/bash
# --numa_binding and --report_bindings. The machine is one that hwloc makes up;
# the CPUs are real, and so is where workers run.
. "${BASH_SOURCE%/*}/tap.sh"

# The first two CPUs stand for two NUMA nodes.
taskset -c 0,1 true 2>/dev/null || skip_all "CPUs 0 and 1 may not be used"
plan 23

cd "$TMP" || exit 255
unset -v CUDA_DEVICE_ORDER
export HWLOC_SYNTHETIC='numa:2 core:1 pu:1'
export CUDA_VISIBLE_DEVICES='' HIP_VISIBLE_DEVICES='' ROCR_VISIBLE_DEVICES=''

# A worker says on which CPUs it is.
cat >where <<'E2'
#!/bin/bash
sed -n "s/^Cpus_allowed_list:[[:blank:]]*/$RANK: /p" /proc/self/status
E2
chmod +x where

# place NPROC MODE [OPTION...]: with CPUs 0 and 1.
place()
{
    local nproc=$1 mode=$2
    shift 2
    run taskset -c 0,1 "$CRUN" --nproc_per_node="$nproc" \
        --numa_binding="$mode" "$@" ./where
    out=$(sort <<<"$out")
}

place 2 node
is "$status $out" "0 0: 0
1: 1" "node: workers are spread over the NUMA nodes"
place 4 node
is "$out" "0: 0
1: 0
2: 1
3: 1" "evenly and in order"
place 1 node
is "$out" "0: 0" "one is on the first"
HWLOC_SYNTHETIC='pack:1 numa:2 core:1 pu:1' place 2 socket
is "$out" "0: 0-1
1: 0-1" "socket: all of the package"
HWLOC_SYNTHETIC='numa:1 core:2 pu:1' place 2 exclusive
is "$out" "0: 0
1: 1" "exclusive: each has cores of its own"
HWLOC_SYNTHETIC='numa:1 core:1 pu:2' place 2 exclusive
is "$status" 1 "exclusive with fewer cores than workers is an error"
like "$err" '2 workers are on NUMA node 0, where crun may use 1 core' \
    "that has the numbers"
HWLOC_SYNTHETIC='numa:1 l3:2 core:1 pu:1' place 3 core-complex
is "$out" "0: 0
1: 1
2: 0" "core-complex: one cache's cores, in turn"
run taskset -c 1 "$CRUN" --nproc_per_node=2 --numa_binding=node ./where
is "$(sort <<<"$out")" "0: 1
1: 1" "only CPUs of crun's own"
place 2 nowhere
is "$status" 2 "an unknown mode is an error"

run taskset -c 0,1 "$CRUN" --nproc_per_node=2 ./where
is "$(sort <<<"$out")" "0: 0-1
1: 0-1" "without the option nobody is bound"

place 2 node --report_bindings
like "$out$err" 'rank 0: CPUs 0 \(NUMA node 0\)' "--report_bindings tells"
like "$out$err" 'rank 1: CPUs 1 \(NUMA node 1\)' "of each worker"
run taskset -c 0,1 "$CRUN" --nproc_per_node=2 --report_bindings ./where
like "$out$err" 'all ranks: CPUs 0-1 \(not bound\)' "also without a binding"

# GPUs at addresses of this machine's devices, whose node it does not know.
mkdir gpu broken
ln -s "$FAKES/fake_nvml.so" gpu/libnvidia-ml.so.1
touch broken/libhwloc.so.15
export LD_LIBRARY_PATH=$TMP/gpu
unset -v CUDA_VISIBLE_DEVICES
device=
for file in /sys/bus/pci/devices/*/numa_node; do
    [[ -e $file ]] || continue
    address=${file%/numa_node}
    address=${address##*/}
    if [[ $address == *.0 && $(<"$file") == -1 ]]; then
        device=$address
        break
    fi
done
if [[ -n $device ]]; then
    FAKE_NVML_GPUS=- FAKE_NVML_BUS=$device place 1 node --report_bindings
    is "$out" "0: 0" "a device of an unknown node is at node 0"
    like "$out$err" "rank 0: CPUs 0 \(NUMA node 0, GPU 0 at $device\)" \
        "and reported with its address"
    FAKE_NVML_GPUS=- FAKE_NVML_BUS=$device place 2 node --share_gpu 2
    is "$out" "0: 0
1: 0" "those who share it are at that node"
else
    skip 3 "this machine has no PCI device of an unknown node"
fi
FAKE_NVML_GPUS='- -' FAKE_NVML_BUS=ffff:00:1f place 1 node
is "$status" 1 "a device that is not there is an error"
like "$err" 'the NUMA node of GPU 0 \(.*/ffff:00:1f.0/numa_node\)' \
    "with its address"
HWLOC_SYNTHETIC='numa:1 core:2 pu:1' FAKE_NVML_GPUS='- -' \
    FAKE_NVML_BUS=ffff:00:1f place 2 exclusive
is "$out" "0: 0
1: 1" "unless there is but one node"
FAKE_NVML_GPUS='- -' place 3 node
like "$status $err" '^1 .*there are 3 workers, but 2 devices' \
    "every worker needs a device, if there is one"

LD_LIBRARY_PATH=$TMP/broken place 1 node
is "$status" 1 "without hwloc it is an error"
like "$err" 'libhwloc.so.15: .*package libhwloc15' "that says what to install"
