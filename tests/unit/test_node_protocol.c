/* The frames of the agents' protocol. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/node_protocol.h"
#include "tests/unit/unit.h"

static struct buf bytes;

static void set_up(void)
{
    buf_init(&bytes, 1 << 20);
}

static void tear_down(void)
{
    buf_fini(&bytes);
}

/* Every field with a value of its own. */
static void fill(struct node_msg *m)
{
    unsigned char *at = (unsigned char *)m;

    for (size_t i = 0; i < sizeof(*m); i++)
        at[i] = (unsigned char)('A' + i % 23);
    m->run_id[sizeof(m->run_id) - 1] = m->role[sizeof(m->role) - 1] = '\0';
    m->addr[sizeof(m->addr) - 1] = m->addrs[sizeof(m->addrs) - 1] = '\0';
    m->master_addr[sizeof(m->master_addr) - 1] = '\0';
    m->host[sizeof(m->host) - 1] = m->text[sizeof(m->text) - 1] = '\0';
}

/* Also shows that the longest texts fit into a frame. */
START_TEST(a_frame_comes_back_as_it_went)
{
    struct node_msg *sent = malloc(sizeof(*sent));
    struct node_msg *got = malloc(sizeof(*got));
    struct buf again;

    fill(sent);
    sent->kind = (enum node_msg_kind)_i;
    ck_assert_int_eq(node_msg_encode(sent, &bytes), 0);
    ck_assert_uint_le(bytes.len, NODE_FRAME_MAX);
    ck_assert_int_eq(
        node_msg_decode(got, buf_bytes(&bytes), bytes.len), (int)bytes.len);
    ck_assert_int_eq(got->kind, _i);
    ck_assert_int_eq(got->version, NODE_PROTOCOL_VERSION);
    buf_init(&again, 1 << 20);
    ck_assert_int_eq(node_msg_encode(got, &again), 0);
    ck_assert_uint_eq(again.len, bytes.len);
    ck_assert_int_eq(
        memcmp(buf_bytes(&again), buf_bytes(&bytes), bytes.len), 0);
    buf_fini(&again);
    free(sent);
    free(got);
}
END_TEST

START_TEST(bytes_are_those_of_the_document)
{
    static const uint8_t ended[] = {
        12, 0, 0, 0, 1, 0, NODE_ENDED, 0, 7, 0, 0, 0, NODE_STOPPED, 0, 0, 0};
    static const uint8_t left[] = {
        8, 0, 0, 0, 1, 0, NODE_LEAVE, 0, 2, 0, 'h', 'i'};
    struct node_msg m = {
        .kind = NODE_ENDED, .round = 7, .result = NODE_STOPPED, .text = "hi"};

    ck_assert_int_eq(node_msg_encode(&m, &bytes), 0);
    ck_assert_uint_eq(bytes.len, sizeof(ended));
    ck_assert_int_eq(memcmp(buf_bytes(&bytes), ended, sizeof(ended)), 0);
    buf_consume(&bytes, bytes.len);
    m.kind = NODE_LEAVE;
    ck_assert_int_eq(node_msg_encode(&m, &bytes), 0);
    ck_assert_uint_eq(bytes.len, sizeof(left));
    ck_assert_int_eq(memcmp(buf_bytes(&bytes), left, sizeof(left)), 0);
}
END_TEST

/* Two frames, of which more and more bytes have come. */
START_TEST(unfinished_frames_wait)
{
    struct node_msg m = {.kind = NODE_LEAVE, .text = "SIGTERM"};
    struct node_msg got;
    size_t one;

    ck_assert_int_eq(node_msg_encode(&m, &bytes), 0);
    one = bytes.len;
    m.kind = NODE_WELCOME;
    m.restart_count = 77;
    ck_assert_int_eq(node_msg_encode(&m, &bytes), 0);
    for (size_t n = 0; n < one; n++)
        ck_assert_int_eq(node_msg_decode(&got, buf_bytes(&bytes), n), 0);
    ck_assert_int_eq(
        node_msg_decode(&got, buf_bytes(&bytes), bytes.len), (int)one);
    ck_assert_str_eq(got.text, "SIGTERM");
    buf_consume(&bytes, one);
    ck_assert_int_gt(node_msg_decode(&got, buf_bytes(&bytes), bytes.len), 0);
    ck_assert_int_eq(got.kind, NODE_WELCOME);
    ck_assert_int_eq(got.restart_count, 77);
    ck_assert_str_eq(got.text, "");
}
END_TEST

START_TEST(more_fields_of_a_newer_version_are_ignored)
{
    static const uint8_t newer[] = {
        14, 0, 0, 0, 9, 0, NODE_READY, 0, 3, 0, 0, 0, 1, 2, 3, 4, 5, 6};
    struct node_msg m;

    ck_assert_int_eq(
        node_msg_decode(&m, newer, sizeof(newer)), (int)sizeof(newer));
    ck_assert_int_eq(m.version, 9);
    ck_assert_int_eq(m.round, 3);
}
END_TEST

static const struct {
    const char *what;
    uint8_t bytes[16];
} nonsense[] = {
    {"too short to be a frame", {3, 0, 0, 0, 1, 0, 0}},
    {"longer than any", {0xff, 0xff, 0, 0, 1, 0, NODE_PING}},
    {"an unknown kind", {4, 0, 0, 0, 1, 0, NODE_MSG_COUNT}},
    {"a number cut off", {6, 0, 0, 0, 1, 0, NODE_READY, 0, 3, 0}},
    {"a number missing", {4, 0, 0, 0, 1, 0, NODE_READY}},
    {"a text longer than the frame",
        {8, 0, 0, 0, 1, 0, NODE_LEAVE, 0, 3, 0, 'a', 'b'}},
    {"a text longer than its field",
        {8, 0, 0, 0, 1, 0, NODE_LEAVE, 0, 0, 2, 'a', 'b'}},
};

START_TEST(nonsense_is_refused)
{
    struct node_msg m;

    ck_assert_msg(node_msg_decode(&m, nonsense[_i].bytes,
                      sizeof(nonsense[_i].bytes)) == -EPROTO,
        "%s", nonsense[_i].what);
}
END_TEST

START_TEST(texts_can_be_shown)
{
    struct node_msg m = {.kind = NODE_LEAVE, .text = "a\n\x1b[31mb\x7f"};

    ck_assert_int_eq(node_msg_encode(&m, &bytes), 0);
    ck_assert_int_gt(node_msg_decode(&m, buf_bytes(&bytes), bytes.len), 0);
    ck_assert_str_eq(m.text, "a  [31mb ");
    ck_assert_str_eq(node_msg_name(NODE_JOIN), "JOIN");
    ck_assert_str_eq(node_msg_name(NODE_MSG_COUNT), "?");
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("node_protocol");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_loop_test(t, a_frame_comes_back_as_it_went, 0, NODE_MSG_COUNT);
    tcase_add_test(t, bytes_are_those_of_the_document);
    tcase_add_test(t, unfinished_frames_wait);
    tcase_add_test(t, more_fields_of_a_newer_version_are_ignored);
    tcase_add_loop_test(t, nonsense_is_refused, 0,
        (int)(sizeof(nonsense) / sizeof(nonsense[0])));
    tcase_add_test(t, texts_can_be_shown);
    return unit_run("node_protocol", t);
}
