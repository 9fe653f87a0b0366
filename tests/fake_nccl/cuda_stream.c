/*
 * A test double, see cuda_fake.h: streams and events. A stream is a queue and
 * a thread that runs what is in it; both end when the stream was destroyed
 * and the queue is empty. An event counts how often it was recorded and how
 * often a stream has come so far.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fake_nccl/cuda_fake.h"

struct task {
    struct task *next;
    cu_host_function_t *run;
    void *arg;
};

struct cu_stream {
    struct cu_stream *next; /* of all that are not destroyed */
    struct task *first, *last;
    bool is_running;
    bool is_closing;
    cu_capture_status_t capture;
};

struct cu_event {
    unsigned int refs; /* the handle, and each use that is in a queue */
    bool is_destroyed;
    uint64_t recorded, reached;
};

static struct cu_stream *streams;
static struct cu_stream *defaults[FAKE_CUDA_DEVICES_MAX];

static void *run_stream(void *arg)
{
    struct cu_stream *s = arg;

    pthread_mutex_lock(&fake_cuda_lock);
    while (s->first != NULL || !s->is_closing) {
        struct task *task = s->first;

        if (task == NULL) {
            pthread_cond_wait(&fake_cuda_changed, &fake_cuda_lock);
            continue;
        }
        s->first = task->next;
        s->is_running = true;
        pthread_mutex_unlock(&fake_cuda_lock);
        task->run(task->arg);
        free(task);
        pthread_mutex_lock(&fake_cuda_lock);
        s->is_running = false;
        pthread_cond_broadcast(&fake_cuda_changed);
    }
    pthread_mutex_unlock(&fake_cuda_lock);
    free(s);
    return NULL;
}

/* NULL if there is no memory or no thread. */
static struct cu_stream *start_stream(void)
{
    struct cu_stream *s = calloc(1, sizeof(*s));
    pthread_attr_t attributes;
    pthread_t thread;
    int rc;

    if (s == NULL)
        return NULL;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    rc = pthread_create(&thread, &attributes, run_stream, s);
    pthread_attr_destroy(&attributes);
    if (rc != 0) {
        free(s);
        return NULL;
    }
    return s;
}

/*
 * With the lock: the stream of a handle. The driver has three numbers in the
 * place of handles (0, "legacy" 1, "per thread" 2), here all the same stream
 * of the current device.
 */
static cu_result_t find(
    struct cu_stream *handle, int device, struct cu_stream **out)
{
    if ((uintptr_t)handle <= 2) {
        if (defaults[device] == NULL)
            defaults[device] = start_stream();
        *out = defaults[device];
        return *out != NULL ? COLL_CUDA_SUCCESS : COLL_CUDA_OUT_OF_MEMORY;
    }
    for (*out = streams; *out != NULL; *out = (*out)->next)
        if (*out == handle)
            return COLL_CUDA_SUCCESS;
    return COLL_CUDA_INVALID_HANDLE;
}

/* Begins a function of a stream: on success the lock is held. */
static cu_result_t enter_stream(
    const char *function, struct cu_stream *handle, struct cu_stream **out)
{
    struct cu_context *context = NULL;
    cu_result_t rc = (uintptr_t)handle <= 2
                         ? fake_cuda_enter_context(function, &context)
                         : fake_cuda_enter(function);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    pthread_mutex_lock(&fake_cuda_lock);
    rc = find(handle, context != NULL ? context->device : 0, out);
    if (rc != COLL_CUDA_SUCCESS)
        pthread_mutex_unlock(&fake_cuda_lock);
    return rc;
}

static bool is_idle(const struct cu_stream *s)
{
    return s->first == NULL && !s->is_running;
}

/* With the lock. */
static cu_result_t push(struct cu_stream *s, cu_host_function_t *run, void *arg)
{
    struct task *task = malloc(sizeof(*task));

    if (task == NULL)
        return COLL_CUDA_OUT_OF_MEMORY;
    *task = (struct task){.run = run, .arg = arg};
    if (s->first == NULL)
        s->first = task;
    else
        s->last->next = task;
    s->last = task;
    pthread_cond_broadcast(&fake_cuda_changed);
    return COLL_CUDA_SUCCESS;
}

cu_result_t cuStreamCreateWithPriority(
    struct cu_stream **stream, unsigned int flags, int priority)
{
    struct cu_context *context;
    cu_result_t rc = fake_cuda_enter_context(__func__, &context);
    struct cu_stream *s;

    (void)priority; /* is brought into the range by the real one */
    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    if (flags > COLL_CUDA_STREAM_NON_BLOCKING)
        return COLL_CUDA_INVALID_VALUE;
    s = start_stream();
    if (s == NULL)
        return COLL_CUDA_OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_cuda_lock);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&fake_cuda_lock);
    *stream = s;
    return COLL_CUDA_SUCCESS;
}

cu_result_t cuStreamDestroy_v2(struct cu_stream *stream)
{
    struct cu_stream *s, **at;
    cu_result_t rc = fake_cuda_enter(__func__);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    pthread_mutex_lock(&fake_cuda_lock);
    rc = COLL_CUDA_INVALID_HANDLE;
    for (at = &streams; (s = *at) != NULL; at = &s->next) {
        if (s == stream) {
            *at = s->next;
            s->is_closing = true;
            pthread_cond_broadcast(&fake_cuda_changed);
            rc = COLL_CUDA_SUCCESS;
            break;
        }
    }
    pthread_mutex_unlock(&fake_cuda_lock);
    return rc;
}

cu_result_t cuStreamQuery(struct cu_stream *stream)
{
    struct cu_stream *s;
    cu_result_t rc = enter_stream(__func__, stream, &s);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    if (s->capture != COLL_CUDA_CAPTURE_NONE)
        rc = COLL_CUDA_CAPTURE_UNSUPPORTED;
    else if (!is_idle(s))
        rc = COLL_CUDA_NOT_READY;
    pthread_mutex_unlock(&fake_cuda_lock);
    return rc;
}

/* Nobody may destroy a stream that another waits for. */
cu_result_t cuStreamSynchronize(struct cu_stream *stream)
{
    struct cu_stream *s;
    cu_result_t rc = enter_stream(__func__, stream, &s);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    if (s->capture != COLL_CUDA_CAPTURE_NONE)
        rc = COLL_CUDA_CAPTURE_UNSUPPORTED;
    while (rc == COLL_CUDA_SUCCESS && !is_idle(s))
        pthread_cond_wait(&fake_cuda_changed, &fake_cuda_lock);
    pthread_mutex_unlock(&fake_cuda_lock);
    return rc;
}

cu_result_t cuStreamIsCapturing(
    struct cu_stream *stream, cu_capture_status_t *status)
{
    struct cu_stream *s;
    cu_result_t rc = enter_stream(__func__, stream, &s);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    *status = s->capture;
    pthread_mutex_unlock(&fake_cuda_lock);
    return COLL_CUDA_SUCCESS;
}

void fake_cuda_set_capture(struct cu_stream *stream, cu_capture_status_t status)
{
    struct cu_stream *s;

    pthread_mutex_lock(&fake_cuda_lock);
    if (find(stream, 0, &s) == COLL_CUDA_SUCCESS)
        s->capture = status;
    pthread_mutex_unlock(&fake_cuda_lock);
}

cu_result_t fake_cuda_push(
    struct cu_stream *stream, cu_host_function_t *run, void *arg)
{
    struct cu_stream *s;
    cu_result_t rc = enter_stream("", stream, &s);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    rc = s->capture == COLL_CUDA_CAPTURE_NONE ? push(s, run, arg)
                                              : COLL_CUDA_CAPTURE_UNSUPPORTED;
    pthread_mutex_unlock(&fake_cuda_lock);
    return rc;
}

cu_result_t cuLaunchHostFunc(
    struct cu_stream *stream, cu_host_function_t *run, void *arg)
{
    struct cu_stream *s;
    cu_result_t rc = enter_stream(__func__, stream, &s);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    if (s->capture == COLL_CUDA_CAPTURE_NONE)
        rc = push(s, run, arg);
    pthread_mutex_unlock(&fake_cuda_lock);
    return rc;
}

cu_result_t cuEventCreate(struct cu_event **event, unsigned int flags)
{
    struct cu_context *context;
    cu_result_t rc = fake_cuda_enter_context(__func__, &context);
    struct cu_event *e;

    (void)flags;
    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    e = calloc(1, sizeof(*e));
    if (e == NULL)
        return COLL_CUDA_OUT_OF_MEMORY;
    e->refs = 1;
    *event = e;
    return COLL_CUDA_SUCCESS;
}

/* With the lock. */
static void release_event(struct cu_event *e)
{
    if (--e->refs == 0)
        free(e);
}

cu_result_t cuEventDestroy_v2(struct cu_event *event)
{
    cu_result_t rc = fake_cuda_enter(__func__);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    pthread_mutex_lock(&fake_cuda_lock);
    event->is_destroyed = true;
    release_event(event);
    pthread_mutex_unlock(&fake_cuda_lock);
    return COLL_CUDA_SUCCESS;
}

/* One recording of an event, and who waits for it or reaches it. */
struct mark {
    struct cu_event *event;
    uint64_t number;
};

static void reach(void *arg)
{
    struct mark *mark = arg;
    struct cu_event *e = mark->event;

    pthread_mutex_lock(&fake_cuda_lock);
    if (e->reached < mark->number)
        e->reached = mark->number;
    pthread_cond_broadcast(&fake_cuda_changed);
    release_event(e);
    pthread_mutex_unlock(&fake_cuda_lock);
    free(mark);
}

static void wait_for(void *arg)
{
    struct mark *mark = arg;

    pthread_mutex_lock(&fake_cuda_lock);
    while (mark->event->reached < mark->number)
        pthread_cond_wait(&fake_cuda_changed, &fake_cuda_lock);
    release_event(mark->event);
    pthread_mutex_unlock(&fake_cuda_lock);
    free(mark);
}

/* With the lock. */
static cu_result_t push_mark(
    struct cu_stream *s, struct cu_event *event, cu_host_function_t *run)
{
    struct mark *mark = malloc(sizeof(*mark));

    if (mark == NULL)
        return COLL_CUDA_OUT_OF_MEMORY;
    *mark = (struct mark){.event = event, .number = event->recorded};
    if (push(s, run, mark) != COLL_CUDA_SUCCESS) {
        free(mark);
        return COLL_CUDA_OUT_OF_MEMORY;
    }
    event->refs++;
    return COLL_CUDA_SUCCESS;
}

cu_result_t cuEventRecord(struct cu_event *event, struct cu_stream *stream)
{
    struct cu_stream *s;
    cu_result_t rc = enter_stream(__func__, stream, &s);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    if (event->is_destroyed) {
        rc = COLL_CUDA_INVALID_HANDLE;
    } else if (s->capture == COLL_CUDA_CAPTURE_NONE) {
        event->recorded++;
        rc = push_mark(s, event, reach);
    }
    pthread_mutex_unlock(&fake_cuda_lock);
    return rc;
}

cu_result_t cuStreamWaitEvent(
    struct cu_stream *stream, struct cu_event *event, unsigned int flags)
{
    struct cu_stream *s;
    cu_result_t rc = enter_stream(__func__, stream, &s);

    (void)flags;
    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    if (event->is_destroyed)
        rc = COLL_CUDA_INVALID_HANDLE;
    else if (s->capture == COLL_CUDA_CAPTURE_NONE)
        rc = push_mark(s, event, wait_for);
    pthread_mutex_unlock(&fake_cuda_lock);
    return rc;
}

cu_result_t cuEventQuery(struct cu_event *event)
{
    cu_result_t rc = fake_cuda_enter(__func__);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    pthread_mutex_lock(&fake_cuda_lock);
    if (event->reached < event->recorded)
        rc = COLL_CUDA_NOT_READY;
    pthread_mutex_unlock(&fake_cuda_lock);
    return rc;
}

cu_result_t cuEventSynchronize(struct cu_event *event)
{
    cu_result_t rc = fake_cuda_enter(__func__);

    if (rc != COLL_CUDA_SUCCESS)
        return rc;
    pthread_mutex_lock(&fake_cuda_lock);
    for (uint64_t number = event->recorded; event->reached < number;)
        pthread_cond_wait(&fake_cuda_changed, &fake_cuda_lock);
    pthread_mutex_unlock(&fake_cuda_lock);
    return COLL_CUDA_SUCCESS;
}
