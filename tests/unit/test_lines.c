/* Whole lines from several streams into one sink. */
#include <stdlib.h>
#include <string.h>

#include "agent/lines.h"
#include "tests/unit/unit.h"

static struct line_stream a;
static struct line_stream b;
static struct line_sink sink;

static void set_up(void)
{
    line_stream_init(&a);
    line_stream_init(&b);
    line_sink_init(&sink);
}

static void tear_down(void)
{
    line_stream_fini(&a);
    line_stream_fini(&b);
    line_sink_fini(&sink);
}

static void take(struct line_stream *s, const char *text)
{
    ck_assert_int_eq(line_stream_take(s, &sink, text, strlen(text), 1), 0);
}

static void flush(struct line_stream *s)
{
    ck_assert_int_eq(line_stream_flush(s, &sink, 1), 0);
}

static void written(const char *want)
{
    ck_assert_uint_eq(sink.queue.len, strlen(want));
    if (sink.queue.len > 0)
        ck_assert_int_eq(
            memcmp(buf_bytes(&sink.queue), want, sink.queue.len), 0);
}

START_TEST(unfinished_line_waits)
{
    take(&a, "one\ntw");
    written("one\n");
    ck_assert(line_stream_is_partial(&a));
    take(&a, "o\n");
    written("one\ntwo\n");
    ck_assert(!line_stream_is_partial(&a));
}
END_TEST

START_TEST(streams_interleave_by_lines_only)
{
    take(&a, "aaa");
    take(&b, "bbb");
    take(&a, "AAA\na");
    take(&b, "BBB\n");
    written("aaaAAA\nbbbBBB\n");
}
END_TEST

START_TEST(shown_part_is_continued_by_its_own_stream)
{
    take(&a, "\r10%");
    flush(&a);
    take(&a, "\r20%");
    flush(&a);
    take(&a, "\n");
    written("\r10%\r20%\n");
}
END_TEST

START_TEST(shown_part_gets_a_newline_before_another_stream)
{
    take(&a, "half");
    flush(&a);
    take(&b, "line\n");
    take(&a, "rest\n");
    written("half\nline\nrest\n");
}
END_TEST

START_TEST(nothing_to_flush_writes_nothing)
{
    flush(&a);
    written("");
}
END_TEST

START_TEST(bytes_pass_unchanged)
{
    char all[256];

    for (int i = 0; i < 256; i++)
        all[i] = (char)(i == '\n' ? 0 : i);
    all[255] = '\n';
    ck_assert_int_eq(line_stream_take(&a, &sink, all, sizeof(all), 1), 0);
    ck_assert_uint_eq(sink.queue.len, sizeof(all));
    ck_assert_int_eq(memcmp(buf_bytes(&sink.queue), all, sizeof(all)), 0);
}
END_TEST

START_TEST(long_line_passes_in_pieces_and_in_bounded_memory)
{
    size_t n = 5 * LINES_PIECE_MAX + 17;
    char *text = malloc(n + 1);

    ck_assert_ptr_nonnull(text);
    for (size_t i = 0; i < n; i++)
        text[i] = (char)('a' + i % 26);
    text[n] = '\n';
    for (size_t at = 0; at < n + 1; at += 1000)
        ck_assert_int_eq(line_stream_take(&a, &sink, text + at,
                             at + 1000 < n + 1 ? 1000 : n + 1 - at, 1),
            0);
    ck_assert_uint_eq(sink.queue.len, n + 1);
    ck_assert_int_eq(memcmp(buf_bytes(&sink.queue), text, n + 1), 0);
    ck_assert_uint_le(a.pending.cap, 2 * LINES_PIECE_MAX);
    free(text);
}
END_TEST

START_TEST(unfinished_line_is_due_when_it_is_quiet_or_old)
{
    const uint64_t ms = 1000000;

    ck_assert_int_eq(line_stream_take(&a, &sink, "x", 1, 10 * ms), 0);
    ck_assert_uint_eq(
        line_stream_due_ns(&a, &sink, 10 * ms), LINES_PARTIAL_MS * ms);
    ck_assert_int_eq(line_stream_take(&b, &sink, "b\n", 2, 60 * ms), 0);
    ck_assert_uint_eq(line_stream_due_ns(&a, &sink, 110 * ms), 50 * ms);
    ck_assert_uint_eq(line_stream_due_ns(&a, &sink, 160 * ms), 0);
    for (uint64_t t = 100; t < LINES_PARTIAL_MAX_MS; t += 50)
        ck_assert_int_eq(line_stream_take(&b, &sink, "b\n", 2, t * ms), 0);
    ck_assert_uint_gt(line_stream_due_ns(&a, &sink, 1009 * ms), 0);
    ck_assert_uint_eq(line_stream_due_ns(&a, &sink, 1010 * ms), 0);
}
END_TEST

/* Every split of the input gives the same output for one stream. */
START_TEST(splits_do_not_matter)
{
    const char *text = "first\n\nsecond line\nx\nlast";

    ck_assert_int_eq(line_stream_take(&a, &sink, text, (size_t)_i, 1), 0);
    take(&a, text + _i);
    flush(&a);
    written(text);
}
END_TEST

static void give_prefix(struct line_stream *s, const char *prefix)
{
    s->prefix = prefix;
    s->prefix_len = strlen(prefix);
}

START_TEST(prefix_of_each_line)
{
    give_prefix(&a, "A:");
    take(&a, "one\n\ntwo\nthr");
    written("A:one\nA:\nA:two\n");
    ck_assert(!a.is_cut);
    flush(&a);
    ck_assert(a.is_cut);
    take(&a, "ee\nfour\n");
    ck_assert(!a.is_cut);
    written("A:one\nA:\nA:two\nA:three\nA:four\n");
}
END_TEST

START_TEST(a_line_that_was_cut_gets_its_prefix_again)
{
    give_prefix(&a, "A:");
    give_prefix(&b, "B:");
    take(&a, "half");
    flush(&a);
    take(&b, "line\n");
    ck_assert(a.is_cut);
    take(&a, "rest\n");
    written("A:half\nB:line\nA:rest\n");
}
END_TEST

START_TEST(end_finishes_a_line_with_a_prefix)
{
    give_prefix(&a, "A:");
    take(&a, "last");
    ck_assert_int_eq(line_stream_end(&a, &sink, 1), 0);
    written("A:last\n");
    ck_assert(!a.is_cut);
    ck_assert_int_eq(line_stream_end(&a, &sink, 1), 0);
    written("A:last\n");
}
END_TEST

START_TEST(end_of_a_line_that_was_shown)
{
    give_prefix(&a, "A:");
    take(&a, "last");
    flush(&a);
    ck_assert_int_eq(line_stream_end(&a, &sink, 1), 0);
    written("A:last\n");
}
END_TEST

START_TEST(end_without_a_prefix_adds_nothing)
{
    take(&a, "last");
    ck_assert_int_eq(line_stream_end(&a, &sink, 1), 0);
    written("last");
    take(&b, "b\n");
    written("last\nb\n");
    ck_assert_ptr_null(sink.owner);
}
END_TEST

/* Every chunk size gives the same lines, and the rest stays. */
START_TEST(split_into_lines)
{
    const char *text = "first\n\nsecond line\nx\nlast";
    const char *want[] = {"first\n", "\n", "second line\n", "x\n"};
    size_t total = strlen(text);
    size_t nlines = 0;
    struct buf pending;

    buf_init(&pending, LINES_PIECE_MAX);
    for (size_t at = 0; at < total; at += (size_t)_i) {
        const char *bytes = text + at;
        size_t n = total - at < (size_t)_i ? total - at : (size_t)_i;
        const char *line;
        size_t len;
        int rc;

        while ((rc = line_split(&pending, &bytes, &n, &line, &len)) == 1) {
            ck_assert_uint_lt(nlines, 4);
            ck_assert_uint_eq(len, strlen(want[nlines]));
            ck_assert_int_eq(memcmp(line, want[nlines], len), 0);
            nlines++;
        }
        ck_assert_int_eq(rc, 0);
        ck_assert_uint_eq(n, 0);
    }
    ck_assert_uint_eq(nlines, 4);
    ck_assert_uint_eq(pending.len, 4);
    ck_assert_int_eq(memcmp(buf_bytes(&pending), "last", 4), 0);
    buf_fini(&pending);
}
END_TEST

START_TEST(split_cuts_long_lines)
{
    size_t total = 2 * LINES_PIECE_MAX + 3;
    char *text = malloc(total);
    size_t lens[3] = {0};
    int npieces = 0;
    struct buf pending;

    ck_assert_ptr_nonnull(text);
    memset(text, 'x', total);
    text[total - 1] = '\n';
    buf_init(&pending, LINES_PIECE_MAX);
    for (size_t at = 0; at < total; at += (size_t)_i) {
        const char *bytes = text + at;
        size_t n = total - at < (size_t)_i ? total - at : (size_t)_i;
        const char *line;
        size_t len;

        while (line_split(&pending, &bytes, &n, &line, &len) == 1) {
            ck_assert_int_lt(npieces, 3);
            lens[npieces++] = len;
        }
    }
    ck_assert_uint_eq(lens[0], LINES_PIECE_MAX);
    ck_assert_uint_eq(lens[1], LINES_PIECE_MAX);
    ck_assert_uint_eq(lens[2], 3);
    buf_fini(&pending);
    free(text);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("lines");

    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, unfinished_line_waits);
    tcase_add_test(t, streams_interleave_by_lines_only);
    tcase_add_test(t, shown_part_is_continued_by_its_own_stream);
    tcase_add_test(t, shown_part_gets_a_newline_before_another_stream);
    tcase_add_test(t, nothing_to_flush_writes_nothing);
    tcase_add_test(t, bytes_pass_unchanged);
    tcase_add_test(t, long_line_passes_in_pieces_and_in_bounded_memory);
    tcase_add_test(t, unfinished_line_is_due_when_it_is_quiet_or_old);
    tcase_add_loop_test(t, splits_do_not_matter, 0, 26);
    tcase_add_test(t, prefix_of_each_line);
    tcase_add_test(t, a_line_that_was_cut_gets_its_prefix_again);
    tcase_add_test(t, end_finishes_a_line_with_a_prefix);
    tcase_add_test(t, end_of_a_line_that_was_shown);
    tcase_add_test(t, end_without_a_prefix_adds_nothing);
    tcase_add_loop_test(t, split_into_lines, 1, 27);
    tcase_add_loop_test(t, split_cuts_long_lines, 65530, 65545);
    return unit_run("lines", t);
}
