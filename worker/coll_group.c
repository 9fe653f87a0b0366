/*
 * Groups: their life, their line of operations, and their failure.
 *
 * Operations stand in line, so that those that do not wait keep their place
 * among those that do: each takes the next turn and runs when it has come, in
 * the thread that called it or in the group's (coll_work.c). Nothing but two
 * counters is touched while nobody has to wait for his turn.
 */
#include "backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coll_agent.h"
#include "coll_algorithm.h"
#include "coll_many.h"
#include "coll_memory.h"
#include "coll_recorder.h"
#include "coll_work.h"
#include "gpu.h"
#include "p2p.h"
#include "rendezvous/base/clock.h"

/* Thirty years in milliseconds: longer time-outs mean this one, so that no
 * deadline overflows. */
#define TIMEOUT_MAX_MS ((int64_t)1000 * 1000 * 1000 * 1000)

/* How long what was aborted may take to end. */
#define ABORTED_MS 10000

#define MAGIC_ALIVE 0x67727570u
#define MAGIC_DEAD 0x64656164u

/* Groups that were destroyed, so that using one is an error and no crash. */
#define DEAD_MAX 64

static struct {
    pthread_mutex_t lock;
    struct coll_group *alive;
    struct coll_group *dead[DEAD_MAX];
    unsigned int next_dead;
    _Atomic bool is_forked;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int64_t bounded(int64_t timeout_ms)
{
    return timeout_ms < TIMEOUT_MAX_MS ? timeout_ms : TIMEOUT_MAX_MS;
}

/* --- Forks ---------------------------------------------------------------- */

/* A child that goes on has copies of the sockets whose end tells the others
 * that this rank has ended. It may not use the groups anyway. */
static void in_child(void)
{
    for (struct coll_group *g = all.alive; g != NULL; g = g->next) {
        atomic_store(&all.is_forked, true);
        if (g->backend->after_fork != NULL)
            g->backend->after_fork(g);
    }
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

coll_status_t coll_group_check_fork(const char *function)
{
    if (!atomic_load_explicit(&all.is_forked, memory_order_relaxed))
        return COLL_OK;
    return coll_fail(COLL_ERR_STATE,
        "%s: this process was forked off by a worker, between its coll_init() "
        "and coll_destroy(); only the worker can use the library",
        function);
}

/* --- Life ----------------------------------------------------------------- */

static void enlist(struct coll_group *g)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&all.lock);
    g->next = all.alive;
    if (g->next != NULL)
        g->next->prev = g;
    all.alive = g;
    g->magic = MAGIC_ALIVE;
    pthread_mutex_unlock(&all.lock);
}

static void bury(struct coll_group *g)
{
    struct coll_group *oldest;

    pthread_mutex_lock(&all.lock);
    if (g->prev != NULL)
        g->prev->next = g->next;
    else
        all.alive = g->next;
    if (g->next != NULL)
        g->next->prev = g->prev;
    g->magic = MAGIC_DEAD;
    oldest = all.dead[all.next_dead];
    all.dead[all.next_dead] = g;
    all.next_dead = (all.next_dead + 1) % DEAD_MAX;
    pthread_mutex_unlock(&all.lock);
    free(oldest);
}

coll_status_t coll_group_create(struct coll_group **out,
    const struct coll_backend *backend, int rank, int size, int64_t timeout_ms,
    const struct coll_boot *boot)
{
    struct coll_group *g;
    coll_status_t status =
        coll_backend_check_size(backend, size, COLL_ERR_UNSUPPORTED);

    if (status != COLL_OK)
        return status;
    g = calloc(1, sizeof(*g));
    if (g != NULL && boot != NULL)
        g->tuning = boot->tuning;
    if (g != NULL && g->tuning == NULL)
        g->tuning = g->own_tuning = calloc(1, sizeof(*g->tuning));
    if (g == NULL || g->tuning == NULL) {
        free(g);
        return coll_fail(COLL_ERR_MEMORY, "out of memory for a group");
    }
    g->backend = backend;
    g->rank = rank;
    g->size = size;
    g->timeout_ms = bounded(timeout_ms);
    g->names = boot == NULL ? NULL : boot->names;
    g->is_deterministic = boot != NULL && boot->is_deterministic;
    g->stages = boot != NULL && boot->stages;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->turn_came, NULL);
    coll_work_queue_init(&g->queue);
    status = backend->create(g, boot);
    if (status == COLL_OK && size > 1) {
        status = p2p_create(&g->p2p, g);
        if (status != COLL_OK) {
            g->failure = status;
            backend->destroy(g);
        }
    }
    if (status != COLL_OK) {
        coll_work_queue_end(&g->queue);
        pthread_cond_destroy(&g->turn_came);
        pthread_mutex_destroy(&g->lock);
        free(g->own_tuning);
        free(g);
        return status;
    }
    enlist(g);
    *out = g;
    return COLL_OK;
}

void coll_group_free(struct coll_group *g)
{
    if (g == NULL)
        return;
    coll_work_queue_end(&g->queue);
    gpu_free(g);
    p2p_destroy(g->p2p);
    g->p2p = NULL;
    g->backend->destroy(g);
    pthread_cond_destroy(&g->turn_came);
    pthread_mutex_destroy(&g->lock);
    free(g->own_names);
    free(g->own_tuning);
    g->own_names = NULL;
    g->own_tuning = NULL;
    g->names = NULL;
    g->tuning = NULL;
    bury(g);
}

struct coll_group *coll_group_get(
    const coll_group_t *group, const char *function, coll_status_t *status)
{
    struct coll_group *g = (struct coll_group *)group;

    *status = coll_group_check_fork(function);
    if (*status != COLL_OK)
        return NULL;
    if (g == NULL) {
        g = coll_default_group();
        if (g == NULL)
            *status = coll_fail(COLL_ERR_STATE,
                "%s: there is no group; call coll_init() first", function);
    } else if (g->magic != MAGIC_ALIVE) {
        *status = coll_fail(
            COLL_ERR_ARGUMENT, "%s: the group has been destroyed", function);
        g = NULL;
    }
    return g;
}

/* --- Failure -------------------------------------------------------------- */

coll_status_t coll_group_fail(struct coll_group *g, coll_status_t status)
{
    bool is_first;

    pthread_mutex_lock(&g->lock);
    is_first = g->failure == COLL_OK;
    if (is_first) {
        coll_memory_distrust(); /* before anybody can know and free some */
        snprintf(
            g->failure_text, sizeof(g->failure_text), "%s", coll_last_error());
        atomic_store_explicit(&g->failure, status, memory_order_release);
    }
    pthread_mutex_unlock(&g->lock);
    if (is_first) {
        coll_agent_note_failure(status);
        p2p_fail(g->p2p, status);
    }
    return status;
}

coll_status_t coll_group_check(struct coll_group *g)
{
    coll_status_t failure =
        atomic_load_explicit(&g->failure, memory_order_acquire);

    if (failure != COLL_OK)
        return coll_fail(failure, "%s", g->failure_text);
    return COLL_OK;
}

/* --- The line ------------------------------------------------------------- */

static void await_turn(struct coll_group *g, uint64_t turn)
{
    if (atomic_load(&g->turn) == turn)
        return;
    pthread_mutex_lock(&g->lock);
    atomic_fetch_add(&g->waiters, 1);
    while (atomic_load(&g->turn) != turn)
        pthread_cond_wait(&g->turn_came, &g->lock);
    atomic_fetch_sub(&g->waiters, 1);
    pthread_mutex_unlock(&g->lock);
}

/* Whoever waits has said so before it looked at the turn. */
static void end_turn(struct coll_group *g)
{
    atomic_fetch_add(&g->turn, 1);
    if (atomic_load(&g->waiters) == 0)
        return;
    pthread_mutex_lock(&g->lock);
    pthread_cond_broadcast(&g->turn_came);
    pthread_mutex_unlock(&g->lock);
}

uint64_t coll_group_take_turn(struct coll_group *g)
{
    return atomic_fetch_add(&g->next_turn, 1);
}

bool coll_group_is_running(struct coll_group *g)
{
    uint64_t turns;

    pthread_mutex_lock(&g->lock);
    turns = atomic_load(&g->next_turn) - atomic_load(&g->turn);
    turns -= g->is_looking;
    pthread_mutex_unlock(&g->lock);
    return turns != 0;
}

bool coll_group_is_busy(struct coll_group *g)
{
    return coll_group_is_running(g) || atomic_load(&g->messages) > 0;
}

bool coll_group_is_in_use(struct coll_group *g)
{
    const struct timespec pause = {.tv_nsec = 50 * 1000};
    uint64_t deadline_ns = clock_deadline_ns(ABORTED_MS);

    /* What was aborted ends by itself, and nobody may be left to wait for it;
     * but for a call that a library does not come back from. */
    while (atomic_load(&g->is_aborted) && coll_group_is_busy(g) &&
           clock_now_ns() < deadline_ns)
        nanosleep(&pause, NULL);
    if (coll_group_is_busy(g))
        return true;
    pthread_mutex_lock(&g->lock);
    while (g->is_looking)
        pthread_cond_wait(&g->turn_came, &g->lock);
    pthread_mutex_unlock(&g->lock);
    /* Several threads may have waited for a work. It is done, so those that
     * have not noticed are about to. */
    while (atomic_load(&g->drivers) > 0)
        nanosleep(&pause, NULL);
    return false;
}

/* Tells the other ranks of the group's failure, if somebody has to. In a turn,
 * because a back end does one thing at a time. */
static void tell_in_turn(struct coll_group *g)
{
    if (atomic_load(&g->must_tell) && atomic_exchange(&g->must_tell, false))
        g->backend->give_up(g, coll_group_check(g));
}

/* Takes the turn if nobody has it, for what is no operation: whoever destroys
 * the group waits for its end. */
static bool take_idle_turn(struct coll_group *g)
{
    uint64_t turn;
    bool is_taken;

    pthread_mutex_lock(&g->lock);
    turn = atomic_load(&g->turn);
    is_taken = atomic_compare_exchange_strong(
        &g->next_turn, &(uint64_t){turn}, turn + 1);
    g->is_looking |= is_taken;
    pthread_mutex_unlock(&g->lock);
    return is_taken;
}

static void end_idle_turn(struct coll_group *g)
{
    pthread_mutex_lock(&g->lock);
    g->is_looking = false;
    atomic_fetch_add(&g->turn, 1);
    pthread_cond_broadcast(&g->turn_came);
    pthread_mutex_unlock(&g->lock);
}

/* The same where nobody has the turn. Whoever has it, or takes it meanwhile,
 * comes here after it, and finds what was to be told before it ended it. */
static void tell_when_idle(struct coll_group *g)
{
    while (atomic_load(&g->must_tell) && take_idle_turn(g)) {
        tell_in_turn(g);
        end_idle_turn(g);
    }
}

coll_status_t coll_group_look(
    struct coll_group *g, const struct coll_call *call)
{
    coll_status_t status;

    if (g->backend->look == NULL || !take_idle_turn(g))
        return COLL_OK;
    status = g->backend->look(g, call);
    tell_in_turn(g);
    end_idle_turn(g);
    tell_when_idle(g);
    return status;
}

/* Runs a call between two marks in the recorder. */
static coll_status_t run_recorded(struct coll_group *g, struct coll_call *call)
{
    uint64_t now_ns = clock_now_ns();
    uint64_t ticket = coll_recorder_enter(g, call, now_ns);
    coll_status_t status;

    call->deadline_ns = now_ns + (uint64_t)call->timeout_ms * CLOCK_NS_PER_MS;
    status =
        coll_many_is(call) ? coll_many_run(g, call) : g->backend->run(g, call);
    coll_recorder_finish(ticket, status, now_ns);
    return status;
}

/* What a call that has run returns. */
static coll_status_t conclude(
    struct coll_group *g, const struct coll_call *call, coll_status_t status)
{
    if (call->is_refused)
        return status;
    if (status != COLL_OK)
        coll_group_fail(g, status);
    /* A back end has told the others of what failed in it. */
    if (g->failure != COLL_OK &&
        (status == COLL_OK || call->on_gpu || g->stages))
        atomic_store(&g->must_tell, true);
    /* It is on its way on the device, and its work says what becomes of it. */
    if (status == COLL_OK && call->work != NULL)
        return COLL_OK;
    /* The first failure is that of all, and it may have come meanwhile. */
    return coll_group_check(g);
}

coll_status_t coll_group_run_in_turn(
    struct coll_group *g, struct coll_call *call, uint64_t turn)
{
    coll_status_t status;

    await_turn(g, turn);
    status = coll_group_check(g);
    if (status == COLL_OK) {
        call->seq = ++g->seq;
        call->algorithms = g->tuning->code;
        call->timeout_ms =
            call->timeout_ms > 0 ? bounded(call->timeout_ms) : g->timeout_ms;
        status = call->on_gpu               ? gpu_run(g, call)
                 : gpu_stage_takes(g, call) ? gpu_stage_run(g, call)
                                            : run_recorded(g, call);
        status = conclude(g, call, status);
    }
    tell_in_turn(g);
    end_turn(g);
    tell_when_idle(g);
    return status;
}

coll_status_t coll_group_run(struct coll_group *g, struct coll_call *call)
{
    coll_status_t status = COLL_OK;

    if (call->work == NULL)
        status = coll_work_check_thread(coll_kind_name(call->kind));
    if (status == COLL_OK)
        status = coll_group_run_in_turn(g, call, coll_group_take_turn(g));
    return status;
}

void coll_group_give_up(struct coll_group *g, coll_status_t status)
{
    coll_group_fail(g, status);
    atomic_store(&g->must_tell, true);
    tell_when_idle(g);
}

coll_status_t coll_abort(coll_group_t *group)
{
    coll_status_t status = COLL_OK;
    struct coll_group *g = coll_group_get(group, "coll_abort", &status);

    if (g == NULL)
        return status;
    coll_fail(COLL_ERR_ABORTED, "aborted by coll_abort()");
    atomic_store(&g->is_aborted, true);
    coll_group_give_up(g, COLL_ERR_ABORTED);
    g->backend->wake(g);
    return COLL_OK;
}

bool coll_groups_are_in_use(void)
{
    bool is_in_use = false;

    pthread_mutex_lock(&all.lock);
    for (struct coll_group *g = all.alive; g != NULL; g = g->next)
        is_in_use |= coll_group_is_in_use(g);
    pthread_mutex_unlock(&all.lock);
    return is_in_use;
}

void coll_groups_free_made(void)
{
    struct coll_group *g;

    do {
        pthread_mutex_lock(&all.lock);
        g = all.alive;
        while (g != NULL && g->own_names == NULL)
            g = g->next;
        pthread_mutex_unlock(&all.lock);
        coll_group_free(g);
    } while (g != NULL);
}

/* --- Who is in it --------------------------------------------------------- */

/* NULL if there is no such group. Leaves the error sentence as it is: it may
 * be what these names are asked for. */
static const struct coll_group *find(const coll_group_t *group)
{
    if (group == NULL)
        return coll_default_group();
    return group->magic == MAGIC_ALIVE ? group : NULL;
}

int coll_rank(const coll_group_t *group)
{
    const struct coll_group *g = find(group);

    return g == NULL ? -1 : g->rank;
}

int coll_world_size(const coll_group_t *group)
{
    const struct coll_group *g = find(group);

    return g == NULL ? -1 : g->size;
}

const char *coll_group_backend_name(const struct coll_group *g)
{
    return g->stages ? "nccl" : g->backend->name;
}

const char *coll_backend_name(const coll_group_t *group)
{
    const struct coll_group *g = find(group);

    return g == NULL ? NULL : coll_group_backend_name(g);
}

int coll_global_rank(const coll_group_t *group, int group_rank)
{
    const struct coll_group *g = find(group);

    if (g == NULL || group_rank < 0 || group_rank >= g->size)
        return -1;
    return g->names == NULL ? group_rank : g->names[group_rank];
}

int coll_group_rank(const coll_group_t *group, int global_rank)
{
    const struct coll_group *g = find(group);

    for (int r = 0; g != NULL && r < g->size; r++)
        if ((g->names == NULL ? r : g->names[r]) == global_rank)
            return r;
    return -1;
}
