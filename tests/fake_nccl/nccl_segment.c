/*
 * A test double, see nccl_fake.h: the file that the ranks of a communicator
 * share, and waiting in it. Whoever comes first makes it, and whoever comes
 * last takes its name away.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/fake_nccl/nccl_fake.h"

static void path_of(const struct nccl_comm *comm, char *out, size_t size)
{
    const char *folder = getenv("FAKE_NCCL_DIR");

    if (folder == NULL)
        folder = getenv("TMPDIR");
    snprintf(out, size, "%s/%s", folder != NULL ? folder : "/tmp", comm->name);
}

nccl_result_t fake_segment_open(struct nccl_comm *comm)
{
    char path[4096];
    void *memory = MAP_FAILED;
    int fd;

    path_of(comm, path, sizeof(path));
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0 && ftruncate(fd, sizeof(struct fake_segment)) == 0)
        memory = mmap(NULL, sizeof(struct fake_segment), PROT_READ | PROT_WRITE,
            MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        fake_error(
            comm, COLL_NCCL_SYSTEM_ERROR, "%s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    if (memory == MAP_FAILED)
        return COLL_NCCL_SYSTEM_ERROR;
    comm->segment = memory;
    if (atomic_exchange(&comm->segment->is_taken[comm->rank], 1) != 0)
        return fake_error(comm, COLL_NCCL_INVALID_USAGE,
            "there are two ranks %d in %s", comm->rank, comm->name);
    if (atomic_fetch_add(&comm->segment->arrived, 1) + 1 ==
        (uint32_t)comm->size)
        unlink(path);
    return COLL_NCCL_SUCCESS;
}

void fake_segment_close(struct nccl_comm *comm)
{
    if (atomic_load(&comm->segment) != NULL)
        munmap(comm->segment, sizeof(struct fake_segment));
    comm->segment = NULL;
}

bool fake_must_stop(const struct nccl_comm *comm, enum fake_lane lane)
{
    struct nccl_comm *child = atomic_load(&comm->child);

    if (lane == FAKE_MEETING && child != NULL &&
        atomic_load(&child->is_aborted))
        return true;
    return atomic_load(&comm->is_aborted) ||
           (lane == FAKE_STREAM && atomic_load(&comm->is_revoked));
}

uint32_t fake_bell(const struct nccl_comm *comm)
{
    return atomic_load(&comm->segment->bell);
}

void fake_ring(struct nccl_comm *comm)
{
    struct fake_segment *segment = atomic_load(&comm->segment);

    if (segment == NULL)
        return; /* nobody waits in it yet */
    atomic_fetch_add(&segment->bell, 1);
    syscall(SYS_futex, &segment->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void fake_listen(struct nccl_comm *comm, uint32_t seen)
{
    syscall(SYS_futex, &comm->segment->bell, FUTEX_WAIT, seen, NULL, NULL, 0);
}

void fake_hang(struct nccl_comm *comm, enum fake_lane lane)
{
    for (;;) {
        uint32_t seen = fake_bell(comm);

        if (fake_must_stop(comm, lane))
            return;
        fake_listen(comm, seen);
    }
}

static bool all_have_come(
    const struct nccl_comm *comm, enum fake_lane lane, uint32_t tick)
{
    for (int i = 0; i < comm->size; i++) {
        uint32_t its = atomic_load(&comm->segment->slots[lane][i].tick);

        if ((int32_t)(its - tick) < 0)
            return false;
    }
    return true;
}

bool fake_show(struct nccl_comm *comm, enum fake_lane lane,
    const struct fake_call *call, const void *data, size_t bytes)
{
    struct fake_slot *slot = &comm->segment->slots[lane][comm->rank];
    uint32_t tick = ++comm->ticks[lane];

    if (call != NULL)
        slot->call = *call;
    if (bytes > 0)
        memcpy(slot->data, data, bytes);
    atomic_store(&slot->tick, tick);
    fake_ring(comm);
    for (;;) {
        uint32_t seen = fake_bell(comm);

        if (fake_must_stop(comm, lane))
            return false;
        if (all_have_come(comm, lane, tick))
            return true;
        fake_listen(comm, seen);
    }
}

const struct fake_slot *fake_slot_of(
    const struct nccl_comm *comm, enum fake_lane lane, int rank)
{
    return &comm->segment->slots[lane][rank];
}
