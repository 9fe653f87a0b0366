/*
 * A test double, see nccl_fake.h: what a launch does when its stream has come
 * to it. Every collective is the same steps, chunk by chunk: some ranks show
 * their data, some take what they need of it, and all say that they have.
 */
#include <string.h>

#include "tests/fake_nccl/nccl_fake.h"

enum taker { ALL, ROOT, OWNER };
enum action { REDUCE, COPY_ROOT, COPY_ALL };

static const struct {
    const char *name;
    bool has_blocks; /* the source has one for each rank, its owner */
    bool is_root_source; /* only the root shows data */
    enum taker taker;
    enum action action;
} shapes[] = {
    [FAKE_ALL_REDUCE] = {"AllReduce", false, false, ALL, REDUCE},
    [FAKE_REDUCE] = {"Reduce", false, false, ROOT, REDUCE},
    [FAKE_BROADCAST] = {"Broadcast", false, true, ALL, COPY_ROOT},
    [FAKE_REDUCE_SCATTER] = {"ReduceScatter", true, false, OWNER, REDUCE},
    [FAKE_ALL_GATHER] = {"AllGather", false, false, ALL, COPY_ALL},
    [FAKE_ALL_TO_ALL] = {"AlltoAll", true, false, OWNER, COPY_ALL},
    [FAKE_GATHER] = {"Gather", false, false, ROOT, COPY_ALL},
    [FAKE_SCATTER] = {"Scatter", true, true, OWNER, COPY_ROOT},
};

/* As the real one's kernel: what has failed runs until it is aborted. */
static bool fail(struct nccl_comm *comm, nccl_result_t rc)
{
    atomic_store(&comm->state, rc);
    fake_hang(comm, FAKE_STREAM);
    return false;
}

static bool check_calls(struct nccl_comm *comm, const struct fake_call *mine)
{
    for (int i = 0; i < comm->size; i++) {
        const struct fake_call *its = &fake_slot_of(comm, FAKE_STREAM, i)->call;

        if (memcmp(its, mine, sizeof(*its)) == 0)
            continue;
        fake_error(comm, COLL_NCCL_INVALID_USAGE,
            "rank %d called %s(%llu) while rank %d called %s(%llu), or with "
            "another type, reduction or root",
            i, shapes[its->kind].name, (unsigned long long)its->count,
            comm->rank, shapes[mine->kind].name,
            (unsigned long long)mine->count);
        return fail(comm, COLL_NCCL_INVALID_USAGE);
    }
    return true;
}

/* Of the chunk that all have shown: count elements, from offset bytes on. */
static void take(struct nccl_comm *comm, const struct fake_work *work,
    size_t offset, size_t count)
{
    size_t size = fake_dtype_size(work->call.dtype);
    const unsigned char *from[FAKE_RANKS_MAX];

    for (int i = 0; i < comm->size; i++)
        from[i] = fake_slot_of(comm, FAKE_STREAM, i)->data;
    switch (shapes[work->call.kind].action) {
    case REDUCE:
        fake_reduce(work, from, comm->size, work->to + offset, count);
        break;
    case COPY_ROOT:
        memcpy(work->to + offset, from[work->call.root], count * size);
        break;
    case COPY_ALL:
        for (int i = 0; i < comm->size; i++) {
            int place =
                (i + fake_fault("order", comm->rank, 0, NULL)) % comm->size;

            memcpy(work->to + (size_t)place * work->call.count * size + offset,
                from[i], count * size);
        }
        break;
    }
}

static bool is_taker(
    const struct nccl_comm *comm, const struct fake_work *work, int block)
{
    switch (shapes[work->call.kind].taker) {
    case ROOT:
        return comm->rank == work->call.root;
    case OWNER:
        return comm->rank == block;
    default:
        return true;
    }
}

static bool run_block(
    struct nccl_comm *comm, const struct fake_work *work, int block)
{
    size_t size = fake_dtype_size(work->call.dtype), done = 0;
    size_t at_once = FAKE_CHUNK / size;
    bool is_source = !shapes[work->call.kind].is_root_source ||
                     comm->rank == work->call.root;
    unsigned char scaled[FAKE_CHUNK];

    do {
        size_t count = work->call.count - done;
        const unsigned char *from =
            is_source && work->call.count > 0
                ? work->from + ((size_t)block * work->call.count + done) * size
                : NULL;

        count = count < at_once ? count : at_once;
        if (from != NULL && work->call.op > COLL_NCCL_AVG) {
            memcpy(scaled, from, count * size);
            fake_scale(work, scaled, count);
            from = scaled;
        }
        if (!fake_show(comm, FAKE_STREAM, &work->call, from,
                from != NULL ? count * size : 0) ||
            !check_calls(comm, &work->call))
            return false;
        if (count > 0 && is_taker(comm, work, block))
            take(comm, work, done * size, count);
        if (!fake_show(comm, FAKE_STREAM, NULL, NULL, 0))
            return false;
        done += count;
    } while (done < work->call.count);
    return true;
}

static bool run_collective(struct nccl_comm *comm, struct fake_work *work)
{
    int blocks = shapes[work->call.kind].has_blocks ? comm->size : 1;

    if (work->factor_at != NULL)
        fake_scalar_read(work->call.dtype, work->factor_at, work);
    for (int i = 0; i < blocks; i++)
        if (!run_block(comm, work, i))
            return false;
    return true;
}

/* One chunk of a message, if its place in the segment is free; true if so. */
static bool move_out(struct nccl_comm *comm, struct fake_work *work)
{
    struct fake_mail *mail = &comm->segment->mail[comm->rank][work->call.root];
    uint64_t total = work->call.count * fake_dtype_size(work->call.dtype);
    uint64_t left = total - work->moved;

    if (atomic_load(&mail->written) != atomic_load(&mail->read))
        return false;
    mail->total = total;
    mail->bytes = left < FAKE_MAIL ? (uint32_t)left : FAKE_MAIL;
    if (mail->bytes > 0)
        memcpy(mail->data, work->from + work->moved, mail->bytes);
    work->moved += mail->bytes;
    work->is_done = work->moved == total;
    atomic_fetch_add(&mail->written, 1);
    return true;
}

static bool move_in(
    struct nccl_comm *comm, struct fake_work *work, bool *is_other)
{
    struct fake_mail *mail = &comm->segment->mail[work->call.root][comm->rank];
    uint64_t total = work->call.count * fake_dtype_size(work->call.dtype);

    if (atomic_load(&mail->written) == atomic_load(&mail->read))
        return false;
    if (mail->total != total) {
        *is_other = true;
        return false;
    }
    if (mail->bytes > 0)
        memcpy(work->to + work->moved, mail->data, mail->bytes);
    work->moved += mail->bytes;
    work->is_done = work->moved == total;
    atomic_fetch_add(&mail->read, 1);
    return true;
}

/* All messages at the same time, those of one direction of a pair in order. */
static bool run_messages(
    struct nccl_comm *comm, struct fake_work *works, size_t count)
{
    for (;;) {
        bool is_waiting[2][FAKE_RANKS_MAX] = {{false}};
        bool has_moved = false, is_done = true, is_other = false;
        uint32_t seen = fake_bell(comm);

        for (size_t i = 0; i < count; i++) {
            struct fake_work *work = &works[i];
            bool is_send = work->call.kind == FAKE_SEND;
            bool *its_turn = &is_waiting[is_send][work->call.root];

            if (work->call.kind < FAKE_SEND || work->is_done || *its_turn)
                continue;
            has_moved |=
                is_send ? move_out(comm, work) : move_in(comm, work, &is_other);
            *its_turn = !work->is_done;
            is_done &= work->is_done;
        }
        if (is_other) {
            fake_error(comm, COLL_NCCL_INVALID_USAGE,
                "a message to rank %d has another size than it expects",
                comm->rank);
            return fail(comm, COLL_NCCL_INVALID_USAGE);
        }
        if (has_moved)
            fake_ring(comm);
        else if (is_done)
            return true;
        else if (fake_must_stop(comm, FAKE_STREAM))
            return false;
        else
            fake_listen(comm, seen);
    }
}

bool fake_run(struct nccl_comm *comm, struct fake_work *works, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (works[i].call.kind < FAKE_SEND && !run_collective(comm, &works[i]))
            return false;
    return run_messages(comm, works, count);
}
