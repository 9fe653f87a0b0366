/*
 * The store in a file: its format, the rules of each operation, several
 * processes on one file, and what crashed, foreign and full files do to it.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/file_log.h"
#include "test_store.h"
#include "unit.h"
#include "worker/store.h"

#define K (&store_file_kind)

/* Never over in a test that passes. */
#define FAR clock_deadline_ns(60000)
#define NOW clock_deadline_ns(0)

/* Records that every store's file begins with: one has opened it. */
#define OPENED "09000000 726566636f756e742f 01000000 31"

static char folder[64];
static char path[80];
static struct store_impl *store;
static struct err e;

static void setup(void)
{
    strcpy(folder, "/tmp/test_store_file.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/store", folder);
    ck_assert_msg(store_file_open(&store, path, 0, FAR, &e) == 0, "%s", e.msg);
}

/* For tests that make the file themselves. */
static void setup_folder(void)
{
    setup();
    K->close(store);
    store = NULL;
    ck_assert_int_eq(unlink(path), 0);
}

static void teardown(void)
{
    K->close(store);
    unlink(path);
    ck_assert_int_eq(rmdir(folder), 0);
}

/* --- What tests share --------------------------------------------------- */

static void set(struct store_impl *s, const char *key, const char *value)
{
    ck_assert_msg(K->set(s, key, text_bytes(value), FAR, &e) == 0, "%s", e.msg);
}

static void assert_value(
    struct store_impl *s, const char *key, const char *want)
{
    struct buf value;

    buf_init(&value, SIZE_MAX / 2);
    ck_assert_msg(K->get(s, key, &value, FAR, &e) == 0, "%s", e.msg);
    assert_bytes(store_bytes(buf_bytes(&value), value.len), want);
    buf_fini(&value);
}

static bool has(struct store_impl *s, const char *key)
{
    bool there;

    ck_assert_int_eq(K->check(s, &key, 1, &there, FAR, &e), 0);
    return there;
}

static void put_file(const void *bytes, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    ck_assert_int_eq(write(fd, bytes, len), (ssize_t)len);
    close(fd);
}

static void put_file_hex(const char *hex)
{
    struct buf b = from_hex(hex);

    put_file(buf_bytes(&b), b.len);
    buf_fini(&b);
}

static struct buf read_file(void)
{
    struct buf b;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    ck_assert_int_ge(fd, 0);
    buf_init(&b, SIZE_MAX / 2);
    while ((n = read(fd, buf_reserve(&b, 65536), 65536)) > 0)
        buf_added(&b, (size_t)n);
    ck_assert_int_eq(n, 0);
    close(fd);
    return b;
}

static void assert_file_hex(const char *hex)
{
    struct buf b = read_file();

    assert_is_hex(buf_bytes(&b), b.len, hex);
    buf_fini(&b);
}

static void assert_file_is(const struct buf *want)
{
    struct buf b = read_file();

    ck_assert_uint_eq(b.len, want->len);
    ck_assert_mem_eq(buf_bytes(&b), buf_bytes(want), b.len);
    buf_fini(&b);
}

static off_t file_size(void)
{
    struct stat st;

    ck_assert_int_eq(stat(path, &st), 0);
    return st.st_size;
}

/* Runs in a child; its exit status is 0 if the function came back. */
static pid_t spawn(void (*run)(void))
{
    pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        run();
        _exit(0);
    }
    return pid;
}

static void assert_ends_well(pid_t pid)
{
    int status;

    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}

/* In a child, where Check's assertions must not be used. */
static void must(bool is_true)
{
    if (is_true)
        return;
    fprintf(stderr, "child: %s\n", e.msg);
    _exit(1);
}

/* --- The format --------------------------------------------------------- */

START_TEST(the_file_has_the_format_of_pytorch)
{
    const char *key = "n";
    int64_t sum;
    bool existed;

    assert_file_hex(OPENED);
    set(store, "a", "xyz");
    ck_assert_int_eq(K->add(store, key, -12, &sum, FAR, &e), 0);
    ck_assert_int_eq(K->delete_key(store, "a", &existed, FAR, &e), 0);
    assert_file_hex(OPENED "02000000 2f61 03000000 78797a"
                           "02000000 2f6e 03000000 2d3132"
                           "03000000 2d2f61 00000000");
    K->close(store);
    store = NULL;
    assert_file_hex(OPENED "02000000 2f61 03000000 78797a"
                           "02000000 2f6e 03000000 2d3132"
                           "03000000 2d2f61 00000000"
                           "08000000 636c65616e75702f 01000000 31"
                           "09000000 726566636f756e742f 01000000 30");
}
END_TEST

START_TEST(records_of_others_are_read)
{
    put_file_hex("02000000 2f61 01000000 31");
    assert_value(store, "a", "1");
    put_file_hex("02000000 2f61 02000000 3232 02000000 2f62 00000000");
    assert_value(store, "a", "22");
    assert_value(store, "b", "");
    put_file_hex("03000000 2d2f61 00000000");
    ck_assert(!has(store, "a"));
    ck_assert(has(store, "b"));
    /* Also before a change, which depends on it. */
    put_file_hex("02000000 2f62 01000000 37");
    ck_assert_int_eq(K->append(store, "b", text_bytes("8"), FAR, &e), 0);
    assert_value(store, "b", "78");
}
END_TEST

static const struct store_limits small = {.key_len = 8, .value_len = 16};

START_TEST(a_record_is_parsed_when_its_last_byte_is_there)
{
    struct buf b = from_hex("04000000 2d2f6162 00000000"
                            "02000000 2f61 03000000 78797a 99");
    struct file_record rec;
    size_t size;

    for (size_t len = 0; len < 12; len++) {
        ck_assert_int_eq(
            file_log_parse(&small, buf_bytes(&b), len, &rec, &size, &e), 0);
        ck_assert_uint_gt(size, len);
        ck_assert_uint_le(size, 12);
    }
    ck_assert_int_eq(
        file_log_parse(&small, buf_bytes(&b), b.len, &rec, &size, &e), 1);
    ck_assert_uint_eq(size, 12);
    ck_assert(rec.is_deletion);
    assert_bytes(rec.key, "/ab");
    ck_assert_int_eq(
        file_log_parse(&small, buf_bytes(&b) + 12, 13, &rec, &size, &e), 1);
    ck_assert_uint_eq(size, 13);
    ck_assert(!rec.is_deletion);
    assert_bytes(rec.key, "/a");
    assert_bytes(rec.value, "xyz");
    buf_fini(&b);
}
END_TEST

START_TEST(a_record_over_a_limit_is_refused_by_its_length_alone)
{
    static const struct {
        const char *hex;
        int rc;
    } rows[] = {
        {"0a000000 2f313233343536373839 10000000", 0},
        {"0b000000", -EMSGSIZE},
        {"ffffffff", -EMSGSIZE},
        {"02000000 2f61 11000000", -EMSGSIZE},
        {"02000000 2f61 ffffffff", -EMSGSIZE},
        {"00000000", -EPROTO},
        {"03000000 616263", -EPROTO},
    };

    for (size_t i = 0; i < LENGTH_OF(rows); i++) {
        struct buf b = from_hex(rows[i].hex);
        struct file_record rec;
        size_t size;

        ck_assert_int_eq(
            file_log_parse(&small, buf_bytes(&b), b.len, &rec, &size, &e),
            rows[i].rc);
        buf_fini(&b);
    }
}
END_TEST

START_TEST(a_record_over_a_limit_is_not_encoded)
{
    struct file_record rec = {.key = text_bytes("/123456789")};
    struct buf out;

    buf_init(&out, 1000);
    rec.value = text_bytes("0123456789abcdef");
    ck_assert_int_eq(file_log_put_head(&out, &small, &rec), 0);
    ck_assert_uint_eq(out.len, 18);
    rec.is_deletion = true;
    ck_assert_int_eq(file_log_put_head(&out, &small, &rec), -EMSGSIZE);
    rec.is_deletion = false;
    rec.value = text_bytes("0123456789abcdefg");
    ck_assert_int_eq(file_log_put_head(&out, &small, &rec), -EMSGSIZE);
    ck_assert_uint_eq(out.len, 18);
    out.max = 20;
    rec.value.len = 0;
    ck_assert_int_eq(file_log_put_head(&out, &small, &rec), -ENOBUFS);
    ck_assert_uint_eq(out.len, 18);
    buf_fini(&out);
}
END_TEST

/* --- Operations --------------------------------------------------------- */

START_TEST(values_are_any_bytes_of_any_size)
{
    static const size_t sizes[] = {0, 1, 65000, 65536, 70000, 3000000};
    struct store_impl *other;

    ck_assert_int_eq(store_file_open(&other, path, 0, FAR, &e), 0);
    for (size_t i = 0; i < LENGTH_OF(sizes); i++) {
        char *bytes = malloc(sizes[i] + 1);
        struct buf got;

        for (size_t n = 0; n < sizes[i]; n++)
            bytes[n] = (char)(n * 7 + n / 256);
        ck_assert_int_eq(
            K->set(store, "k", store_bytes(bytes, sizes[i]), FAR, &e), 0);
        buf_init(&got, SIZE_MAX / 2);
        ck_assert_int_eq(K->get(other, "k", &got, FAR, &e), 0);
        ck_assert_uint_eq(got.len, sizes[i]);
        if (sizes[i] > 0)
            ck_assert_mem_eq(buf_bytes(&got), bytes, sizes[i]);
        buf_fini(&got);
        free(bytes);
    }
    K->close(other);
}
END_TEST

static const struct {
    const char *old, *expected, *desired, *now, *after;
} cas_rows[] = {
    {NULL, "", "new", "new", "new"},
    {NULL, "x", "new", "x", NULL},
    {"x", "x", "new", "new", "new"},
    {"x", "y", "new", "x", "x"},
    {"x", "", "new", "x", "x"},
    {"", "", "new", "new", "new"},
    {"", "x", "new", "", ""},
    {"x", "x", "", "", ""},
};

START_TEST(compare_set_follows_the_table)
{
    struct buf now;
    off_t before;

    if (cas_rows[_i].old != NULL)
        set(store, "k", cas_rows[_i].old);
    before = file_size();
    buf_init(&now, 1000);
    ck_assert_int_eq(
        K->compare_set(store, "k", text_bytes(cas_rows[_i].expected),
            text_bytes(cas_rows[_i].desired), &now, FAR, &e),
        0);
    assert_bytes(store_bytes(now.len > 0 ? buf_bytes(&now) : "", now.len),
        cas_rows[_i].now);
    ck_assert_int_eq(has(store, "k"), cas_rows[_i].after != NULL);
    if (cas_rows[_i].after != NULL)
        assert_value(store, "k", cas_rows[_i].after);
    /* What changes nothing writes nothing. */
    if (strcmp(cas_rows[_i].now, cas_rows[_i].desired) != 0)
        ck_assert_int_eq(file_size(), before);
    buf_fini(&now);
}
END_TEST

static const struct {
    const char *old;
    int64_t delta;
    int rc;
    const char *after;
} add_rows[] = {
    {NULL, 5, 0, "5"},
    {NULL, 0, 0, "0"},
    {"41", 1, 0, "42"},
    {" 41xyz", 1, 0, "42"},
    {"-3", 1, 0, "-2"},
    {"", 7, 0, "7"},
    {"9223372036854775807", 1, 0, "-9223372036854775808"},
    {"xyz", 1, -EINVAL, "xyz"},
    {"9223372036854775808", 1, -ERANGE, "9223372036854775808"},
};

START_TEST(add_reads_numbers_as_pytorch_does)
{
    int64_t sum;

    if (add_rows[_i].old != NULL)
        set(store, "n", add_rows[_i].old);
    ck_assert_int_eq(
        K->add(store, "n", add_rows[_i].delta, &sum, FAR, &e), add_rows[_i].rc);
    if (add_rows[_i].rc == 0)
        ck_assert_int_eq(sum, strtoll(add_rows[_i].after, NULL, 10));
    else
        ck_assert_ptr_nonnull(strstr(e.msg, "key 'n'"));
    assert_value(store, "n", add_rows[_i].after);
}
END_TEST

START_TEST(append_creates_and_extends)
{
    ck_assert_int_eq(K->append(store, "k", text_bytes("ab"), FAR, &e), 0);
    assert_value(store, "k", "ab");
    ck_assert_int_eq(K->append(store, "k", text_bytes("cd"), FAR, &e), 0);
    assert_value(store, "k", "abcd");
}
END_TEST

START_TEST(delete_says_whether_there_was_a_key)
{
    bool existed = true;
    off_t before;

    before = file_size();
    ck_assert_int_eq(K->delete_key(store, "k", &existed, FAR, &e), 0);
    ck_assert(!existed);
    ck_assert_int_eq(file_size(), before);
    set(store, "k", "v");
    ck_assert_int_eq(K->delete_key(store, "k", &existed, FAR, &e), 0);
    ck_assert(existed);
    ck_assert(!has(store, "k"));
    set(store, "k", "w");
    ck_assert_int_eq(K->delete_key(store, "k", NULL, FAR, &e), 0);
    ck_assert(!has(store, "k"));
}
END_TEST

START_TEST(several_keys_at_a_time)
{
    const char *keys[] = {"a", "b", "a", ""};
    struct store_bytes values[] = {
        text_bytes("1"), text_bytes("2"), text_bytes("3"), text_bytes("4")};
    struct buf got[4];
    bool there;

    ck_assert_int_eq(K->check(store, keys, 0, &there, FAR, &e), 0);
    ck_assert(there);
    ck_assert_int_eq(K->check(store, keys, 4, &there, FAR, &e), 0);
    ck_assert(!there);
    ck_assert_int_eq(K->wait(store, keys, 0, NOW, &e), 0);
    ck_assert_int_eq(K->multi_set(store, keys, values, 4, FAR, &e), 0);
    ck_assert_int_eq(K->check(store, keys, 4, &there, FAR, &e), 0);
    ck_assert(there);
    ck_assert_int_eq(K->wait(store, keys, 4, NOW, &e), 0);
    for (int i = 0; i < 4; i++)
        buf_init(&got[i], 1000);
    ck_assert_int_eq(K->multi_get(store, keys, 4, got, FAR, &e), 0);
    for (int i = 0; i < 4; i++) {
        static const char *const want[] = {"3", "2", "3", "4"};

        assert_bytes(store_bytes(buf_bytes(&got[i]), got[i].len), want[i]);
        buf_fini(&got[i]);
    }
}
END_TEST

static void note_key_cb(struct store_bytes key, void *arg)
{
    struct buf *all = arg;

    ck_assert_int_eq(buf_append(all, key.data, key.len), 0);
    ck_assert_int_eq(buf_append(all, ";", 1), 0);
}

START_TEST(keys_are_listed_without_the_slash_and_counted_with_the_stores_own)
{
    struct buf all;
    int64_t number;

    set(store, "one", "1");
    set(store, "/two", "2");
    set(store, "gone", "");
    ck_assert_int_eq(K->delete_key(store, "gone", NULL, FAR, &e), 0);
    buf_init(&all, 1000);
    ck_assert_int_eq(K->list_keys(store, note_key_cb, &all, FAR, &e), 0);
    ck_assert_uint_eq(all.len, strlen("one;/two;"));
    ck_assert_int_eq(buf_append(&all, "", 1), 0);
    ck_assert_ptr_nonnull(strstr(buf_bytes(&all), "one;"));
    ck_assert_ptr_nonnull(strstr(buf_bytes(&all), "/two;"));
    buf_fini(&all);
    ck_assert_int_eq(K->num_keys(store, &number, FAR, &e), 0);
    ck_assert_int_eq(number, 3); /* with refcount/ */
}
END_TEST

START_TEST(there_are_no_queues)
{
    struct buf out;
    int64_t len;

    buf_init(&out, 10);
    ck_assert_int_eq(
        K->queue_push(store, "q", text_bytes("1"), FAR, &e), -EOPNOTSUPP);
    ck_assert_int_eq(K->queue_pop(store, "q", &out, FAR, &e), -EOPNOTSUPP);
    ck_assert_int_eq(K->queue_len(store, "q", &len, FAR, &e), -EOPNOTSUPP);
    buf_fini(&out);
}
END_TEST

START_TEST(what_is_over_a_limit_changes_nothing)
{
    size_t huge = ((size_t)128 << 20) + 1;
    char *bytes = mmap(NULL, huge, PROT_READ,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct buf before = read_file(), now;
    char *key = malloc(8194);
    int64_t sum;

    ck_assert_ptr_ne(bytes, MAP_FAILED);
    memset(key, 'k', 8193);
    key[8193] = '\0';
    ck_assert_int_eq(
        K->set(store, "k", store_bytes(bytes, huge), FAR, &e), -EMSGSIZE);
    ck_assert_int_eq(
        K->append(store, "k", store_bytes(bytes, huge), FAR, &e), -EMSGSIZE);
    buf_init(&now, 10);
    ck_assert_int_eq(K->compare_set(store, "k", text_bytes(""),
                         store_bytes(bytes, huge), &now, FAR, &e),
        -EMSGSIZE);
    ck_assert_int_eq(K->add(store, key, 1, &sum, FAR, &e), -EMSGSIZE);
    ck_assert_int_eq(K->set(store, key, text_bytes(""), FAR, &e), -EMSGSIZE);
    assert_file_is(&before);
    key[8192] = '\0';
    set(store, key, "longest");
    assert_value(store, key, "longest");
    ck_assert_int_eq(K->delete_key(store, key, NULL, FAR, &e), 0);
    ck_assert(!has(store, key));
    munmap(bytes, huge);
    buf_fini(&before);
    free(key);
}
END_TEST

/* --- Deadlines ---------------------------------------------------------- */

START_TEST(what_nobody_sets_ends_in_a_timeout_that_names_key_and_file)
{
    const char *keys[] = {"a", "missing"};
    uint64_t start = clock_now_ns();
    struct buf out;

    set(store, "a", "");
    ck_assert_int_eq(
        K->wait(store, keys, 2, clock_deadline_ns(30), &e), -ETIMEDOUT);
    ck_assert_uint_ge(clock_now_ns() - start, 30 * CLOCK_NS_PER_MS);
    ck_assert_ptr_nonnull(strstr(e.msg, "'missing'"));
    ck_assert_ptr_nonnull(strstr(e.msg, path));
    buf_init(&out, 10);
    ck_assert_int_eq(K->get(store, "missing", &out, NOW, &e), -ETIMEDOUT);
    ck_assert_uint_eq(out.len, 0);
    /* What is there needs no time. */
    ck_assert_int_eq(K->wait(store, keys, 1, NOW, &e), 0);
}
END_TEST

START_TEST(a_lock_that_is_not_given_back_ends_in_a_timeout)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    const char *key = "a";
    int64_t number;
    bool there;

    set(store, "a", "1");
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    ck_assert_int_eq(
        K->set(store, "a", text_bytes("2"), clock_deadline_ns(20), &e),
        -ETIMEDOUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "locked"));
    ck_assert_ptr_nonnull(strstr(e.msg, path));
    ck_assert_int_eq(K->wait(store, &key, 1, NOW, &e), -ETIMEDOUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "locked"));
    ck_assert_int_eq(K->num_keys(store, &number, NOW, &e), -ETIMEDOUT);
    /* A reader's lock keeps out writers only. */
    ck_assert_int_eq(flock(fd, LOCK_SH), 0);
    ck_assert_int_eq(K->check(store, &key, 1, &there, NOW, &e), 0);
    ck_assert_int_eq(K->add(store, "n", 1, &number, NOW, &e), -ETIMEDOUT);
    close(fd);
    assert_value(store, "a", "1");
}
END_TEST

START_TEST(opening_and_closing_wait_no_longer_than_they_may)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct store_impl *other;

    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    ck_assert_int_eq(store_file_open(&other, path, 0, NOW, &e), -ETIMEDOUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "locked"));
    ck_assert_int_eq(flock(fd, LOCK_UN), 0);
    ck_assert_int_eq(
        store_file_open(&other, path, 0, clock_deadline_ns(100), &e), 0);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    K->close(other);
    close(fd);
}
END_TEST

START_TEST(a_lock_is_held_during_an_operation_only)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    const char *key = "a";
    int64_t sum;

    ck_assert_int_eq(flock(fd, LOCK_EX | LOCK_NB), 0);
    ck_assert_int_eq(flock(fd, LOCK_UN), 0);
    set(store, "a", "x");
    ck_assert_int_eq(flock(fd, LOCK_EX | LOCK_NB), 0);
    ck_assert_int_eq(flock(fd, LOCK_UN), 0);
    ck_assert_int_eq(K->wait(store, &key, 1, FAR, &e), 0);
    ck_assert_int_eq(K->add(store, "a", 1, &sum, FAR, &e), -EINVAL);
    key = "b";
    ck_assert_int_eq(K->wait(store, &key, 1, NOW, &e), -ETIMEDOUT);
    ck_assert_int_eq(flock(fd, LOCK_EX | LOCK_NB), 0);
    close(fd);
}
END_TEST

/* --- Several processes -------------------------------------------------- */

static void answer(void)
{
    struct store_impl *s;
    struct buf value;

    must(store_file_open(&s, path, 0, FAR, &e) == 0);
    buf_init(&value, 1000);
    must(K->get(s, "question", &value, FAR, &e) == 0);
    must(K->set(s, "answer", store_bytes(buf_bytes(&value), value.len), FAR,
             &e) == 0);
    buf_fini(&value);
    K->close(s);
}

START_TEST(who_waits_gets_what_another_process_sets)
{
    pid_t pid = spawn(answer);

    set(store, "question", "42");
    assert_value(store, "answer", "42");
    assert_ends_well(pid);
}
END_TEST

#define ROUNDS 5000

/* Half adds, half increments made of compare_set: there a value has the
 * process's number too, so that none takes another's success for its own. */
static void count_up(void)
{
    struct store_impl *s;
    char have[40] = "", want[40];
    int64_t sum;

    must(store_file_open(&s, path, 0, FAR, &e) == 0);
    for (int i = 0; i < ROUNDS; i++) {
        must(K->add(s, "added", 1, &sum, FAR, &e) == 0);
        do {
            struct buf now;

            snprintf(
                want, sizeof(want), "%d by %d", atoi(have) + 1, (int)getpid());
            buf_init(&now, sizeof(have) - 1);
            must(K->compare_set(s, "swapped", text_bytes(have),
                     text_bytes(want), &now, FAR, &e) == 0);
            snprintf(have, sizeof(have), "%.*s", (int)now.len,
                now.len > 0 ? buf_bytes(&now) : "");
            buf_fini(&now);
        } while (strcmp(have, want) != 0);
    }
    K->close(s);
}

START_TEST(changes_of_two_processes_are_not_lost)
{
    pid_t one = spawn(count_up), two = spawn(count_up);
    struct buf value;

    assert_ends_well(one);
    assert_ends_well(two);
    assert_value(store, "added", "10000");
    buf_init(&value, 1000);
    ck_assert_int_eq(K->get(store, "swapped", &value, FAR, &e), 0);
    ck_assert_int_eq(buf_append(&value, "", 1), 0);
    ck_assert_int_eq(atoi(buf_bytes(&value)), 2 * ROUNDS);
    buf_fini(&value);
}
END_TEST

/* --- The end of the file ------------------------------------------------ */

START_TEST(the_last_of_the_world_removes_the_file)
{
    struct store_impl *s[3];

    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(store_file_open(&s[i], path, 3, FAR, &e), 0);
    K->close(s[0]);
    K->close(s[1]);
    ck_assert_int_eq(access(path, F_OK), 0);
    ck_assert_int_eq(store_file_open(&s[2], path, 3, FAR, &e), 0);
    set(s[2], "k", "v");
    K->close(s[2]);
    ck_assert_int_eq(access(path, F_OK), -1);
}
END_TEST

START_TEST(who_has_it_open_keeps_the_file)
{
    struct store_impl *s[2];

    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(store_file_open(&s[i], path, 1, FAR, &e), 0);
    K->close(s[0]);
    assert_value((set(s[1], "k", "v"), s[1]), "k", "v");
    K->close(s[1]);
    ck_assert_int_eq(access(path, F_OK), -1);
}
END_TEST

/* 1.13 counts only the closes, and removes the file when they are all. */
START_TEST(peers_that_count_only_closes_keep_the_file_too)
{
    struct store_impl *s;

    ck_assert_int_eq(store_file_open(&s, path, 2, FAR, &e), 0);
    K->close(s);
    ck_assert_int_eq(access(path, F_OK), 0);
    ck_assert_int_eq(unlink(path), 0); /* as the other one would */

    ck_assert_int_eq(store_file_open(&s, path, 2, FAR, &e), 0);
    put_file_hex("08000000 636c65616e75702f 01000000 31");
    K->close(s);
    ck_assert_int_eq(access(path, F_OK), -1);
}
END_TEST

START_TEST(without_a_world_size_the_file_stays)
{
    struct store_impl *s;

    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(store_file_open(&s, path, 0, FAR, &e), 0);
        K->close(s);
    }
    ck_assert_int_eq(access(path, F_OK), 0);
}
END_TEST

/* With a world of one the file goes at every moment when nobody has it. */
static void come_and_go(void)
{
    struct store_impl *s;
    int64_t sum;

    for (int i = 0; i < 1000; i++) {
        must(store_file_open(&s, path, 1, FAR, &e) == 0);
        must(K->add(s, "n", 1, &sum, FAR, &e) == 0);
        K->close(s);
    }
}

START_TEST(who_opens_never_gets_the_file_that_another_removes)
{
    pid_t one = spawn(come_and_go), two = spawn(come_and_go);

    assert_ends_well(one);
    assert_ends_well(two);
    ck_assert_int_eq(access(path, F_OK), -1);
}
END_TEST

/* Every kind of call, to see what it makes of a file. */
static const char *const op_names[] = {"set", "get", "add", "wait",
    "compare_set", "delete", "check", "num_keys", "append", "list_keys"};

static int call(struct store_impl *s, int op)
{
    const char *key = "k";
    struct buf out;
    int64_t number;
    bool flag;
    int rc = 0;

    buf_init(&out, SIZE_MAX / 2);
    switch (op) {
    case 0:
        rc = K->set(s, key, text_bytes("v"), FAR, &e);
        break;
    case 1:
        rc = K->get(s, key, &out, FAR, &e);
        break;
    case 2:
        rc = K->add(s, key, 1, &number, FAR, &e);
        break;
    case 3:
        rc = K->wait(s, &key, 1, FAR, &e);
        break;
    case 4:
        rc = K->compare_set(
            s, key, text_bytes(""), text_bytes("v"), &out, FAR, &e);
        break;
    case 5:
        rc = K->delete_key(s, key, &flag, FAR, &e);
        break;
    case 6:
        rc = K->check(s, &key, 1, &flag, FAR, &e);
        break;
    case 7:
        rc = K->num_keys(s, &number, FAR, &e);
        break;
    case 8:
        rc = K->append(s, key, text_bytes("v"), FAR, &e);
        break;
    case 9:
        rc = K->list_keys(s, note_key_cb, &out, FAR, &e);
        break;
    }
    buf_fini(&out);
    return rc;
}

START_TEST(a_file_that_vanished_is_an_error_at_once)
{
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_msg(call(store, _i) == -ENOENT, "%s", op_names[_i]);
    ck_assert_ptr_nonnull(strstr(e.msg, path));
    ck_assert_int_eq(access(path, F_OK), -1);
}
END_TEST

START_TEST(a_file_that_was_replaced_is_an_error_at_once)
{
    struct store_impl *other;
    struct buf before;

    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(store_file_open(&other, path, 0, FAR, &e), 0);
    before = read_file();
    ck_assert_msg(call(store, _i) == -ESTALE, "%s", op_names[_i]);
    ck_assert_ptr_nonnull(strstr(e.msg, path));
    K->close(store); /* does not count in the other's file */
    store = NULL;
    assert_file_is(&before);
    buf_fini(&before);
    K->close(other);
}
END_TEST

START_TEST(a_file_that_was_cut_off_is_an_error_at_once)
{
    set(store, "a", "1");
    ck_assert_int_eq(truncate(path, 5), 0);
    ck_assert_msg(call(store, _i) == -ESTALE, "%s", op_names[_i]);
    ck_assert_ptr_nonnull(strstr(e.msg, "byte 5"));
}
END_TEST

START_TEST(a_relative_path_survives_a_change_of_folder)
{
    struct store_impl *s;

    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(store_file_open(&s, "store", 0, FAR, &e), 0);
    ck_assert_int_eq(chdir("/"), 0);
    set(s, "k", "v");
    assert_value(store, "k", "v");
    K->close(s);
}
END_TEST

START_TEST(what_cannot_hold_a_store_is_refused_with_its_name)
{
    char name[128];
    struct store_impl *s;

    ck_assert_int_eq(store_file_open(&s, folder, 0, FAR, &e), -EISDIR);
    ck_assert_ptr_nonnull(strstr(e.msg, folder));
    snprintf(name, sizeof(name), "%s/no/store", folder);
    ck_assert_int_eq(store_file_open(&s, name, 0, FAR, &e), -ENOENT);
    ck_assert_ptr_nonnull(strstr(e.msg, name));
    snprintf(name, sizeof(name), "%s/fifo", folder);
    ck_assert_int_eq(mkfifo(name, 0600), 0);
    ck_assert_int_eq(store_file_open(&s, name, 0, FAR, &e), -EINVAL);
    ck_assert_ptr_nonnull(strstr(e.msg, name));
    unlink(name);
}
END_TEST

START_TEST(its_descriptor_is_closed_on_exec)
{
    int fd = dup(0), count = 0;

    for (int i = 3; i < fd; i++) {
        struct stat ours, there;

        if (fstat(i, &ours) < 0)
            continue;
        ck_assert_int_eq(stat(path, &there), 0);
        if (ours.st_ino != there.st_ino || ours.st_dev != there.st_dev)
            continue;
        count++;
        ck_assert(fcntl(i, F_GETFD) & FD_CLOEXEC);
    }
    ck_assert_int_eq(count, 1);
    close(fd);
}
END_TEST

/* --- Crashes, strangers, a full disk ------------------------------------ */

/* The first _i bytes of a record of 13. */
#define TORN_MAX 13
static void tear(int n)
{
    struct buf b = from_hex("02000000 2f61 03000000 787979");

    put_file(buf_bytes(&b), (size_t)n);
    buf_fini(&b);
}

START_TEST(a_reader_reports_the_incomplete_record_of_a_crashed_writer)
{
    static const int readers[] = {1, 3, 6, 7, 9};
    struct buf before;
    char where[40];
    int fd;

    set(store, "k", "v");
    snprintf(where, sizeof(where), "byte %jd", (intmax_t)file_size());
    tear(_i);
    before = read_file();
    for (size_t i = 0; i < LENGTH_OF(readers); i++) {
        ck_assert_msg(
            call(store, readers[i]) == -EPROTO, "%s", op_names[readers[i]]);
        ck_assert_ptr_nonnull(strstr(e.msg, path));
        ck_assert_ptr_nonnull(strstr(e.msg, where));
    }
    assert_file_is(&before);
    buf_fini(&before);
    /* And whoever can repair it gets the lock. */
    fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(flock(fd, LOCK_EX | LOCK_NB), 0);
    close(fd);
}
END_TEST

START_TEST(a_writer_removes_the_incomplete_record_of_a_crashed_one)
{
    struct store_impl *s;

    set(store, "a", "1");
    tear(_i);
    set(store, "b", "2");
    assert_file_hex(OPENED "02000000 2f61 01000000 31"
                           "02000000 2f62 01000000 32");
    tear(_i);
    /* Who opens is a writer, too. */
    ck_assert_int_eq(store_file_open(&s, path, 0, FAR, &e), 0);
    assert_value(store, "a", "1");
    assert_value(s, "b", "2");
    K->close(s);
}
END_TEST

/* Makes values that take a while to write, until it is killed. */
static void write_on(void)
{
    static char bytes[1 << 20];
    struct store_impl *s;

    must(store_file_open(&s, path, 0, FAR, &e) == 0);
    for (int i = 0; i < 64; i++) {
        char key[16];

        snprintf(key, sizeof(key), "k%d", i);
        must(K->set(s, key, store_bytes(bytes, sizeof(bytes)), FAR, &e) == 0);
    }
    must(K->set(s, "end", text_bytes(""), FAR, &e) == 0);
    for (;;)
        pause();
}

START_TEST(a_killed_writer_leaves_a_file_that_goes_on)
{
    char key[16];
    pid_t pid = spawn(write_on);

    snprintf(key, sizeof(key), "k%d", _i);
    K->wait(store, (const char *[]){key}, 1, FAR, &e);
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    set(store, "after", "1");
    assert_value(store, "after", "1");
    ck_assert(has(store, key));
}
END_TEST

static const struct {
    const char *text;
    size_t len;
    int rc;
} strangers[] = {
#define STRANGER(text, rc)                                                     \
    {                                                                          \
        text, sizeof(text) - 1, rc                                             \
    }
    STRANGER("loss: 0.25\nloss: 0.24\n", -EMSGSIZE),
    STRANGER("#!/bin/sh\n", -EMSGSIZE),
    STRANGER("1\n", -EPROTO),
    STRANGER("\x7f"
             "ELF\x02\x01\x01\0\0\0\0\0\0\0\0\0",
        -EMSGSIZE),
    STRANGER("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", -EPROTO),
    STRANGER("\x03\0\0\0abc\0\0\0\0", -EPROTO),
    STRANGER("\x02\0\0\0/a\xff\xff\xff\xff", -EMSGSIZE),
    STRANGER("\x02\0\0\0/a\x05\0\0\0a", -EPROTO),
    STRANGER("\x02\0\0\0/a\0\0\0", -EPROTO),
};

START_TEST(a_file_that_is_no_store_is_refused_and_left_alone)
{
    struct store_impl *s;
    struct buf before;

    put_file(strangers[_i].text, strangers[_i].len);
    before = read_file();
    ck_assert_int_eq(store_file_open(&s, path, 1, FAR, &e), strangers[_i].rc);
    ck_assert_ptr_nonnull(strstr(e.msg, path));
    ck_assert_ptr_nonnull(strstr(e.msg, "remove it"));
    assert_file_is(&before);
    buf_fini(&before);
}
END_TEST

START_TEST(garbage_behind_records_is_refused_and_left_alone)
{
    struct buf before;

    set(store, "a", "1");
    put_file("garbage", 7);
    before = read_file();
    ck_assert_msg(call(store, _i) == -EMSGSIZE, "%s", op_names[_i]);
    ck_assert_ptr_nonnull(strstr(e.msg, path));
    ck_assert_ptr_nonnull(strstr(e.msg, "byte 29"));
    assert_file_is(&before);
    buf_fini(&before);
}
END_TEST

START_TEST(a_full_disk_is_an_error_and_leaves_no_part_of_a_record)
{
    static char bytes[10000];
    struct rlimit old, limit;
    struct buf before, now;
    struct store_impl *s;

    /* The process's limit of a file's size is told in the same way. */
    signal(SIGXFSZ, SIG_IGN);
    set(store, "a", "1");
    before = read_file();
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old;
    limit.rlim_cur = before.len + (rlim_t)_i;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(
        K->set(store, "a", store_bytes(bytes, sizeof(bytes)), FAR, &e), -EFBIG);
    ck_assert_ptr_nonnull(strstr(e.msg, path));
    buf_init(&now, SIZE_MAX / 2);
    ck_assert_int_eq(K->compare_set(store, "a", text_bytes("1"),
                         store_bytes(bytes, sizeof(bytes)), &now, FAR, &e),
        -EFBIG);
    buf_fini(&now);
    ck_assert_int_eq(
        K->append(store, "a", store_bytes(bytes, sizeof(bytes)), FAR, &e),
        -EFBIG);
    assert_file_is(&before);
    assert_value(store, "a", "1");
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    ck_assert_int_eq(store_file_open(&s, path, 0, FAR, &e), 0);
    assert_value(s, "a", "1");
    set(store, "a", "2");
    assert_value(s, "a", "2");
    K->close(s);
    buf_fini(&before);
}
END_TEST

static void add_cases(Suite *suite)
{
    TCase *t = tcase_create("store");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, the_file_has_the_format_of_pytorch);
    tcase_add_test(t, records_of_others_are_read);
    tcase_add_test(t, values_are_any_bytes_of_any_size);
    tcase_add_loop_test(
        t, compare_set_follows_the_table, 0, LENGTH_OF(cas_rows));
    tcase_add_loop_test(
        t, add_reads_numbers_as_pytorch_does, 0, LENGTH_OF(add_rows));
    tcase_add_test(t, append_creates_and_extends);
    tcase_add_test(t, delete_says_whether_there_was_a_key);
    tcase_add_test(t, several_keys_at_a_time);
    tcase_add_test(
        t, keys_are_listed_without_the_slash_and_counted_with_the_stores_own);
    tcase_add_test(t, there_are_no_queues);
    tcase_add_test(t, what_is_over_a_limit_changes_nothing);
    tcase_add_test(
        t, what_nobody_sets_ends_in_a_timeout_that_names_key_and_file);
    tcase_add_test(t, a_lock_that_is_not_given_back_ends_in_a_timeout);
    tcase_add_test(t, opening_and_closing_wait_no_longer_than_they_may);
    tcase_add_test(t, a_lock_is_held_during_an_operation_only);
    tcase_add_test(t, who_waits_gets_what_another_process_sets);
    tcase_add_test(t, changes_of_two_processes_are_not_lost);
    tcase_add_loop_test(
        t, a_file_that_vanished_is_an_error_at_once, 0, LENGTH_OF(op_names));
    tcase_add_loop_test(t, a_file_that_was_replaced_is_an_error_at_once, 0,
        LENGTH_OF(op_names));
    tcase_add_loop_test(
        t, a_file_that_was_cut_off_is_an_error_at_once, 0, LENGTH_OF(op_names));
    tcase_add_test(t, a_relative_path_survives_a_change_of_folder);
    tcase_add_test(t, what_cannot_hold_a_store_is_refused_with_its_name);
    tcase_add_test(t, its_descriptor_is_closed_on_exec);
    tcase_add_loop_test(t,
        a_reader_reports_the_incomplete_record_of_a_crashed_writer, 1,
        TORN_MAX);
    tcase_add_loop_test(t,
        a_writer_removes_the_incomplete_record_of_a_crashed_one, 1, TORN_MAX);
    tcase_add_loop_test(t, a_killed_writer_leaves_a_file_that_goes_on, 0, 8);
    tcase_add_loop_test(t, garbage_behind_records_is_refused_and_left_alone, 0,
        LENGTH_OF(op_names));
    tcase_add_loop_test(
        t, a_full_disk_is_an_error_and_leaves_no_part_of_a_record, 0, 13);
    suite_add_tcase(suite, t);

    t = tcase_create("file");
    tcase_add_checked_fixture(t, setup_folder, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, the_last_of_the_world_removes_the_file);
    tcase_add_test(t, who_has_it_open_keeps_the_file);
    tcase_add_test(t, peers_that_count_only_closes_keep_the_file_too);
    tcase_add_test(t, without_a_world_size_the_file_stays);
    tcase_add_test(t, who_opens_never_gets_the_file_that_another_removes);
    tcase_add_loop_test(t, a_file_that_is_no_store_is_refused_and_left_alone, 0,
        LENGTH_OF(strangers));
    suite_add_tcase(suite, t);

    t = tcase_create("log");
    tcase_add_test(t, a_record_is_parsed_when_its_last_byte_is_there);
    tcase_add_test(t, a_record_over_a_limit_is_refused_by_its_length_alone);
    tcase_add_test(t, a_record_over_a_limit_is_not_encoded);
    suite_add_tcase(suite, t);
}

int main(void)
{
    Suite *suite = suite_create("store_file");

    add_cases(suite);
    return unit_run_suite(suite);
}
