/* Bytes to send: copied ones and values, in any order and in any pieces. */
#include "rendezvous/store_out.h"

#include "test_store.h"
#include "unit.h"

static struct store_keys keys;
static struct store_out out;

static void setup(void)
{
    const struct store_limits limits = {
        .value_len = 1 << 20, .memory = (size_t)64 << 20};

    store_keys_init(&keys, &limits);
    store_out_init(&out);
}

static void teardown(void)
{
    store_out_fini(&out);
    store_keys_fini(&keys);
    ck_assert_uint_eq(keys.budget.used, 0);
}

/* A reference to a new value of len bytes c that nobody else has. */
static struct store_blob *value_of(size_t len, char c)
{
    char *bytes = malloc(len + 1);
    struct store_blob *blob;

    memset(bytes, c, len);
    ck_assert_int_eq(
        store_keys_push(&keys, text_bytes("q"), store_bytes(bytes, len)), 0);
    blob = store_keys_pop(&keys, text_bytes("q"));
    free(bytes);
    return blob;
}

static void put_value(size_t len, char c)
{
    struct store_blob *blob = value_of(len, c);

    ck_assert_int_eq(store_out_value(&out, blob), 0);
    store_blob_unref(blob);
}

/* What is to send is this; max entries of it are looked at. (Check's own
 * assertions cost a message each, too much for a loop.) */
static bool is_out(const char *want, size_t len, int max)
{
    struct iovec iov[16];
    int n = store_out_iov(&out, iov, max);
    size_t done = 0;

    for (int i = 0; i < n; i++) {
        if (iov[i].iov_len == 0 || iov[i].iov_len > len - done ||
            memcmp(iov[i].iov_base, want + done, iov[i].iov_len) != 0)
            return false;
        done += iov[i].iov_len;
    }
    return store_out_len(&out) == len && n <= max && (n == max || done == len);
}

START_TEST(nothing_is_nothing)
{
    struct iovec iov;

    ck_assert_int_eq(store_out_iov(&out, &iov, 1), 0);
    store_out_sent(&out, 0);
    ck_assert_int_eq(store_out_value(&out, NULL), 0);
    ck_assert(is_out("\0\0\0\0\0\0\0\0", 8, 1));
    store_out_sent(&out, 8);
    ck_assert_ptr_null(out.bytes.data);
}
END_TEST

START_TEST(short_value_is_copied_long_one_is_not)
{
    struct iovec iov[4];

    put_value(STORE_OUT_COPY_MAX - 1, 'x');
    ck_assert_uint_eq(keys.budget.used, 0);
    put_value(STORE_OUT_COPY_MAX, 'y');
    ck_assert_uint_gt(keys.budget.used, STORE_OUT_COPY_MAX);
    ck_assert_int_eq(store_out_iov(&out, iov, 4), 2);
    ck_assert_uint_eq(iov[1].iov_len, STORE_OUT_COPY_MAX);
    store_out_sent(&out, store_out_len(&out) - 1);
    ck_assert_uint_gt(keys.budget.used, 0);
    store_out_sent(&out, 1);
    ck_assert_uint_eq(keys.budget.used, 0);
    ck_assert_uint_eq(store_out_memory(&out), 0);
}
END_TEST

/* Random appends and random sends beside a flat buffer. */
START_TEST(bytes_leave_in_the_order_they_came)
{
    struct buf flat = from_hex("00");
    unsigned seed = (unsigned)_i + 1;

    store_put_u8(&out.bytes, 0);
    for (int step = 0; step < 1000; step++) {
        size_t len = (size_t)rand_r(&seed) % (3 * STORE_OUT_COPY_MAX);
        char c = (char)rand_r(&seed);
        size_t n;

        switch (rand_r(&seed) % 4) {
        case 0:
            buf_append(&flat, &c, 1);
            store_put_u8(&out.bytes, (uint8_t)c);
            break;
        case 1:
            put_value(len, c);
            store_put_u64(&flat, len);
            memset(buf_reserve(&flat, len), c, len);
            buf_added(&flat, len);
            break;
        default:
            n = rand_r(&seed) % 8 == 0 || len > flat.len ? flat.len : len;
            store_out_sent(&out, n);
            buf_consume(&flat, n);
        }
        if (!is_out(buf_bytes(&flat), flat.len, 1 + rand_r(&seed) % 16))
            ck_abort_msg("step %d", step);
    }
    buf_fini(&flat);
}
END_TEST

START_TEST(unsent_values_are_given_back)
{
    for (int i = 0; i < 100; i++)
        put_value(STORE_OUT_COPY_MAX, (char)i);
    store_out_sent(&out, STORE_OUT_COPY_MAX + 20);
    store_out_fini(&out);
    ck_assert_uint_eq(keys.budget.used, 0);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("out");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, nothing_is_nothing);
    tcase_add_test(tc, short_value_is_copied_long_one_is_not);
    tcase_add_loop_test(tc, bytes_leave_in_the_order_they_came, 0, 20);
    tcase_add_test(tc, unsent_values_are_given_back);
    return unit_run("store_out", tc);
}
