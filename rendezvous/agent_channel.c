/* Frames of the agent channel to and from bytes; see agent_channel.h. */
#include "rendezvous/agent_channel.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "rendezvous/base/text.h"

static const uint8_t magic[4] = {'C', 'R', 'A', 'C'};

/* Which fields a kind has, in their order on the wire. */
static const struct layout {
    int numbers; /* the first ones of rank, local_rank, pid, round */
    bool has_host;
    bool has_text;
} layouts[AGENT_FRAME_COUNT] = {
    [AGENT_ATTACH] = {.numbers = 4},
    [AGENT_ATTACHED] = {0},
    [AGENT_REFUSED] = {.has_text = true},
    [AGENT_FAILURE] = {.numbers = 2, .has_host = true, .has_text = true},
    [AGENT_COLLATERAL] = {.has_text = true},
};

#define HEADER_LEN 8

_Static_assert(HEADER_LEN + 4 * sizeof(int32_t) +
                       sizeof(((struct agent_frame *)NULL)->host) + 2 +
                       sizeof(((struct agent_frame *)NULL)->text) + 2 <=
                   AGENT_FRAME_MAX,
    "every frame fits");

const char *agent_frame_name(enum agent_frame_kind kind)
{
    static const char *const names[] = {
#define NAME(name) [name] = #name,
        AGENT_FRAME_MAP(NAME)
#undef NAME
    };

    if ((unsigned int)kind >= AGENT_FRAME_COUNT)
        return "?";
    return names[kind] + sizeof("AGENT_") - 1;
}

/* --- Little-endian numbers, and texts with their length in front ---------- */

static uint8_t *put_u16(uint8_t *at, uint32_t value)
{
    *at++ = (uint8_t)value;
    *at++ = (uint8_t)(value >> 8);
    return at;
}

static uint8_t *put_i32(uint8_t *at, int32_t value)
{
    return put_u16(put_u16(at, (uint32_t)value), (uint32_t)value >> 16);
}

static uint8_t *put_text(uint8_t *at, const char *text, size_t cap)
{
    size_t len = strnlen(text, cap - 1);

    at = put_u16(at, (uint32_t)len);
    memcpy(at, text, len);
    return at + len;
}

/* What is left of a packet. */
struct rest {
    const uint8_t *at;
    size_t len;
    bool is_short; /* more was asked for than there is */
};

static const uint8_t *take(struct rest *r, size_t n)
{
    const uint8_t *at = r->at;

    if (n > r->len) {
        r->is_short = true;
        r->len = 0;
        return NULL;
    }
    r->at += n;
    r->len -= n;
    return at;
}

static uint32_t get_u16(struct rest *r)
{
    const uint8_t *at = take(r, 2);

    return at == NULL ? 0 : at[0] | (uint32_t)at[1] << 8;
}

static int32_t get_i32(struct rest *r)
{
    uint32_t low = get_u16(r);

    return (int32_t)(low | get_u16(r) << 16);
}

static void get_text(struct rest *r, char *out, size_t cap)
{
    size_t len = get_u16(r);
    const uint8_t *at = NULL;

    if (len < cap)
        at = take(r, len);
    if (at == NULL) {
        r->is_short = true;
        return;
    }
    for (size_t i = 0; i < len; i++)
        out[i] = (char)(at[i] < 0x20 || at[i] == 0x7f ? ' ' : at[i]);
    out[len] = '\0';
}

/* --- Frames --------------------------------------------------------------- */

size_t agent_frame_encode(
    const struct agent_frame *f, uint8_t out[AGENT_FRAME_MAX])
{
    const int32_t numbers[] = {f->rank, f->local_rank, f->pid, f->round};
    const struct layout *layout;
    uint8_t *at = out;

    assert((unsigned int)f->kind < AGENT_FRAME_COUNT);
    layout = &layouts[f->kind];
    memcpy(at, magic, sizeof(magic));
    at = put_u16(at + sizeof(magic), AGENT_CHANNEL_VERSION);
    at = put_u16(at, f->kind);
    for (int i = 0; i < layout->numbers; i++)
        at = put_i32(at, numbers[i]);
    if (layout->has_host)
        at = put_text(at, f->host, sizeof(f->host));
    if (layout->has_text)
        at = put_text(at, f->text, sizeof(f->text));
    return (size_t)(at - out);
}

int agent_frame_decode(struct agent_frame *f, const void *bytes, size_t len)
{
    struct rest r = {bytes, len, false};
    const uint8_t *head = take(&r, sizeof(magic));
    uint32_t version = get_u16(&r);
    uint32_t kind = get_u16(&r);
    int32_t numbers[4] = {0};
    struct agent_frame frame = {0};

    if (r.is_short || memcmp(head, magic, sizeof(magic)) != 0)
        return -EPROTO;
    if (version != AGENT_CHANNEL_VERSION)
        return -EPROTONOSUPPORT;
    if (kind >= AGENT_FRAME_COUNT)
        return -EPROTO;
    for (int i = 0; i < layouts[kind].numbers; i++)
        numbers[i] = get_i32(&r);
    if (layouts[kind].has_host)
        get_text(&r, frame.host, sizeof(frame.host));
    if (layouts[kind].has_text)
        get_text(&r, frame.text, sizeof(frame.text));
    if (r.is_short || r.len > 0)
        return -EPROTO;
    frame.kind = (enum agent_frame_kind)kind;
    frame.rank = numbers[0];
    frame.local_rank = numbers[1];
    frame.pid = numbers[2];
    frame.round = numbers[3];
    *f = frame;
    return 0;
}

int agent_channel_parse(const char *text, struct sockaddr_un *addr,
    socklen_t *addr_len, int32_t *round)
{
    const char *colon = strrchr(text, ':');
    size_t len;
    int64_t number;

    if (colon == NULL || colon == text)
        return -EINVAL;
    len = (size_t)(colon - text);
    if (len > sizeof(addr->sun_path) - 1 ||
        text_to_i64(colon + 1, &number) < 0 || number < 0 || number > INT32_MAX)
        return -EINVAL;
    /* The NUL in front makes the name abstract: there is no file. */
    memset(addr, 0, sizeof(*addr));
    addr->sun_family = AF_UNIX;
    memcpy(addr->sun_path + 1, text, len);
    *addr_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
    *round = (int32_t)number;
    return 0;
}
