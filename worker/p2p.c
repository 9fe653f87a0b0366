/*
 * Messages between two ranks: the calls of p2p.h, and who moves the bytes.
 *
 * All state is under one lock. Whoever waits drives, which is to move what
 * can be moved for everybody, unless another thread does already; then it
 * sleeps until an operation is done or nobody drives. A driver that finds
 * nothing for a while sleeps in epoll_wait(), where all that can happen to it
 * is to be seen, without the lock.
 *
 * The thread of p2p_start_thread() sleeps there when nobody waits, and leaves
 * the driving to anybody who does. While it is there those who wait longer
 * sleep as if it drove: only one thread is in epoll_wait() at a time.
 */
#include "p2p_internal.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "coll_agent.h"
#include "rendezvous/base/clock.h"

/* As in shm_wait.c, where the reasons are. */
#define SPIN_MAX_ROUNDS 1000
#define YIELD_NS (100 * 1000ull)

/* How long a driver that always finds something to move may not look for
 * failures and at the clock, in rounds. */
#define BUSY_ROUNDS 1024

/* A look at all connections comes every so many rounds; in between, those of
 * the needed ranks are tried, if there are not more ranks than this. */
#define ROUNDS_PER_LOOK 16
#define TRIES_MAX 4

/* How often somebody may ask in vain before there is a look at failures. */
#define POLLS_PER_CHECK 1024

/* The longest sleep without a look at the peers, for what wakes nobody. */
#define SLICE_MS 200

/* What a call waits for. */
struct target {
    struct p2p_op *const *list; /* or, if NULL, */
    struct p2p_op *array;
    size_t n;
    size_t done; /* so many of the first are */
};

static struct p2p_op *op_at(const struct target *t, size_t i)
{
    return t->list != NULL ? t->list[i] : &t->array[i];
}

static bool is_reached(struct target *t)
{
    while (t->done < t->n && op_at(t, t->done)->is_done)
        t->done++;
    return t->done == t->n;
}

void p2p_unlock(struct p2p *p)
{
    struct p2p_op *op = p->to_report;

    p->to_report = NULL;
    pthread_mutex_unlock(&p->lock);
    while (op != NULL) {
        struct p2p_op *next = op->next; /* after the call it may be gone */

        if (op->status != COLL_OK)
            coll_fail(op->status, "%s", p->failure_text);
        op->done_cb(op);
        op = next;
    }
}

/* --- Moving --------------------------------------------------------------- */

/* What can be read. For those who share memory a system call is much; and one
 * that asks of all connections is more than to try the few that matter. */
static bool look_at_wires(struct p2p *p)
{
    bool is_turn = ++p->rounds % ROUNDS_PER_LOOK == 0;

    if (is_turn || (p->shm == NULL && p->active_count > TRIES_MAX))
        return p2p_watch_step(p, 0);
    for (int i = 0; p->shm == NULL && i < p->active_count; i++)
        if (p->active[i]->pending > 0)
            p2p_tcp_in_ready(p->active[i]);
    return false;
}

/* One round over all ranks. Whether anything has moved. looks: also at what
 * needs a system call to be seen. */
static bool move_round(struct p2p *p, bool looks)
{
    bool has_moved = false;

    if (p->failure != COLL_OK)
        return false;
    if (p->shm != NULL)
        has_moved = p2p_shm_accept(p);
    if (looks && p->places != NULL && p2p_watch_open(p))
        has_moved |= look_at_wires(p);
    for (int i = 0; i < p->active_count; i++)
        has_moved |= p2p_move(p, p->active[i]);
    return has_moved;
}

static bool move_all(struct p2p *p)
{
    return move_round(p, true);
}

/* Wakes whoever sleeps for an operation. */
static void fail(struct p2p *p, coll_status_t status)
{
    p2p_fail_all(p, status);
    if (p->followers > 0)
        pthread_cond_broadcast(&p->has_changed);
    if (p->wake_fd >= 0)
        eventfd_write(p->wake_fd, 1);
}

/* --- Sleeping ------------------------------------------------------------- */

static void arm(struct p2p *p)
{
    if (p->shm != NULL)
        p2p_shm_arm(p);
}

static void disarm(struct p2p *p)
{
    if (p->shm != NULL)
        p2p_shm_disarm(p);
}

/* Of the two that may be in epoll_wait() one is there at a time. */
static bool driver_is_asleep(const struct p2p *p)
{
    return p->is_driven && p->is_asleep && !p->thread_is_polling;
}

/* Those whose operation may be done. */
static void wake_waiters(struct p2p *p)
{
    if (!p->has_finished)
        return;
    p->has_finished = false;
    if (p->followers > 0)
        pthread_cond_broadcast(&p->has_changed);
    if (driver_is_asleep(p))
        eventfd_write(p->wake_fd, 1);
}

/* Sleeps without the lock, at most until a message's time is over. Before it:
 * arm, and see that nothing moves. */
static void sleep_until(struct p2p *p, uint64_t deadline_ns)
{
    int left_ms = clock_left_ms(
        deadline_ns < p->expires_ns ? deadline_ns : p->expires_ns);

    wake_waiters(p);
    p2p_watch_step(p, left_ms < SLICE_MS ? left_ms : SLICE_MS);
}

/* --- Driving -------------------------------------------------------------- */

/* Nothing has moved for a while: sleeps. False: the time is over, or the
 * thread sleeps there for all. */
static bool doze(struct p2p *p, struct target *t, uint64_t deadline_ns)
{
    p2p_watch_open(p);
    arm(p);
    if (!move_all(p)) {
        p2p_check(p);
        if (!is_reached(t)) {
            if (p->thread_is_polling || clock_now_ns() >= deadline_ns)
                return false;
            sleep_until(p, deadline_ns);
        }
    }
    disarm(p);
    return true;
}

static int spin_for(const struct p2p *p)
{
    return p->shm != NULL && p->shm->may_spin ? p->spin_rounds : 0;
}

/* Moves until the target is reached or doze() says otherwise. */
static void drive(struct p2p *p, struct target *t, uint64_t deadline_ns)
{
    int idle = 0; /* rounds in which nothing has moved */
    int spin = spin_for(p);
    int busy = 0;
    uint64_t yield_until = 0;

    p->is_driven = true;
    if (p->thread_is_polling)
        disarm(p);
    for (;;) {
        bool has_moved = move_all(p);

        if (is_reached(t))
            break;
        if (has_moved) {
            if (idle > 0 && yield_until == 0)
                p->spin_rounds =
                    shm_spin_next(p->spin_rounds, true, SPIN_MAX_ROUNDS);
            idle = 0;
            spin = spin_for(p);
            yield_until = 0;
            if (++busy % BUSY_ROUNDS != 0)
                continue;
            p2p_check(p);
            if (is_reached(t) || clock_now_ns() >= deadline_ns)
                break;
        } else if (idle < spin) {
            idle++;
            shm_relax();
        } else if (yield_until == 0 || clock_now_ns() < yield_until) {
            if (yield_until == 0) {
                p->spin_rounds =
                    shm_spin_next(p->spin_rounds, false, SPIN_MAX_ROUNDS);
                yield_until = clock_now_ns() + YIELD_NS;
            }
            wake_waiters(p);
            p2p_unlock(p);
            sched_yield();
            pthread_mutex_lock(&p->lock);
        } else if (!doze(p, t, deadline_ns)) {
            break;
        }
    }
    p->is_driven = false;
}

/* Somebody has to go on, if there is anything left to do. */
static void leave(struct p2p *p)
{
    wake_waiters(p);
    if (p->is_driven || p->outstanding == NULL)
        return;
    if (p->thread_is_polling) {
        arm(p);
        if (move_all(p))
            eventfd_write(p->wake_fd, 1);
        wake_waiters(p);
    } else if (p->followers > 0) {
        pthread_cond_broadcast(&p->has_changed);
    } else if (p->thread_is_parked) {
        pthread_cond_signal(&p->has_work);
    }
}

static void post(struct p2p *p, struct p2p_op *op)
{
    if (p->failure != COLL_OK) {
        op->status = p->failure;
        op->is_done = true;
        p2p_report(p, op);
        return;
    }
    p2p_start(p, op);
}

/* For those who do not wait. A driver that is awake sees to all by itself, one
 * that sleeps has to know that there is something to do. */
static void move_some(struct p2p *p, bool looks)
{
    if (p->outstanding != NULL && (!p->is_driven || driver_is_asleep(p)) &&
        move_round(p, looks) && p->is_driven)
        eventfd_write(p->wake_fd, 1);
    leave(p);
}

static coll_status_t fail_timeout(
    struct p2p *p, struct target *t, uint64_t since_ns)
{
    memset(p->set, 0, (size_t)p->g->size * sizeof(*p->set));
    for (size_t i = t->done; i < t->n; i++)
        if (!op_at(t, i)->is_done)
            p2p_mark_awaited(p, op_at(t, i));
    return p2p_fail_late(p, op_at(t, t->done), since_ns);
}

static void follow(struct p2p *p, uint64_t deadline_ns)
{
    struct timespec ts = {
        .tv_sec = (time_t)(deadline_ns / CLOCK_NS_PER_S),
        .tv_nsec = (long)(deadline_ns % CLOCK_NS_PER_S),
    };

    if (p->to_report != NULL) {
        p2p_unlock(p);
        pthread_mutex_lock(&p->lock);
        return;
    }
    p->followers++;
    pthread_cond_timedwait(&p->has_changed, &p->lock, &ts);
    p->followers--;
}

/* Whether all are done; else the time is over. */
static bool wait_until(struct p2p *p, struct target *t, uint64_t deadline_ns)
{
    while (!is_reached(t)) {
        if (!p->is_driven) {
            drive(p, t, deadline_ns);
            if (is_reached(t))
                break;
        }
        if (clock_now_ns() >= deadline_ns)
            return false;
        if (p->is_driven || p->thread_is_polling)
            follow(p, deadline_ns);
    }
    return true;
}

static coll_status_t wait_for(
    struct p2p *p, struct target *t, uint64_t deadline_ns)
{
    if (!is_reached(t)) {
        uint64_t since_ns = clock_now_ns();
        bool is_in_time;

        for (size_t i = 0; i < t->n; i++)
            op_at(t, i)->waiters++;
        is_in_time = wait_until(p, t, deadline_ns);
        for (size_t i = 0; i < t->n; i++)
            op_at(t, i)->waiters--;
        leave(p);
        if (!is_in_time)
            return fail_timeout(p, t, since_ns);
    }
    for (size_t i = 0; i < t->n; i++)
        if (op_at(t, i)->status != COLL_OK)
            return coll_fail(op_at(t, i)->status, "%s", p->failure_text);
    return COLL_OK;
}

/* --- The calls ------------------------------------------------------------ */

void p2p_post(struct p2p *p, struct p2p_op *const *ops, size_t n)
{
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < n; i++)
        post(p, ops[i]);
    move_some(p, false);
    p2p_unlock(p);
}

coll_status_t p2p_wait(
    struct p2p *p, struct p2p_op *const *ops, size_t n, uint64_t deadline_ns)
{
    struct target t = {.list = ops, .n = n};
    coll_status_t status;

    pthread_mutex_lock(&p->lock);
    status = wait_for(p, &t, deadline_ns);
    p2p_unlock(p);
    return status;
}

bool p2p_is_done(struct p2p *p, struct p2p_op *op)
{
    bool is_done;

    pthread_mutex_lock(&p->lock);
    if (!op->is_done) {
        move_some(p, true);
        /* Who only asks shall hear of failures, too. */
        if (!op->is_done && ++p->polls % POLLS_PER_CHECK == 0)
            p2p_check(p);
        wake_waiters(p);
    }
    is_done = op->is_done;
    p2p_unlock(p);
    return is_done;
}

coll_status_t p2p_run(struct p2p *p, struct p2p_op *ops, size_t n)
{
    struct target t = {.array = ops, .n = n};
    coll_status_t status;

    if (n == 0)
        return COLL_OK;
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < n; i++)
        post(p, &ops[i]);
    status = wait_for(p, &t, UINT64_MAX); /* that is, its own */
    p2p_unlock(p);
    return status;
}

bool p2p_is_asked(struct p2p *p, uint64_t seq)
{
    bool is_asked;

    pthread_mutex_lock(&p->lock);
    /* Who asks may have to connect first. */
    if (p->places != NULL && p->failure == COLL_OK && p2p_watch_try(p) == 0)
        p2p_settle(p);
    move_round(p, false);
    leave(p);
    is_asked = p->failure != COLL_OK || p2p_has_question(p, seq);
    p2p_unlock(p);
    return is_asked;
}

/* No step has such a tag. */
#define TAG_NEVER (-1)

coll_status_t p2p_await(
    struct p2p *p, const struct coll_call *call, const int *ranks, size_t n)
{
    struct p2p_op *ops = calloc(n, sizeof(*ops));
    coll_status_t status;

    if (ops == NULL) {
        status = coll_fail(COLL_ERR_MEMORY, "out of memory for a failure");
        p2p_fail(p, status);
        return status;
    }
    for (size_t i = 0; i < n; i++)
        ops[i] = (struct p2p_op){
            .is_step = true,
            .peer = ranks[i],
            .tag = TAG_NEVER,
            .dtype = COLL_UINT8,
            .call = call,
        };
    status = p2p_run(p, ops, n);
    free(ops);
    return status;
}

void p2p_fail(struct p2p *p, coll_status_t status)
{
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->lock);
    fail(p, status);
    p2p_unlock(p);
}

coll_status_t p2p_failure(struct p2p *p)
{
    coll_status_t status = COLL_OK;

    if (p == NULL)
        return COLL_OK;
    pthread_mutex_lock(&p->lock);
    if (p->failure != COLL_OK)
        status = coll_fail(p->failure, "%s", p->failure_text);
    p2p_unlock(p);
    return status;
}

/* --- The thread ----------------------------------------------------------- */

static void *thread_main(void *arg)
{
    struct p2p *p = arg;

    pthread_mutex_lock(&p->lock);
    while (!p->is_ending) {
        if (p->to_report != NULL) {
            p2p_unlock(p);
            pthread_mutex_lock(&p->lock);
            continue;
        }
        if (p->outstanding == NULL || p->is_driven) {
            p->thread_is_parked = true;
            pthread_cond_wait(&p->has_work, &p->lock);
            p->thread_is_parked = false;
            continue;
        }
        p2p_watch_open(p);
        arm(p);
        if (move_all(p)) {
            wake_waiters(p);
            continue;
        }
        p2p_check(p);
        if (p->failure != COLL_OK) {
            wake_waiters(p);
            continue;
        }
        p->thread_is_polling = true;
        sleep_until(p, UINT64_MAX);
        p->thread_is_polling = false;
        if (!p->is_driven)
            disarm(p);
    }
    p2p_unlock(p);
    return NULL;
}

coll_status_t p2p_start_thread(struct p2p *p)
{
    sigset_t all, old;
    int rc = 0;

    /* Signals are for the threads of the program. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_mutex_lock(&p->lock);
    if (!p->has_thread) {
        rc = pthread_create(&p->thread, NULL, thread_main, p);
        p->has_thread = rc == 0;
    }
    p2p_unlock(p);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc == 0 ? COLL_OK
                   : coll_fail(COLL_ERR_SYSTEM,
                         "start the thread for messages: %s", strerror(rc));
}

static void end_thread(struct p2p *p)
{
    if (!p->has_thread)
        return;
    pthread_mutex_lock(&p->lock);
    p->is_ending = true;
    pthread_cond_signal(&p->has_work);
    if (p->wake_fd >= 0)
        eventfd_write(p->wake_fd, 1);
    p2p_unlock(p);
    pthread_join(p->thread, NULL);
}

/* --- Life ----------------------------------------------------------------- */

void p2p_destroy(struct p2p *p)
{
    bool has_failed;

    if (p == NULL)
        return;
    has_failed = p->failure != COLL_OK;
    end_thread(p);
    /* Others hear that this rank leaves, and that is all they need. */
    if (p->outstanding != NULL) {
        coll_fail(COLL_ERR_STATE, "the group was destroyed before this was "
                                  "done");
        p2p_end_all(p, COLL_ERR_STATE);
    }
    if (p->places != NULL && p->g->failure == COLL_OK && !has_failed)
        p2p_tcp_leave(p);
    for (int i = 0; i < p->active_count; i++)
        p2p_peer_free(p->active[i]);
    p2p_watch_close(p);
    pthread_cond_destroy(&p->has_changed);
    pthread_cond_destroy(&p->has_work);
    pthread_mutex_destroy(&p->lock);
    free(p->peers);
    free(p->active);
    free(p->set);
    free(p);
}

/* How the other ranks can be reached. */
static void find_ways(struct p2p *p, const struct coll_group *g)
{
    if (g->backend == &coll_backend_shm) {
        p->shm = g->state;
    } else if (g->backend == &coll_backend_tcp) {
        struct tcp_state *s = g->state;

        p->net = s->net;
        p->places = s->places;
    } else if (g->backend == &coll_backend_nodes) {
        p->lane = SHM_LANE_OUTER;
        nodes_find_ways(p, g);
    }
    p->agent_fd = coll_agent_fd();
}

coll_status_t p2p_create(struct p2p **out, struct coll_group *g)
{
    struct p2p *p = calloc(1, sizeof(*p));
    size_t size = (size_t)g->size;
    const char *cma = getenv("COLL_CMA");
    pthread_condattr_t attr;

    if (p == NULL)
        return coll_fail(COLL_ERR_MEMORY, "out of memory for messages");
    p->g = g;
    p->epoll = -1;
    p->wake_fd = -1;
    p->expires_ns = UINT64_MAX;
    p->spin_rounds = SPIN_MAX_ROUNDS;
    p->may_pull = cma == NULL || strcmp(cma, "0") != 0;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&p->has_changed, &attr);
    pthread_cond_init(&p->has_work, &attr);
    pthread_condattr_destroy(&attr);
    find_ways(p, g);
    p->peers = calloc(size, sizeof(*p->peers));
    p->active = calloc(size, sizeof(*p->active));
    p->set = calloc(size, sizeof(*p->set));
    if (p->peers == NULL || p->active == NULL || p->set == NULL) {
        p2p_destroy(p);
        return coll_fail(COLL_ERR_MEMORY, "out of memory for messages");
    }
    *out = p;
    return COLL_OK;
}
