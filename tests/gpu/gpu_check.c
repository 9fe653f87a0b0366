/*
 * gpu_check: libcollective on a GPU, checked against the host.
 *
 *     crun --nproc_per_node=2 --share_gpu 2 gpu_check [PART]
 *
 * PART is one of the following; without it both of the first two.
 *
 *   operations  every operation x type x reduction
 *   streams     messages, streams, memory, groups, CUDA graphs
 *   failures    time-out, abort, a rank that leaves
 *   mismatch    unlike calls, with COLL_CHECK=1
 *   killed      a rank is killed: the job fails, and every other rank prints
 *               what it has seen; for crun --failure_grace=20
 *   versions    prints the device, and the versions of CUDA and NCCL
 *
 * Rank 0 prints a table; what is wrong is said on stderr by the rank that has
 * found it. The exit status is 0 if all was well. scripts/gpu-check runs it.
 */
#include "tests/gpu/failures.h"
#include "tests/gpu/operations.h"
#include "tests/gpu/rig.h"
#include "tests/gpu/streams.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool run_streams(struct rig *rig)
{
    return rig_run(rig, "unsupported", operations_unsupported) &&
           rig_run(rig, "host memory", check_memory_of_host) &&
           rig_run(rig, "send, recv, isend, irecv", check_messages) &&
           rig_run(rig, "batch", check_batch) &&
           rig_run(rig, "a stream of one's own", check_own_stream) &&
           rig_run(rig, "coll_work_wait_stream", check_wait_stream) &&
           rig_run(rig, "order of calls", check_order) &&
           rig_run(rig, "alloc and register", check_alloc_and_register) &&
           rig_run(rig, "options of a communicator", check_options) &&
           rig_run(rig, "split", check_split) &&
           rig_run(rig, "multigpu", check_multigpu) &&
           rig_run(rig, "graph capture", check_capture);
}

static bool run_failures(struct rig *rig)
{
    return rig_run(rig, "time-out", check_timeout) &&
           rig_run(rig, "abort", check_abort) &&
           rig_run(rig, "a rank leaves", check_left);
}

/* One line, of rank 0: "NVIDIA H200; driver for CUDA 13.0; NCCL 2.28.9". */
static bool print_versions(struct rig *rig)
{
    const struct nccl_api *nccl;
    char name[128], version[COLL_NCCL_VERSION_TEXT];
    cu_device_t device;

    if (!rig_cuda_ok(
            rig, rig->cuda->device_get(&device, rig->device), "cuDeviceGet") ||
        !rig_cuda_ok(rig,
            rig->cuda->device_get_name(name, sizeof(name), device),
            "cuDeviceGetName") ||
        !rig_expect(rig, nccl_api_get(&nccl), COLL_OK, "NCCL"))
        return false;
    if (rig->rank == 0)
        printf("%s; driver for CUDA %d.%d; NCCL %s\n", name,
            rig->cuda->version / 1000, rig->cuda->version % 1000 / 10,
            nccl_version_text(nccl->version, version));
    return true;
}

int main(int argc, char **argv)
{
    const char *part = argc > 1 ? argv[1] : "";
    struct rig rig;
    bool good;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 2) {
        fprintf(stderr, "usage: gpu_check [PART]\n");
        return 2;
    }
    good = rig_open(&rig);
    if (good && strcmp(part, "killed") == 0)
        return check_killed(&rig);
    if (good && part[0] == '\0')
        good = operations_run(&rig) && run_streams(&rig);
    else if (good && strcmp(part, "operations") == 0)
        good = operations_run(&rig);
    else if (good && strcmp(part, "streams") == 0)
        good = run_streams(&rig);
    else if (good && strcmp(part, "failures") == 0)
        good = run_failures(&rig);
    else if (good && strcmp(part, "mismatch") == 0)
        good = rig_run(&rig, "mismatch", check_mismatch);
    else if (good && strcmp(part, "versions") == 0)
        good = print_versions(&rig);
    else if (good)
        good = rig_fail(&rig, "there is no part \"%s\"", part);
    rig_close(&rig);
    return good && !rig.has_failed ? EXIT_SUCCESS : EXIT_FAILURE;
}
