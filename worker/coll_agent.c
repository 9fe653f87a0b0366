/*
 * The worker's end of the agent channel; see coll_agent.h. The state is the
 * process's, as that of coll_init.c: there is one launcher.
 */
#include "coll_agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "coll_recorder.h"
#include "rendezvous/agent_channel.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/text.h"
#include "rendezvous/fd_message.h"
#include "rendezvous/worker_env.h"

static _Alignas(64) struct recorder private_recorder;

static struct {
    int fd; /* -1: not attached */
    _Atomic bool is_gone; /* the agent has closed it; fd stays open */
    _Atomic bool is_told;
    pthread_mutex_t lock; /* of receiving and failure */
    struct agent_frame failure; /* constant once is_told */
    pthread_mutex_t recorder_lock; /* of exchanging it */
    struct recorder *recorder; /* what the agent passed, or NULL */
} agent = {.fd = -1,
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .recorder_lock = PTHREAD_MUTEX_INITIALIZER};

/* --- Frames --------------------------------------------------------------- */

static int send_frame(int fd, const struct agent_frame *frame)
{
    uint8_t bytes[AGENT_FRAME_MAX];
    size_t len = agent_frame_encode(frame, bytes);

    return send(fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

/* 0, and *descriptor is what came along or -1; -EAGAIN: nothing is there;
 * another negative errno: nothing more will come. */
static int receive_frame(int fd, struct agent_frame *frame, int *descriptor)
{
    uint8_t bytes[AGENT_FRAME_MAX];
    ssize_t n = fd_message_receive(fd, bytes, sizeof(bytes), descriptor);
    int rc;

    if (n < 0)
        return (int)n;
    rc = n == 0 ? -ECONNRESET : agent_frame_decode(frame, bytes, (size_t)n);
    if (rc < 0 && *descriptor >= 0) {
        close(*descriptor);
        *descriptor = -1;
    }
    return rc;
}

/* --- Attaching ------------------------------------------------------------ */

static bool env_number(const char *name, int32_t *out)
{
    const char *text = getenv(name);
    int64_t value;

    if (text == NULL || text_to_i64(text, &value) < 0 || value < 0 ||
        value > INT32_MAX)
        return false;
    *out = (int32_t)value;
    return true;
}

/* The name could have been taken by another user since its agent is gone. */
static bool is_ours(int fd)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0 &&
           cred.uid == geteuid();
}

static int connect_to_agent(
    const struct sockaddr_un *addr, socklen_t addr_len, uint64_t deadline_ns)
{
    const struct timeval limit = {.tv_sec = COLL_AGENT_ANSWER_MS / 1000,
        .tv_usec = COLL_AGENT_ANSWER_MS % 1000 * 1000 + 1};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int rc;

    if (fd < 0)
        return -errno;
    /* It waits only while the agent's backlog is full. */
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    do {
        rc = connect(fd, (const struct sockaddr *)addr, addr_len);
    } while (rc < 0 && errno == EINTR && clock_left_ms(deadline_ns) > 0);
    if (rc == 0 && is_ours(fd))
        return fd;
    close(fd);
    return -ECONNREFUSED;
}

static int wait_readable(int fd, uint64_t deadline_ns)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    for (;;) {
        int n = poll(&p, 1, clock_left_ms(deadline_ns));

        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return -errno;
        if (clock_left_ms(deadline_ns) == 0)
            return -ETIMEDOUT;
    }
}

/* Memory that can shrink, or has another layout, is none. Closes fd. */
static struct recorder *map_recorder(int fd)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
    struct recorder *r = MAP_FAILED;
    struct stat st;
    int have;

    if (fd < 0)
        return NULL;
    have = fcntl(fd, F_GET_SEALS);
    if (have >= 0 && (have & seals) == seals && fstat(fd, &st) == 0 &&
        st.st_size == (off_t)sizeof(*r))
        r = mmap(NULL, sizeof(*r), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (r == MAP_FAILED)
        return NULL;
    if (recorder_is_valid(r))
        return r;
    munmap(r, sizeof(*r));
    return NULL;
}

/* Takes r, NULL for the private one. */
static void use_recorder(struct recorder *r)
{
    if (r != NULL)
        coll_recorder_name_calls(r);
    pthread_mutex_lock(&agent.recorder_lock);
    if (agent.recorder != NULL)
        munmap(agent.recorder, sizeof(*agent.recorder));
    agent.recorder = r;
    if (r == NULL) {
        recorder_init(&private_recorder, 0);
        coll_recorder_name_calls(&private_recorder);
    }
    pthread_mutex_unlock(&agent.recorder_lock);
}

static bool describe(
    struct agent_frame *attach, struct sockaddr_un *addr, socklen_t *addr_len)
{
    const char *text = getenv(ENV_AGENT);

    *attach =
        (struct agent_frame){.kind = AGENT_ATTACH, .pid = (int32_t)getpid()};
    return text != NULL &&
           agent_channel_parse(text, addr, addr_len, &attach->round) == 0 &&
           env_number(ENV_RANK, &attach->rank) &&
           env_number(ENV_LOCAL_RANK, &attach->local_rank);
}

/* Connects and is accepted, or returns -1; *r is the recorder that came along,
 * or as it was. */
static int attach_as(const struct agent_frame *attach,
    const struct sockaddr_un *addr, socklen_t addr_len, struct recorder **r)
{
    uint64_t deadline_ns = clock_deadline_ns(COLL_AGENT_ANSWER_MS);
    int fd = connect_to_agent(addr, addr_len, deadline_ns);
    struct agent_frame answer;
    int descriptor;

    if (fd < 0)
        return -1;
    if (send_frame(fd, attach) < 0 || wait_readable(fd, deadline_ns) < 0 ||
        receive_frame(fd, &answer, &descriptor) < 0)
        goto fail;
    if (answer.kind != AGENT_ATTACHED) {
        if (descriptor >= 0)
            close(descriptor);
        goto fail;
    }
    *r = map_recorder(descriptor);
    return fd;
fail:
    close(fd);
    return -1;
}

void coll_agent_attach(void)
{
    struct recorder *recorder = NULL;
    struct agent_frame attach;
    struct sockaddr_un addr;
    socklen_t addr_len;

    coll_agent_detach();
    if (describe(&attach, &addr, &addr_len))
        agent.fd = attach_as(&attach, &addr, addr_len, &recorder);
    use_recorder(recorder);
}

void coll_agent_detach(void)
{
    if (agent.fd >= 0)
        close(agent.fd);
    agent.fd = -1;
    atomic_store(&agent.is_gone, false);
    atomic_store(&agent.is_told, false);
}

/* --- Being told ----------------------------------------------------------- */

int coll_agent_fd(void)
{
    return atomic_load(&agent.is_gone) ? -1 : agent.fd;
}

bool coll_agent_is_told(void)
{
    struct agent_frame frame;
    int descriptor;
    int rc;

    if (atomic_load(&agent.is_told))
        return true;
    if (coll_agent_fd() < 0)
        return false;
    pthread_mutex_lock(&agent.lock);
    while (!atomic_load(&agent.is_told) && !atomic_load(&agent.is_gone)) {
        rc = receive_frame(agent.fd, &frame, &descriptor);
        if (rc == -EAGAIN)
            break;
        if (descriptor >= 0)
            close(descriptor);
        if (rc < 0) {
            atomic_store(&agent.is_gone, true);
        } else if (frame.kind == AGENT_FAILURE) {
            agent.failure = frame;
            atomic_store(&agent.is_told, true);
        }
    }
    pthread_mutex_unlock(&agent.lock);
    return atomic_load(&agent.is_told);
}

bool coll_agent_await_cause(void)
{
    uint64_t deadline_ns = clock_deadline_ns(COLL_AGENT_CAUSE_MS);

    while (!coll_agent_is_told() && coll_agent_fd() >= 0)
        if (wait_readable(coll_agent_fd(), deadline_ns) < 0)
            return coll_agent_is_told();
    return coll_agent_is_told();
}

coll_status_t coll_agent_fail(const char *call)
{
    const struct agent_frame *f = &agent.failure;

    if (f->rank < 0)
        return coll_fail(COLL_ERR_PEER,
            "%s: node %.64s is lost: %.256s, told by the launcher", call,
            f->host, f->text);
    return coll_fail(COLL_ERR_PEER,
        "%s: rank %d (local rank %d on host %.64s) failed: %.256s, told by "
        "the launcher",
        call, f->rank, f->local_rank, f->host, f->text);
}

const struct interrupt coll_agent_interrupt = {
    .fd = coll_agent_fd,
    .is_due = coll_agent_is_told,
};

coll_status_t coll_agent_fail_canceled(const char *call)
{
    if (coll_agent_is_told())
        return coll_agent_fail(call);
    return coll_fail(COLL_ERR_PEER, "%s", coll_last_error());
}

coll_status_t coll_agent_pause(const char *call, long ms)
{
    if (interrupt_wait(-1, 0, clock_deadline_ns(ms)) == -ECANCELED)
        return coll_agent_fail_canceled(call);
    return COLL_OK;
}

/* --- What this rank says -------------------------------------------------- */

struct recorder *coll_agent_recorder(void)
{
    return agent.recorder != NULL ? agent.recorder : &private_recorder;
}

const struct recorder *coll_agent_hold_recorder(void)
{
    pthread_mutex_lock(&agent.recorder_lock);
    return coll_agent_recorder();
}

void coll_agent_release_recorder(void)
{
    pthread_mutex_unlock(&agent.recorder_lock);
}

void coll_agent_note_failure(coll_status_t status)
{
    struct agent_frame frame = {.kind = AGENT_COLLATERAL};

    if (status != COLL_ERR_PEER || coll_agent_fd() < 0)
        return;
    snprintf(frame.text, sizeof(frame.text), "%s", coll_last_error());
    /* An agent that does not read is not waited for. */
    send_frame(agent.fd, &frame);
}
