/*
 * See coll_work.h, and collective_gpu.h for coll_work_wait_stream(). A work is
 * freed by whoever is last to need it: the program, which gives it back, the
 * one who finishes it, or a thread that is in a call on it just then.
 */
#include "coll_work.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll_recorder.h"
#include "collective_gpu.h"
#include "gpu.h"
#include "rendezvous/base/clock.h"

struct coll_work {
    struct coll_group *g; /* NULL once nothing is to be done any more */
    struct coll_work *next; /* in the queue */
    struct coll_call call;
    uint64_t turn;
    bool on_gpu;
    int source; /* on a device: whom it receives from, or -1 */
    /* Messages. */
    struct p2p_op *ops; /* [nops] */
    struct p2p_op **list; /* [nops], for the engine */
    size_t nops;
    size_t left; /* not done yet */
    uint64_t ticket; /* in the recorder */
    uint64_t entered_ns;
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool is_done;
    bool is_given_back;
    unsigned int users; /* threads that are in a call on it */
    coll_status_t status;
    coll_work_fn_t *then;
    void *then_arg;
    char text[512];
};

/* This thread runs functions of coll_work_then(), one within the other. */
static _Thread_local int calls;

/* --- Life ----------------------------------------------------------------- */

static void work_free(struct coll_work *w)
{
    pthread_cond_destroy(&w->done);
    pthread_mutex_destroy(&w->lock);
    free(w->call.owned);
    free(w->ops);
    free(w->list);
    free(w);
}

static struct coll_work *work_create(struct coll_group *g)
{
    struct coll_work *w = calloc(1, sizeof(*w));
    pthread_condattr_t attr;

    if (w == NULL)
        return NULL;
    w->g = g;
    w->source = -1;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->done, &attr);
    pthread_condattr_destroy(&attr);
    return w;
}

static coll_status_t fail_memory(void)
{
    return coll_fail(COLL_ERR_MEMORY, "out of memory for a work");
}

/* With its sentence as the calling thread's. */
static coll_status_t result(const struct coll_work *w)
{
    return w->status == COLL_OK ? COLL_OK : coll_fail(w->status, "%s", w->text);
}

/* Nobody needs it any more. Its lock is held. */
static bool is_over(const struct coll_work *w)
{
    return w->g == NULL && w->is_given_back && w->users == 0;
}

/* Gives the lock back, and frees what nobody needs. */
static void unlock(struct coll_work *w)
{
    bool is_last = is_over(w);

    pthread_mutex_unlock(&w->lock);
    if (is_last)
        work_free(w);
}

/* Around a call of the program, for which the work stays, whoever gives it
 * back meanwhile. Both hold the lock. */
static void enter(struct coll_work *w)
{
    pthread_mutex_lock(&w->lock);
    w->users++;
}

static void leave(struct coll_work *w)
{
    w->users--;
    unlock(w);
}

static void call_then(const struct coll_work *w)
{
    calls++;
    w->then(result(w), w->then_arg);
    calls--;
}

/* The work's result is set. */
static void finish(struct coll_work *w)
{
    coll_work_fn_t *then;

    if (w->nops > 0)
        coll_recorder_finish(w->ticket, w->status, w->entered_ns);
    pthread_mutex_lock(&w->lock);
    w->is_done = true;
    /* At the same time: who sees the one has to see the other. */
    if (w->nops > 0)
        atomic_fetch_sub(&w->g->messages, 1);
    then = w->then;
    pthread_cond_broadcast(&w->done);
    pthread_mutex_unlock(&w->lock);
    if (then != NULL)
        call_then(w);
    pthread_mutex_lock(&w->lock);
    w->g = NULL; /* now it may be freed by whoever gives it back */
    unlock(w);
}

coll_status_t coll_work_check_thread(const char *function)
{
    return calls == 0 ? COLL_OK
                      : coll_fail(COLL_ERR_STATE,
                            "%s: called by a function of coll_work_then(), "
                            "in which nothing waits for other ranks and no "
                            "group is destroyed",
                            function);
}

/* The first failure counts; the calling thread's sentence goes with it. */
static void note_result(struct coll_work *w, coll_status_t status)
{
    if (w->status != COLL_OK || status == COLL_OK)
        return;
    w->status = status;
    snprintf(w->text, sizeof(w->text), "%s", coll_last_error());
}

/* --- Operations ----------------------------------------------------------- */

void coll_work_queue_init(struct coll_work_queue *q)
{
    pthread_cond_init(&q->changed, NULL);
}

void coll_work_queue_end(struct coll_work_queue *q)
{
    struct coll_group *g =
        (struct coll_group *)((char *)q - offsetof(struct coll_group, queue));

    if (q->has_thread) {
        pthread_mutex_lock(&g->lock);
        q->is_ending = true;
        pthread_cond_signal(&q->changed);
        pthread_mutex_unlock(&g->lock);
        pthread_join(q->thread, NULL);
        q->has_thread = false;
    }
    pthread_cond_destroy(&q->changed);
}

static struct coll_work *take_first(struct coll_group *g)
{
    struct coll_work_queue *q = &g->queue;
    struct coll_work *w;

    pthread_mutex_lock(&g->lock);
    while (q->first == NULL && !q->is_ending)
        pthread_cond_wait(&q->changed, &g->lock);
    w = q->first;
    if (w != NULL) {
        q->first = w->next;
        if (q->first == NULL)
            q->last = NULL;
    }
    pthread_mutex_unlock(&g->lock);
    return w;
}

static void *thread_main(void *arg)
{
    struct coll_group *g = arg;
    struct coll_work *w;

    while ((w = take_first(g)) != NULL) {
        note_result(w, coll_group_run_in_turn(g, &w->call, w->turn));
        finish(w);
    }
    return NULL;
}

/* With all signals blocked. The group's lock is held. */
static coll_status_t start_thread(struct coll_group *g)
{
    sigset_t every;
    sigset_t before;
    int rc;

    if (g->queue.has_thread)
        return COLL_OK;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    rc = pthread_create(&g->queue.thread, NULL, thread_main, g);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return coll_fail(COLL_ERR_SYSTEM,
            "cannot start a thread for the group: %s", strerror(rc));
    g->queue.has_thread = true;
    return COLL_OK;
}

coll_status_t coll_work_start(
    coll_work_t **out, struct coll_group *g, const struct coll_call *call)
{
    struct coll_work_queue *q = &g->queue;
    struct coll_work *w = work_create(g);
    coll_status_t status;

    if (w == NULL) {
        free(call->owned);
        return fail_memory();
    }
    w->call = *call;
    status = coll_group_check(g);
    pthread_mutex_lock(&g->lock);
    if (status == COLL_OK)
        status = start_thread(g);
    if (status == COLL_OK) {
        /* Under the lock: the queue has the order of the turns. */
        w->turn = coll_group_take_turn(g);
        if (q->last != NULL)
            q->last->next = w;
        else
            q->first = w;
        q->last = w;
        pthread_cond_signal(&q->changed);
        *out = w;
    }
    pthread_mutex_unlock(&g->lock);
    if (status != COLL_OK)
        work_free(w);
    return status;
}

/* --- On the device ---------------------------------------------------------
 */

coll_status_t coll_work_launch(
    coll_work_t **out, struct coll_group *g, struct coll_call *call)
{
    struct coll_work *w = work_create(g);
    coll_status_t status;

    if (w == NULL)
        return fail_memory();
    w->on_gpu = true;
    if (call->messages != NULL && call->nmany == 1 &&
        !call->messages[0].is_send)
        w->source = call->messages[0].peer;
    call->work = w;
    status = call->messages != NULL ? gpu_send_recv(g, call)
                                    : coll_group_run(g, call);
    if (status == COLL_OK)
        *out = w;
    else
        work_free(w);
    return status;
}

void coll_work_finish(coll_work_t *w, coll_status_t status)
{
    note_result(w, status);
    finish(w);
}

/* Whoever waits sees the end sooner than the watchdog. */
static void drive_device(
    struct coll_work *w, struct coll_group *g, uint64_t deadline_ns)
{
    const struct timespec pause = {.tv_nsec = 20 * 1000};
    bool is_done = false;

    for (int i = 0; !is_done && clock_now_ns() < deadline_ns; i++) {
        gpu_advance(g);
        pthread_mutex_lock(&w->lock);
        is_done = w->is_done;
        pthread_mutex_unlock(&w->lock);
        if (!is_done && i >= 100)
            nanosleep(&pause, NULL);
    }
}

/* --- Messages ------------------------------------------------------------- */

coll_status_t coll_work_messages(
    coll_work_t **out, struct coll_group *g, size_t n, struct p2p_op **ops)
{
    struct coll_work *w = work_create(g);

    if (w == NULL)
        return fail_memory();
    w->nops = n;
    w->ops = calloc(n + 1, sizeof(*w->ops)); /* of nothing it may be NULL */
    w->list = calloc(n + 1, sizeof(*w->list));
    if (w->ops == NULL || w->list == NULL) {
        work_free(w);
        return fail_memory();
    }
    *ops = w->ops;
    *out = w;
    return COLL_OK;
}

static void message_done_cb(struct p2p_op *op)
{
    struct coll_work *w = op->owner;
    struct coll_group *g = w->g;
    bool is_last;

    if (op->status != COLL_OK)
        coll_group_fail(g, op->status);
    pthread_mutex_lock(&w->lock);
    note_result(w, op->status);
    is_last = --w->left == 0;
    pthread_mutex_unlock(&w->lock);
    if (is_last)
        finish(w);
}

void coll_work_post(coll_work_t *w, const struct coll_call *call)
{
    struct coll_group *g = w->g;

    w->call = *call;
    w->left = w->nops;
    for (size_t i = 0; i < w->nops; i++) {
        w->ops[i].call = &w->call;
        w->ops[i].owner = w;
        w->ops[i].done_cb = message_done_cb;
        w->list[i] = &w->ops[i];
    }
    if (w->nops == 0) {
        finish(w);
        return;
    }
    w->entered_ns = clock_now_ns();
    w->ticket = coll_recorder_enter(g, call, w->entered_ns);
    atomic_fetch_add(&g->messages, 1);
    p2p_post(g->p2p, w->list, w->nops);
}

void coll_work_discard(coll_work_t *w)
{
    work_free(w);
}

/*
 * The group of a work of messages, or on a device, that is not done, and that
 * the caller is about to move on: the group stays till stop_driving(), since
 * whoever destroys it waits for that. Else NULL. The work's lock is held.
 */
static struct coll_group *start_driving(struct coll_work *w)
{
    if (w->is_done || (w->nops == 0 && !w->on_gpu))
        return NULL;
    atomic_fetch_add(&w->g->drivers, 1);
    return w->g;
}

static void stop_driving(struct coll_group *g)
{
    atomic_fetch_sub(&g->drivers, 1);
}

/* Whoever waits for messages moves them, at most until deadline_ns. Whether
 * that was enough the work says. */
static void drive(
    struct coll_work *w, struct coll_group *g, uint64_t deadline_ns)
{
    if (w->on_gpu)
        drive_device(w, g, deadline_ns);
    else
        p2p_wait(g->p2p, w->list, w->nops, deadline_ns);
}

/* --- The program's side --------------------------------------------------- */

static coll_status_t check(const coll_work_t *w, const char *name)
{
    return w != NULL ? coll_group_check_fork(name)
                     : coll_fail(COLL_ERR_ARGUMENT, "%s: work is NULL", name);
}

static coll_status_t fail_late(int64_t timeout_ms)
{
    return coll_fail(COLL_ERR_TIMEOUT,
        "coll_work_wait: not done after %.3f s; it goes on",
        (double)timeout_ms / 1000.0);
}

coll_status_t coll_work_wait(coll_work_t *w, int64_t timeout_ms)
{
    coll_status_t status = check(w, "coll_work_wait");
    uint64_t deadline_ns =
        timeout_ms > 0 ? clock_deadline_ns(timeout_ms) : UINT64_MAX;
    const struct timespec end = {
        .tv_sec = (time_t)(deadline_ns / CLOCK_NS_PER_S),
        .tv_nsec = (long)(deadline_ns % CLOCK_NS_PER_S),
    };
    struct coll_group *g;
    int rc = 0;

    if (status != COLL_OK)
        return status;
    if (timeout_ms < 0)
        return coll_fail(COLL_ERR_ARGUMENT,
            "coll_work_wait: timeout_ms is %lld, it must not be negative",
            (long long)timeout_ms);
    enter(w);
    if (!w->is_done)
        status = coll_work_check_thread("coll_work_wait");
    if (status != COLL_OK) {
        leave(w);
        return status;
    }
    g = start_driving(w);
    if (g != NULL) {
        pthread_mutex_unlock(&w->lock);
        drive(w, g, deadline_ns);
        stop_driving(g);
        pthread_mutex_lock(&w->lock);
    }
    while (!w->is_done && rc == 0)
        rc = timeout_ms > 0 ? pthread_cond_timedwait(&w->done, &w->lock, &end)
                            : pthread_cond_wait(&w->done, &w->lock);
    status = w->is_done ? result(w) : fail_late(timeout_ms);
    leave(w);
    return status;
}

coll_status_t coll_work_test(coll_work_t *w, bool *done)
{
    coll_status_t status = check(w, "coll_work_test");
    struct coll_group *g;

    if (status == COLL_OK && done == NULL)
        status = coll_fail(COLL_ERR_ARGUMENT, "coll_work_test: done is NULL");
    if (status != COLL_OK)
        return status;
    enter(w);
    g = start_driving(w);
    if (g != NULL) {
        pthread_mutex_unlock(&w->lock);
        if (w->on_gpu) {
            gpu_advance(g);
        } else {
            p2p_is_done(g->p2p, w->list[0]);
            /* Who only asks shall hear of the end of the group's time, too. */
            if (clock_now_ns() >= w->call.deadline_ns)
                drive(w, g, w->call.deadline_ns);
        }
        stop_driving(g);
        pthread_mutex_lock(&w->lock);
    }
    *done = w->is_done;
    status = w->is_done ? result(w) : COLL_OK;
    leave(w);
    return status;
}

coll_status_t coll_work_wait_stream(coll_work_t *w, void *stream)
{
    coll_status_t status = check(w, "coll_work_wait_stream");
    struct coll_group *g;
    bool is_ending;

    if (status != COLL_OK)
        return status;
    if (!w->on_gpu)
        return coll_work_wait(w, 0);
    enter(w);
    g = start_driving(w);
    if (g == NULL)
        status = result(w);
    if (g != NULL) {
        pthread_mutex_unlock(&w->lock);
        status = gpu_order(g, w, stream, &is_ending);
        stop_driving(g);
        pthread_mutex_lock(&w->lock);
        while (is_ending && !w->is_done)
            pthread_cond_wait(&w->done, &w->lock);
        if (is_ending)
            status = result(w);
    }
    leave(w);
    return status;
}

int coll_work_source(const coll_work_t *work)
{
    struct coll_work *w = (struct coll_work *)work;
    int source = -1;

    if (w == NULL)
        return -1;
    enter(w);
    if (w->is_done && w->status == COLL_OK && w->nops == 1 &&
        !w->ops[0].is_send)
        source = w->ops[0].source;
    else if (w->is_done && w->status == COLL_OK)
        source = w->source;
    leave(w);
    return source;
}

coll_status_t coll_work_then(coll_work_t *w, coll_work_fn_t *fn, void *arg)
{
    coll_status_t status = check(w, "coll_work_then");
    bool is_done;

    if (status == COLL_OK && fn == NULL)
        status = coll_fail(COLL_ERR_ARGUMENT, "coll_work_then: fn is NULL");
    if (status != COLL_OK)
        return status;
    enter(w);
    if (w->then != NULL)
        status = coll_fail(
            COLL_ERR_STATE, "coll_work_then: the work has a function already");
    is_done = w->is_done;
    if (status == COLL_OK) {
        w->then = fn;
        w->then_arg = arg;
    }
    pthread_mutex_unlock(&w->lock);
    if (status == COLL_OK && is_done)
        call_then(w);
    pthread_mutex_lock(&w->lock);
    leave(w);
    return status;
}

void coll_work_free(coll_work_t *w)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->is_given_back = true;
    unlock(w);
}
