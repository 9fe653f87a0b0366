/*
 * Frames of the agents' protocol to and from bytes; see node_protocol.h. A
 * table says which fields a kind has, in their order on the wire.
 */
#include "rendezvous/node_protocol.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* Length (of all that follows it), version, kind; little-endian as all. */
#define HEADER_LEN 8

enum field_type { FIELD_I32, FIELD_U64, FIELD_TEXT, FIELD_BYTES };

/* X(member, type) */
#define FIELD_MAP(X)                                                           \
    X(round, FIELD_I32)                                                        \
    X(round_id, FIELD_U64)                                                     \
    X(restart_count, FIELD_I32)                                                \
    X(has_token, FIELD_I32)                                                    \
    X(nonce, FIELD_BYTES)                                                      \
    X(proof, FIELD_BYTES)                                                      \
    X(join_timeout_ms, FIELD_I32)                                              \
    X(last_call_ms, FIELD_I32)                                                 \
    X(waited_ms, FIELD_U64)                                                    \
    X(restart_delay_ms, FIELD_I32)                                             \
    X(restart_delay_max_ms, FIELD_I32)                                         \
    X(crash_loop_count, FIELD_I32)                                             \
    X(crash_loop_ms, FIELD_I32)                                                \
    X(agent_id, FIELD_U64)                                                     \
    X(part, FIELD_I32)                                                         \
    X(round_restart_count, FIELD_I32)                                          \
    X(node_rank, FIELD_I32)                                                    \
    X(nproc, FIELD_I32)                                                        \
    X(min_nodes, FIELD_I32)                                                    \
    X(max_nodes, FIELD_I32)                                                    \
    X(max_restarts, FIELD_I32)                                                 \
    X(store_port, FIELD_I32)                                                   \
    X(has_agent_store, FIELD_I32)                                              \
    X(is_static, FIELD_I32)                                                    \
    X(group_rank, FIELD_I32)                                                   \
    X(group_world_size, FIELD_I32)                                             \
    X(world_size, FIELD_I32)                                                   \
    X(rank_base, FIELD_I32)                                                    \
    X(role_world_size, FIELD_I32)                                              \
    X(role_rank_base, FIELD_I32)                                               \
    X(run_id, FIELD_TEXT)                                                      \
    X(role, FIELD_TEXT)                                                        \
    X(addr, FIELD_TEXT)                                                        \
    X(addrs, FIELD_TEXT)                                                       \
    X(master_addr, FIELD_TEXT)                                                 \
    X(master_port, FIELD_I32)                                                  \
    X(keep_alive_ms, FIELD_I32)                                                \
    X(keep_alive_attempts, FIELD_I32)                                          \
    X(is_lasting, FIELD_I32)                                                   \
    X(host, FIELD_TEXT)                                                        \
    X(pid, FIELD_I32)                                                          \
    X(rank, FIELD_I32)                                                         \
    X(local_rank, FIELD_I32)                                                   \
    X(wait_status, FIELD_I32)                                                  \
    X(error, FIELD_I32)                                                        \
    X(is_collateral, FIELD_I32)                                                \
    X(ago_ns, FIELD_U64)                                                       \
    X(lived_ns, FIELD_U64)                                                     \
    X(next, FIELD_I32)                                                         \
    X(delay_ms, FIELD_U64)                                                     \
    X(result, FIELD_I32)                                                       \
    X(text, FIELD_TEXT)

enum field_id {
    F_END,
#define ID(member, type) F_##member,
    FIELD_MAP(ID) F_COUNT
#undef ID
};

static const struct field {
    enum field_type type;
    size_t offset;
    size_t size;
} fields[F_COUNT] = {
#define FIELD(member, type)                                                    \
    [F_##member] = {type, offsetof(struct node_msg, member),                   \
        sizeof(((struct node_msg *)NULL)->member)},
    FIELD_MAP(FIELD)
#undef FIELD
};

#define FIELDS_MAX 40 /* with F_END */

static const uint8_t layouts[NODE_MSG_COUNT][FIELDS_MAX] = {
    [NODE_HELLO] = {F_nonce},
    [NODE_JOIN] = {F_has_token, F_nonce, F_proof, F_run_id, F_host, F_pid,
        F_addr, F_addrs, F_store_port, F_node_rank, F_nproc, F_role,
        F_has_agent_store, F_is_static, F_min_nodes, F_max_nodes,
        F_max_restarts, F_join_timeout_ms, F_last_call_ms, F_keep_alive_ms,
        F_keep_alive_attempts, F_restart_delay_ms, F_restart_delay_max_ms,
        F_crash_loop_count, F_crash_loop_ms, F_waited_ms, F_agent_id, F_part,
        F_round, F_round_id, F_restart_count, F_round_restart_count,
        F_group_rank, F_group_world_size},
    [NODE_WELCOME] = {F_proof, F_keep_alive_ms, F_keep_alive_attempts,
        F_is_lasting, F_restart_count},
    [NODE_REFUSED] = {F_text},
    [NODE_PARKED] = {F_text},
    [NODE_PEERS] = {F_round, F_addrs},
    [NODE_PREPARE] = {F_round},
    [NODE_READY] = {F_round},
    [NODE_ROUND] = {F_round, F_round_id, F_restart_count, F_group_rank,
        F_group_world_size, F_world_size, F_rank_base, F_role_world_size,
        F_role_rank_base, F_master_addr, F_master_port, F_addr},
    [NODE_FAILED] = {F_round, F_host, F_rank, F_local_rank, F_pid,
        F_wait_status, F_error, F_is_collateral, F_ago_ns, F_lived_ns, F_text},
    [NODE_STOP] = {F_round, F_text},
    [NODE_ENDED] = {F_round, F_result},
    [NODE_VERDICT] = {F_round, F_restart_count, F_host, F_rank, F_local_rank,
        F_pid, F_wait_status, F_error, F_is_collateral, F_lived_ns, F_next,
        F_delay_ms, F_text},
    [NODE_CLOSED] = {F_result, F_text},
    [NODE_LEAVE] = {F_text},
    [NODE_AWAY] = {F_END},
    [NODE_PING] = {F_END},
    [NODE_PONG] = {F_END},
};

const char *node_msg_name(enum node_msg_kind kind)
{
    static const char *const names[] = {
#define NAME(name) [name] = #name,
        NODE_MSG_MAP(NAME)
#undef NAME
    };

    if ((unsigned int)kind >= NODE_MSG_COUNT)
        return "?";
    return names[kind] + sizeof("NODE_") - 1;
}

/* --- Numbers ------------------------------------------------------------ */

static void put_number(uint8_t *at, uint64_t value, size_t n)
{
    for (size_t i = 0; i < n; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get_number(const uint8_t *at, size_t n)
{
    uint64_t value = 0;

    for (size_t i = 0; i < n; i++)
        value |= (uint64_t)at[i] << 8 * i;
    return value;
}

/* --- Encoding ----------------------------------------------------------- */

static uint8_t *put_field(uint8_t *at, const struct field *f, const void *value)
{
    int32_t i32;
    uint64_t u64;
    size_t len;

    switch (f->type) {
    case FIELD_I32:
        memcpy(&i32, value, sizeof(i32));
        put_number(at, (uint32_t)i32, 4);
        return at + 4;
    case FIELD_U64:
        memcpy(&u64, value, sizeof(u64));
        put_number(at, u64, 8);
        return at + 8;
    case FIELD_TEXT:
        len = strnlen(value, f->size - 1);
        put_number(at, len, 2);
        memcpy(at + 2, value, len);
        return at + 2 + len;
    case FIELD_BYTES:
        memcpy(at, value, f->size);
        return at + f->size;
    }
    return at;
}

int node_msg_encode(const struct node_msg *m, struct buf *out)
{
    uint8_t frame[NODE_FRAME_MAX]; /* the longest texts fit: see the tests */
    uint8_t *at = frame + HEADER_LEN;

    for (const uint8_t *id = layouts[m->kind]; *id != F_END; id++)
        at = put_field(at, &fields[*id], (const char *)m + fields[*id].offset);
    put_number(frame, (uint64_t)(at - frame) - 4, 4);
    put_number(frame + 4, NODE_PROTOCOL_VERSION, 2);
    put_number(frame + 6, (uint64_t)m->kind, 2);
    return buf_append(out, frame, (size_t)(at - frame));
}

/* --- Decoding ----------------------------------------------------------- */

/* What is left of a frame. */
struct rest {
    const uint8_t *at;
    size_t len;
};

static const uint8_t *take(struct rest *r, size_t n)
{
    const uint8_t *at = r->at;

    if (n > r->len)
        return NULL;
    r->at += n;
    r->len -= n;
    return at;
}

static bool get_text(struct rest *r, char *out, size_t cap)
{
    const uint8_t *at = take(r, 2);
    size_t len = at == NULL ? cap : (size_t)get_number(at, 2);

    at = len < cap ? take(r, len) : NULL;
    if (at == NULL)
        return false;
    for (size_t i = 0; i < len; i++)
        out[i] = (char)(at[i] < 0x20 || at[i] == 0x7f ? ' ' : at[i]);
    out[len] = '\0';
    return true;
}

static bool get_field(struct rest *r, const struct field *f, void *value)
{
    size_t n = f->type == FIELD_I32 ? 4 : 8;
    const uint8_t *at;
    uint64_t number;
    int32_t i32;

    if (f->type == FIELD_TEXT)
        return get_text(r, value, f->size);
    if (f->type == FIELD_BYTES)
        n = f->size;
    at = take(r, n);
    if (at == NULL)
        return false;
    if (f->type == FIELD_BYTES) {
        memcpy(value, at, n);
        return true;
    }
    number = get_number(at, n);
    i32 = (int32_t)(uint32_t)number;
    if (f->type == FIELD_I32)
        memcpy(value, &i32, sizeof(i32));
    else
        memcpy(value, &number, sizeof(number));
    return true;
}

int node_msg_decode(struct node_msg *m, const void *bytes, size_t len)
{
    const uint8_t *head = bytes;
    struct rest rest;
    uint64_t frame_len, kind;

    if (len < 4)
        return 0;
    frame_len = get_number(head, 4) + 4;
    if (frame_len < HEADER_LEN || frame_len > NODE_FRAME_MAX)
        return -EPROTO;
    if (len < frame_len)
        return 0;
    kind = get_number(head + 6, 2);
    if (kind >= NODE_MSG_COUNT)
        return -EPROTO;
    *m = (struct node_msg){.kind = (enum node_msg_kind)kind,
        .version = (int32_t)get_number(head + 4, 2)};
    rest = (struct rest){head + HEADER_LEN, frame_len - HEADER_LEN};
    for (const uint8_t *id = layouts[kind]; *id != F_END; id++)
        if (!get_field(&rest, &fields[*id], (char *)m + fields[*id].offset))
            return -EPROTO;
    return (int)frame_len;
}
