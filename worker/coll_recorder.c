/*
 * What this process writes to its recorder, and coll_recorder_dump().
 *
 * The cost of an operation in the recorder is a few stores and one cheap look
 * at the clock: when it begins, the deadline needs the time anyway, and when
 * it ends well the kernel's last tick will do. A call that failed is worth
 * the exact time: the reader compares it with that of other ranks.
 */
#include "coll_recorder.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "coll_agent.h"
#include "coll_ranks.h"
#include "rendezvous/base/clock.h"

#define LINE_MAX_BYTES 640

_Static_assert((int)RECORDER_ENVIRONMENT == (int)COLL_ERR_ENVIRONMENT &&
                   (int)RECORDER_TIMEOUT == (int)COLL_ERR_TIMEOUT &&
                   (int)RECORDER_MISMATCH == (int)COLL_ERR_MISMATCH,
    "as the reader has it");

#define CHECK_NAME(symbol, name)                                               \
    _Static_assert(sizeof(name) <= RECORDER_NAME_LEN, name " is too long");
COLL_KIND_MAP(CHECK_NAME)
#undef CHECK_NAME

void coll_recorder_name_calls(struct recorder *r)
{
#define NAME_KIND(symbol, name) recorder_set_name(r->kinds, 1 + symbol, name);
#define NAME_DTYPE(symbol, name, size)                                         \
    recorder_set_name(r->dtypes, 1 + symbol, name);
#define NAME_OP(symbol, name) recorder_set_name(r->ops, 1 + symbol, name);
    COLL_KIND_MAP(NAME_KIND)
    COLL_DTYPE_MAP(NAME_DTYPE)
    COLL_OP_MAP(NAME_OP)
#undef NAME_KIND
#undef NAME_DTYPE
#undef NAME_OP
    recorder_set_name(r->kinds, RECORDER_INIT, "coll_init");
}

void coll_recorder_add_group(const struct coll_group *g)
{
    char text[sizeof("ranks ") + RECORDER_RANKS_LEN];
    bool *in;

    if (g->id == 0)
        return;
    in = malloc((size_t)g->size * sizeof(*in));
    if (in == NULL)
        return; /* then it has no more than a number in the report */
    memset(in, true, (size_t)g->size * sizeof(*in));
    coll_ranks_text(text, sizeof(text), in, g->size, g->names);
    free(in);
    recorder_add_group(
        coll_agent_recorder(), g->id, g->size, strchr(text, ' ') + 1);
}

/* --- Calls ---------------------------------------------------------------- */

static bool has_root(enum coll_kind kind)
{
    switch (kind) {
    case COLL_KIND_BROADCAST:
    case COLL_KIND_BROADCAST_OBJECT:
    case COLL_KIND_REDUCE:
    case COLL_KIND_GATHER:
    case COLL_KIND_SCATTER:
    case COLL_KIND_SEND:
    case COLL_KIND_RECV:
        return true;
    default:
        return false;
    }
}

static bool has_op(enum coll_kind kind)
{
    switch (kind) {
    case COLL_KIND_ALL_REDUCE:
    case COLL_KIND_REDUCE:
    case COLL_KIND_REDUCE_SCATTER:
    case COLL_KIND_REDUCE_SCATTER_V:
    case COLL_KIND_ALL_REDUCE_COALESCED:
    case COLL_KIND_REDUCE_SCATTER_COALESCED:
        return true;
    default:
        return false;
    }
}

uint64_t coll_recorder_enter(
    const struct coll_group *g, const struct coll_call *call, uint64_t now_ns)
{
    const struct recorder_call entry = {
        .group = g->id,
        .seq = call->seq,
        .count = call->count,
        .now_ns = now_ns,
        .root = has_root(call->kind) ? call->root : RECORDER_NO_ROOT,
        .kind = (uint8_t)(1 + call->kind),
        .dtype =
            call->kind == COLL_KIND_BARRIER ? 0 : (uint8_t)(1 + call->dtype),
        .op = has_op(call->kind) ? (uint8_t)(1 + call->op) : 0,
    };

    return recorder_enter(coll_agent_recorder(), &entry);
}

/* That of the last tick, a few milliseconds ago at most. */
static uint64_t coarse_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
    return (uint64_t)ts.tv_sec * CLOCK_NS_PER_S + (uint64_t)ts.tv_nsec;
}

void coll_recorder_finish(
    uint64_t ticket, coll_status_t status, uint64_t entered_ns)
{
    uint64_t now_ns = status == COLL_OK ? coarse_now_ns() : clock_now_ns();

    recorder_finish(coll_agent_recorder(), ticket, status,
        now_ns > entered_ns ? now_ns : entered_ns);
}

/* --- The dump ------------------------------------------------------------- */

/* A text of the recorder needs no escapes; an empty one is none. */
static void quote(char *out, size_t size, const char *text)
{
    snprintf(out, size, text[0] == '\0' ? "null" : "\"%s\"", text);
}

static int format_call(char *line, size_t size, const struct recorder *r,
    const struct recorder_seen *seen)
{
    char kind[RECORDER_NAME_LEN + 2], dtype[RECORDER_NAME_LEN + 2];
    char op[RECORDER_NAME_LEN + 2], ranks[RECORDER_RANKS_LEN + 2] = "null";
    char root[16] = "null", finished[24] = "null", status[16] = "null";
    char text[RECORDER_RANKS_LEN];
    uint32_t n;

    quote(kind, sizeof(kind), seen->kind);
    quote(dtype, sizeof(dtype), seen->dtype);
    quote(op, sizeof(op), seen->op);
    if (recorder_find_group(r, seen->group, text, &n))
        quote(ranks, sizeof(ranks), text);
    if (seen->root != RECORDER_NO_ROOT)
        snprintf(root, sizeof(root), "%" PRId32, seen->root);
    if (seen->is_finished) {
        snprintf(finished, sizeof(finished), "%" PRIu64, seen->finished_ns);
        snprintf(status, sizeof(status), "%" PRId32, seen->status);
    }
    return snprintf(line, size,
        "{\"group\": %" PRIu32 ", \"ranks\": %s, \"seq\": %" PRIu64
        ", \"kind\": %s, \"dtype\": %s, \"op\": %s, \"count\": %" PRIu64
        ", \"root\": %s, \"entered_ns\": %" PRIu64
        ", \"finished_ns\": %s, \"status\": %s}\n",
        seen->group, ranks, seen->seq, kind, dtype, op, seen->count, root,
        seen->entered_ns, finished, status);
}

static int write_all(int fd, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, bytes, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        bytes += n;
        len -= (size_t)n;
    }
    return 0;
}

coll_status_t coll_recorder_dump(int fd)
{
    char *text = malloc((size_t)RECORDER_ENTRIES * LINE_MAX_BYTES);
    struct recorder_seen seen[RECORDER_ENTRIES];
    const struct recorder *r;
    size_t len = 0;
    size_t n;
    int rc;

    if (text == NULL)
        return coll_fail(COLL_ERR_MEMORY, "coll_recorder_dump: out of memory");
    r = coll_agent_hold_recorder();
    n = recorder_read(r, seen);
    for (size_t i = 0; i < n; i++)
        len += (size_t)format_call(text + len, LINE_MAX_BYTES, r, &seen[i]);
    coll_agent_release_recorder();
    /* Outside: whoever reads there may take his time. */
    rc = write_all(fd, text, len);
    free(text);
    if (rc < 0)
        return coll_fail(COLL_ERR_SYSTEM,
            "coll_recorder_dump: cannot write to descriptor %d: %s", fd,
            strerror(-rc));
    return COLL_OK;
}
