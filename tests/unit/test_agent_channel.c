/* The frames of the agent channel, byte by byte. */
#include <errno.h>
#include <string.h>

#include "rendezvous/agent_channel.h"
#include "tests/unit/unit.h"

static uint8_t bytes[AGENT_FRAME_MAX];

static const struct agent_frame samples[] = {
    {.kind = AGENT_ATTACH,
        .rank = 70000,
        .local_rank = 3,
        .pid = 4711,
        .round = 2},
    {.kind = AGENT_ATTACHED},
    {.kind = AGENT_REFUSED, .text = "round 1 is over"},
    {.kind = AGENT_FAILURE,
        .rank = 9,
        .local_rank = 1,
        .host = "node-7",
        .text = "signal 9 (SIGKILL)"},
    {.kind = AGENT_COLLATERAL, .text = "rank 9 died during barrier #3"},
};
enum { SAMPLES = sizeof(samples) / sizeof(samples[0]) };

static void assert_same(
    const struct agent_frame *a, const struct agent_frame *b)
{
    ck_assert_int_eq(a->kind, b->kind);
    ck_assert_int_eq(a->rank, b->rank);
    ck_assert_int_eq(a->local_rank, b->local_rank);
    ck_assert_int_eq(a->pid, b->pid);
    ck_assert_int_eq(a->round, b->round);
    ck_assert_str_eq(a->host, b->host);
    ck_assert_str_eq(a->text, b->text);
}

START_TEST(a_frame_comes_back_as_it_went)
{
    struct agent_frame f;
    size_t len = agent_frame_encode(&samples[_i], bytes);

    ck_assert_int_eq(agent_frame_decode(&f, bytes, len), 0);
    assert_same(&f, &samples[_i]);
}
END_TEST

START_TEST(every_other_length_is_refused)
{
    size_t len = agent_frame_encode(&samples[_i], bytes);
    struct agent_frame f = {.rank = 5};

    for (size_t n = 0; n < sizeof(bytes); n++)
        if (n != len)
            ck_assert_int_eq(agent_frame_decode(&f, bytes, n), -EPROTO);
    ck_assert_int_eq(f.rank, 5);
}
END_TEST

START_TEST(attach_has_the_documented_bytes)
{
    static const uint8_t want[] = {'C', 'R', 'A', 'C', 1, 0, 0, 0, 0x70, 0x11,
        0x01, 0, 3, 0, 0, 0, 0x67, 0x12, 0, 0, 2, 0, 0, 0};

    ck_assert_uint_eq(agent_frame_encode(&samples[0], bytes), sizeof(want));
    ck_assert_mem_eq(bytes, want, sizeof(want));
}
END_TEST

START_TEST(failure_has_the_documented_bytes)
{
    static const uint8_t want[] = "CRAC\1\0\3\0"
                                  "\x09\0\0\0\1\0\0\0"
                                  "\6\0node-7"
                                  "\x12\0signal 9 (SIGKILL)";

    ck_assert_uint_eq(agent_frame_encode(&samples[3], bytes), sizeof(want) - 1);
    ck_assert_mem_eq(bytes, want, sizeof(want) - 1);
}
END_TEST

START_TEST(another_version_is_told_from_nonsense)
{
    size_t len = agent_frame_encode(&samples[1], bytes);
    struct agent_frame f;

    bytes[4] = AGENT_CHANNEL_VERSION + 1;
    ck_assert_int_eq(agent_frame_decode(&f, bytes, len), -EPROTONOSUPPORT);
    ck_assert_int_eq(agent_frame_decode(&f, bytes, len + 90), -EPROTONOSUPPORT);
    bytes[0] = 'c';
    ck_assert_int_eq(agent_frame_decode(&f, bytes, len), -EPROTO);
}
END_TEST

START_TEST(an_unknown_kind_is_refused)
{
    size_t len = agent_frame_encode(&samples[1], bytes);
    struct agent_frame f;

    bytes[6] = AGENT_FRAME_COUNT;
    ck_assert_int_eq(agent_frame_decode(&f, bytes, len), -EPROTO);
    bytes[6] = 0;
    bytes[7] = 1;
    ck_assert_int_eq(agent_frame_decode(&f, bytes, len), -EPROTO);
}
END_TEST

START_TEST(the_longest_texts_fit)
{
    struct agent_frame f = {.kind = AGENT_FAILURE}, back;
    size_t len;

    memset(f.host, 'h', sizeof(f.host) - 1);
    memset(f.text, 't', sizeof(f.text) - 1);
    len = agent_frame_encode(&f, bytes);
    ck_assert_int_eq(agent_frame_decode(&back, bytes, len), 0);
    assert_same(&back, &f);
}
END_TEST

START_TEST(a_text_longer_than_any_is_refused)
{
    struct agent_frame f = {.kind = AGENT_REFUSED};

    /* 512 bytes, all there, with their length in front. */
    memset(bytes, 't', sizeof(bytes));
    agent_frame_encode(&f, bytes);
    bytes[8] = 0;
    bytes[9] = 2;
    ck_assert_int_eq(agent_frame_decode(&f, bytes, 10 + 512), -EPROTO);
}
END_TEST

START_TEST(control_characters_do_not_get_through)
{
    struct agent_frame f = {
        .kind = AGENT_COLLATERAL, .text = "a\nb\x1b[31mc\x7f\xc3\xa4"};
    size_t len = agent_frame_encode(&f, bytes);

    ck_assert_int_eq(agent_frame_decode(&f, bytes, len), 0);
    ck_assert_str_eq(f.text, "a b [31mc \xc3\xa4");
    bytes[10] = '\0'; /* a NUL inside */
    ck_assert_int_eq(agent_frame_decode(&f, bytes, len), 0);
    ck_assert_str_eq(f.text, "  b [31mc \xc3\xa4");
}
END_TEST

START_TEST(kinds_have_names)
{
    ck_assert_str_eq(agent_frame_name(AGENT_ATTACH), "ATTACH");
    ck_assert_str_eq(agent_frame_name(AGENT_COLLATERAL), "COLLATERAL");
    ck_assert_str_eq(agent_frame_name(AGENT_FRAME_COUNT), "?");
}
END_TEST

/* --- CRUN_AGENT ----------------------------------------------------------- */

START_TEST(a_name_and_a_round_are_parsed)
{
    struct sockaddr_un addr;
    socklen_t len;
    int32_t round;

    ck_assert_int_eq(
        agent_channel_parse("crun-agent-00ff:12", &addr, &len, &round), 0);
    ck_assert_int_eq(round, 12);
    ck_assert_int_eq(addr.sun_family, AF_UNIX);
    ck_assert_uint_eq(len, sizeof(addr.sun_family) + 1 + 15);
    ck_assert_mem_eq(addr.sun_path, "\0crun-agent-00ff", 16);
}
END_TEST

START_TEST(what_is_no_name_is_refused)
{
    static const char *const bad[] = {"", ":", ":1", "name", "name:", "name:x",
        "name:-1", "name:1 ", "name:4294967296"};
    struct sockaddr_un addr;
    socklen_t len;
    int32_t round;
    char longest[sizeof(addr.sun_path) + 8];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        ck_assert_int_eq(
            agent_channel_parse(bad[i], &addr, &len, &round), -EINVAL);
    memset(longest, 'n', sizeof(longest));
    strcpy(longest + sizeof(addr.sun_path), ":1");
    ck_assert_int_eq(
        agent_channel_parse(longest, &addr, &len, &round), -EINVAL);
    strcpy(longest + sizeof(addr.sun_path) - 1, ":1");
    ck_assert_int_eq(agent_channel_parse(longest, &addr, &len, &round), 0);
    ck_assert_uint_eq(len, sizeof(addr));
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("frames");

    tcase_add_loop_test(tcase, a_frame_comes_back_as_it_went, 0, SAMPLES);
    tcase_add_loop_test(tcase, every_other_length_is_refused, 0, SAMPLES);
    tcase_add_test(tcase, attach_has_the_documented_bytes);
    tcase_add_test(tcase, failure_has_the_documented_bytes);
    tcase_add_test(tcase, another_version_is_told_from_nonsense);
    tcase_add_test(tcase, an_unknown_kind_is_refused);
    tcase_add_test(tcase, the_longest_texts_fit);
    tcase_add_test(tcase, a_text_longer_than_any_is_refused);
    tcase_add_test(tcase, control_characters_do_not_get_through);
    tcase_add_test(tcase, kinds_have_names);
    tcase_add_test(tcase, a_name_and_a_round_are_parsed);
    tcase_add_test(tcase, what_is_no_name_is_refused);
    return unit_run("agent_channel", tcase);
}
