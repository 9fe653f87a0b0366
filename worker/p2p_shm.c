/*
 * The bytes of two ranks of one node: a ring in shared memory per direction,
 * in a memfd that the sender makes when it has something to say and hands over
 * the link of the two (shm_peers.c). Large messages are taken from the
 * sender's memory in one copy, where it is mapped (p2p_memory.c) or the kernel
 * allows that.
 *
 * Head and tail are the other side's to write, so they are not believed: what
 * they say is checked to lie in the ring, and each side keeps its own in its
 * own memory. A sleeper says so in its control block and then looks at the
 * rings; a writer stores head or tail and then looks for sleepers. All four
 * are sequentially consistent, so one of the two sees the other.
 */
#include "p2p_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coll_ranks.h"
#include "coll_signature.h"

/* A power of two. */
#define RING_BYTES 65536u

/* What is passed on at a time, so that both sides copy at the same time. */
#define STEP_BYTES 8192u

/*
 * Measured with two ranks on two CPUs, in us: 16 KiB 2.1 through the ring, 5.1
 * from the sender's memory; 64 KiB 8 and 25; 256 KiB 32 and 38; 1 MiB 129 and
 * 99. With more ranks than CPUs the ring loses, for it holds little of a large
 * message. So: whole through the ring; and taken from the sender's memory.
 */
#define EAGER_BYTES ((size_t)64 * 1024)
#define PULL_MIN_BYTES ((size_t)128 * 1024)

/* Small messages wait for this much of a large one. */
#define PULL_BYTES ((size_t)1 << 20)

struct p2p_ring {
    _Alignas(128) _Atomic uint32_t head; /* written by the sender */
    _Alignas(128) _Atomic uint32_t tail; /* written by the receiver */
    _Alignas(128) char data[RING_BYTES];
};

/* --- Making pipes --------------------------------------------------------- */

static int ring_map(struct p2p_ring **out, int fd)
{
    void *memory =
        mmap(NULL, sizeof(**out), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (memory == MAP_FAILED)
        return -errno;
    *out = memory;
    return 0;
}

/* Sealed and reserved: no page of it can be missing later. */
static int ring_create(struct p2p_ring **out, int *fd)
{
    int rc;

    *fd = memfd_create("libcollective-pipe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0)
        return -errno;
    do {
        rc = fallocate(*fd, 0, 0, sizeof(**out)) < 0 ? -errno : 0;
    } while (rc == -EINTR);
    if (rc == 0 &&
        fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        rc = -errno;
    if (rc == 0)
        rc = ring_map(out, *fd);
    if (rc < 0)
        close(*fd);
    return rc;
}

static int open_pipe(struct p2p_peer *peer)
{
    struct p2p_ring *ring = NULL;
    int fd;
    int rc = ring_create(&ring, &fd);

    if (rc < 0)
        return rc;
    rc = shm_send_pipe(peer->p2p->shm, peer->pipe.index, peer->p2p->lane, fd);
    close(fd);
    if (rc < 0) {
        munmap(ring, sizeof(*ring));
        return rc == -ENOTCONN ? -EPIPE : rc;
    }
    peer->pipe.out = ring;
    return 0;
}

static int attach_pipe(struct p2p_peer *peer, int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    if (peer->pipe.in != NULL || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
        fstat(fd, &st) < 0 || st.st_size != sizeof(struct p2p_ring))
        return -EPROTO;
    return ring_map(&peer->pipe.in, fd);
}

static void take_pipe(struct p2p *p, int index)
{
    int rank = p2p_rank_of(p, index);
    int fd = shm_take_pipe(p->shm, index, p->lane);
    struct p2p_peer *peer;
    int rc;

    if (fd < 0)
        return;
    peer = p2p_peer_get(p, rank);
    rc = peer == NULL ? 0 : attach_pipe(peer, fd);
    close(fd);
    if (rc < 0)
        p2p_fail_all(
            p, coll_fail(rc == -ENOMEM ? COLL_ERR_MEMORY : COLL_ERR_SYSTEM,
                   "memory for messages from rank %d: %s",
                   coll_rank_name(p->g->names, rank), strerror(-rc)));
}

static void take_pipes(struct p2p *p)
{
    for (int i = 0; i < p->shm->size && p->failure == COLL_OK; i++)
        take_pipe(p, i);
}

bool p2p_shm_accept(struct p2p *p)
{
    uint32_t pipes = atomic_load_explicit(
        &p->shm->control[p->shm->rank].pipes, memory_order_acquire);

    if (pipes == p->pipes_seen)
        return false;
    p->pipes_seen = pipes;
    shm_look(p->shm, p->lane);
    take_pipes(p);
    return true;
}

/* --- The stream ----------------------------------------------------------- */

static void copy_in(
    struct p2p_ring *ring, uint32_t head, const char *from, size_t n)
{
    uint32_t at = head % RING_BYTES;
    size_t first = n < RING_BYTES - at ? n : RING_BYTES - at;

    memcpy(ring->data + at, from, first);
    if (first < n)
        memcpy(ring->data, from + first, n - first);
}

static void copy_out(
    const struct p2p_ring *ring, uint32_t tail, char *to, size_t n)
{
    uint32_t at = tail % RING_BYTES;
    size_t first = n < RING_BYTES - at ? n : RING_BYTES - at;

    memcpy(to, ring->data + at, first);
    if (first < n)
        memcpy(to + first, ring->data, n - first);
}

static int find_room(struct p2p_pipe *pipe, size_t wanted, size_t *room)
{
    *room = RING_BYTES - (pipe->out_head - pipe->out_tail);
    if (*room >= wanted)
        return 0;
    pipe->out_tail = atomic_load(&pipe->out->tail);
    if (pipe->out_head - pipe->out_tail > RING_BYTES)
        return -EPROTO;
    *room = RING_BYTES - (pipe->out_head - pipe->out_tail);
    return 0;
}

static void publish(struct p2p_peer *peer)
{
    atomic_store(&peer->pipe.out->head, peer->pipe.out_head);
    shm_wake(peer->p2p->shm, peer->pipe.index, peer->p2p->lane);
}

static ssize_t shm_channel_send(
    struct p2p_peer *peer, const struct iovec *iov, int count)
{
    struct p2p_pipe *pipe = &peer->pipe;
    size_t wanted = 0;
    size_t taken = 0;
    size_t step = 0;
    size_t room;
    int rc = pipe->out == NULL ? open_pipe(peer) : 0;

    if (rc < 0)
        return rc == -EAGAIN ? 0 : rc;
    for (int i = 0; i < count; i++)
        wanted += iov[i].iov_len;
    rc = find_room(pipe, wanted, &room);
    if (rc < 0)
        return rc;
    for (int i = 0; i < count; i++) {
        for (size_t done = 0; done < iov[i].iov_len && room > 0;) {
            size_t n = iov[i].iov_len - done;

            if (n > room)
                n = room;
            if (n > STEP_BYTES)
                n = STEP_BYTES;
            copy_in(pipe->out, pipe->out_head,
                (const char *)iov[i].iov_base + done, n);
            pipe->out_head += (uint32_t)n;
            room -= n;
            done += n;
            taken += n;
            step += n;
            if (step >= STEP_BYTES) {
                publish(peer);
                step = 0;
            }
        }
    }
    if (step > 0)
        publish(peer);
    return (ssize_t)taken;
}

static ssize_t shm_channel_recv(struct p2p_peer *peer, void *buf, size_t len)
{
    struct p2p_pipe *pipe = &peer->pipe;
    uint32_t there;

    if (pipe->in == NULL)
        return 0;
    there = atomic_load(&pipe->in->head) - pipe->in_tail;
    if (there == 0)
        return 0;
    if (there > RING_BYTES)
        return -EPROTO;
    if (len > there)
        len = there;
    if (len > STEP_BYTES)
        len = STEP_BYTES;
    copy_out(pipe->in, pipe->in_tail, buf, len);
    pipe->in_tail += (uint32_t)len;
    /* Not every time: the line is the sender's to read. It waits for room only
     * when there is none, so the rest of the ring makes up for that. */
    if (pipe->in_tail - pipe->in_told >= RING_BYTES / 4) {
        pipe->in_told = pipe->in_tail;
        atomic_store(&pipe->in->tail, pipe->in_tail);
        shm_wake(peer->p2p->shm, pipe->index, peer->p2p->lane);
    }
    return (ssize_t)len;
}

/* --- Large messages ------------------------------------------------------- */

/* Whether what was taken may have been something else by then: who gives up
 * says so before its program has the buffer again. */
static bool has_given_up(const struct p2p_peer *peer)
{
    const struct shm_state *s = peer->p2p->shm;
    int index = peer->pipe.index;

#ifndef __SANITIZE_THREAD__ /* which knows no fences */
    atomic_thread_fence(memory_order_acquire);
#endif
    return shm_has_failed(s, index) ||
           atomic_load(&s->control[index].has_left) != 0;
}

static ssize_t shm_channel_pull(
    struct p2p_peer *peer, void *buf, uint64_t from, size_t len)
{
    struct iovec here = {buf, len};
    struct iovec there = {(void *)(uintptr_t)from, len};
    ssize_t n = process_vm_readv(peer->pipe.pid, &here, 1, &there, 1, 0);

    if (n < 0)
        return -errno;
    if (n == 0)
        return -EFAULT;
    /* If its process has ended, that number may be somebody else's. */
    if (has_given_up(peer) || shm_has_ended(peer->p2p->shm, peer->pipe.index))
        return -ESRCH;
    return n;
}

/* Who has died leaves the memfd as it was. */
static ssize_t shm_channel_copy(
    struct p2p_peer *peer, void *buf, uint64_t at, size_t len)
{
    ssize_t n = p2p_memory_copy(peer, buf, at, len);

    return n > 0 && has_given_up(peer) ? -ESRCH : n;
}

static void shm_channel_close(struct p2p_peer *peer)
{
    if (peer->pipe.out != NULL)
        munmap(peer->pipe.out, sizeof(*peer->pipe.out));
    if (peer->pipe.in != NULL)
        munmap(peer->pipe.in, sizeof(*peer->pipe.in));
    p2p_memory_close(peer);
}

/* --- Ends ----------------------------------------------------------------- */

static enum p2p_end shm_channel_ask(struct p2p_peer *peer)
{
    struct p2p *p = peer->p2p;
    int index = peer->pipe.index;
    enum p2p_end end = P2P_GOES_ON;

    if (atomic_load(&p->shm->control[index].has_left) != 0)
        end = P2P_HAS_LEFT;
    else if (shm_has_ended(p->shm, index))
        end = P2P_HAS_DIED;
    if (end != P2P_GOES_ON)
        take_pipe(p, index);
    return end;
}

static coll_status_t shm_channel_blame(
    const struct p2p_peer *peer, const struct coll_call *call)
{
    const struct p2p *p = peer->p2p;
    const struct shm_control *c = &p->shm->control[peer->pipe.index];
    char name[64];

    if (atomic_load(&c->has_left) == 0)
        return shm_fail_dead(p->shm, peer->pipe.index, call);
    return coll_fail(COLL_ERR_PEER,
        "rank %d left after operation %llu, rank %d is in %s",
        coll_rank_name(p->g->names, peer->rank),
        (unsigned long long)c->left_after_seq,
        coll_rank_name(p->g->names, p->g->rank),
        coll_call_text(name, sizeof(name), call));
}

static const struct p2p_channel_ops shm_ops = {
    .eager_max = EAGER_BYTES,
    .chunk = PULL_BYTES,
    .pull_min = PULL_MIN_BYTES,
    .send = shm_channel_send,
    .recv = shm_channel_recv,
    .pull = shm_channel_pull,
    .find = p2p_memory_find,
    .copy = shm_channel_copy,
    .close = shm_channel_close,
    .ask = shm_channel_ask,
    .blame = shm_channel_blame,
};

bool p2p_is_here(const struct p2p *p, int rank)
{
    return p->shm != NULL &&
           (p->nodes == NULL || p->nodes[rank] == p->nodes[p->g->rank]);
}

void p2p_shm_open(struct p2p_peer *peer)
{
    const struct p2p *p = peer->p2p;

    peer->ops = &shm_ops;
    peer->pipe.index = p->indices == NULL ? peer->rank : p->indices[peer->rank];
    peer->pipe.pid = p->shm->peers[peer->pipe.index].pid;
    peer->can_pull = p->may_pull && peer->pipe.pid > 0;
}

/* --- Sleeping ------------------------------------------------------------- */

void p2p_shm_arm(struct p2p *p)
{
    atomic_fetch_or(&p->shm->control[p->shm->rank].asleep, 1u << p->lane);
}

void p2p_shm_disarm(struct p2p *p)
{
    _Atomic uint32_t *asleep = &p->shm->control[p->shm->rank].asleep;

    if ((atomic_load(asleep) & 1u << p->lane) != 0)
        atomic_fetch_and(asleep, ~(1u << p->lane));
}

void p2p_shm_look(struct p2p *p)
{
    shm_look(p->shm, p->lane);
    take_pipes(p);
}
