#!/bin/bash
# Faults that users of NCCL meet, with the doubles of CUDA and NCCL.
. "${BASH_SOURCE%/*}/tap.sh"
plan 7

cd "$TMP" || exit 255
export OMP_NUM_THREADS=1 COLL_BACKEND=nccl FAKE_CUDA_DEVICES=2 \
    FAKE_NCCL_DIR=$TMP LD_LIBRARY_PATH=$BUILD/fake_nccl
# Blocks of the two ranks tell who is who.
HELLO=$EXAMPLES/hello

run "$CRUN" --nproc_per_node=2 "$HELLO"
is "$status" 0 "hello through NCCL" || diag "$err"

NCCL_SOCKET_IFNAME=nosuch FAKE_NCCL_FAULT=init_fail:0::2,init_fail:1::2 \
    run "$CRUN" "$GRACE" --nproc_per_node=2 "$HELLO"
is "$status" 1 "NCL-02 an interface that does not exist"
like "$err" 'NCCL says: .*; NCCL_DEBUG=WARN says more; NCCL_SOCKET_IFNAME=nosuch matches no interface; there are: .*lo \(' \
    "NCL-02 NCCL's words, how to get more, and the interfaces"

COLL_CHECK=1 run "$CRUN" --nproc_per_node=2 "$HELLO"
is "$status" 0 "NCL-05 the ranks are in order" || diag "$err"
COLL_CHECK=1 FAKE_NCCL_FAULT=order:1 run "$CRUN" "$GRACE" --nproc_per_node=2 \
    "$HELLO"
is "$status" 1 "NCL-05 and if not"
like "$err" 'block 0 of an all_gather on GPU 1 holds what rank 1 has' \
    "NCL-05 it is said"

FAKE_CUDA_DEVICES=1 run "$CRUN" "$GRACE" --nproc_per_node=2 "$HELLO"
like "$status $err" '^1|ranks 0 and 1 on host .* share the GPU with bus id 0000:' \
    "NCL-01 ranks that share a device"
