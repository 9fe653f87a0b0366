/* coll_alloc(): where memory lies, what it holds, what is given back. */
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/unit/coll_harness.h"
#include "tests/unit/unit.h"
#include "worker/coll_memory.h"

#define HUGE_BYTES ((size_t)2 << 20)

/* Bytes of memory that the process's memfd has. */
static size_t held(void)
{
    struct stat st = {0};

    if (coll_memory_fd() >= 0)
        ck_assert_int_eq(fstat(coll_memory_fd(), &st), 0);
    return (size_t)st.st_blocks * 512;
}

START_TEST(large_memory_suits_huge_pages)
{
    static const size_t sizes[] = {
        HUGE_BYTES, HUGE_BYTES - 1, HUGE_BYTES + 1, 5 * HUGE_BYTES + 12345};
    void *large[4];
    void *small[4];

    for (int i = 0; i < 4; i++) {
        struct coll_extent e;
        uintptr_t unit = i == 1 ? 4096 : HUGE_BYTES;

        ck_assert_int_eq(coll_alloc(&small[i], 100), COLL_OK);
        ck_assert_int_eq(coll_alloc(&large[i], sizes[i]), COLL_OK);
        coll_memory_find(&e, large[i], sizes[i]);
        ck_assert_uint_eq((uintptr_t)small[i] % 4096, 0);
        ck_assert_uint_eq((uintptr_t)large[i] % unit, 0);
        ck_assert_uint_eq(e.at % unit, 0);
        ck_assert_uint_eq(e.offset, 0);
        memset(large[i], 1, sizes[i]);
        memset(small[i], 1, 100);
    }
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(coll_free(large[i]), COLL_OK);
        ck_assert_int_eq(coll_free(small[i]), COLL_OK);
    }
    ck_assert_uint_eq(held(), 0);
}
END_TEST

/* Of many sizes in any order: zeros, apart from each other, and nothing left
 * at the end. */
START_TEST(memory_is_zeros_each_time)
{
    enum { SLOTS = 40 };
    struct {
        unsigned char *at;
        size_t len;
    } all[SLOTS] = {0};
    unsigned int seed = 42;

    for (int i = 0; i < 4000; i++) {
        int k = rand_r(&seed) % SLOTS;
        void *memory;

        if (all[k].at != NULL) {
            for (size_t b = 0; b < all[k].len; b += 509)
                ck_assert_uint_eq(all[k].at[b], (unsigned)k + 1);
            ck_assert_int_eq(coll_free(all[k].at), COLL_OK);
            all[k].at = NULL;
            continue;
        }
        all[k].len = 1 + (size_t)rand_r(&seed) % (1u << rand_r(&seed) % 20);
        ck_assert_int_eq(coll_alloc(&memory, all[k].len), COLL_OK);
        all[k].at = memory;
        for (size_t b = 0; b < all[k].len; b += 509)
            ck_assert_uint_eq(all[k].at[b], 0);
        memset(all[k].at, k + 1, all[k].len);
    }
    for (int k = 0; k < SLOTS; k++)
        ck_assert_int_eq(coll_free(all[k].at), COLL_OK);
    ck_assert_uint_eq(held(), 0);
}
END_TEST

/* Another rank has mapped a buffer, and does not know that the operation has
 * failed here, nor that the buffer was freed. */
START_TEST(what_is_written_late_is_in_no_new_memory)
{
    static const size_t sizes[] = {5000, 3 * HUGE_BYTES};
    const size_t len = sizes[_i];
    struct coll_group *g = NULL;
    struct coll_extent e;
    void *memory, *later[3];
    char *late;

    ck_assert_int_eq(
        coll_group_create(&g, &coll_backend_self, 0, 1, 1000, NULL), COLL_OK);
    ck_assert_int_eq(coll_alloc(&memory, len), COLL_OK);
    coll_memory_find(&e, memory, len);
    ck_assert_int_eq(
        coll_memory_map(&late, coll_memory_fd(), e.at, e.len, 0), 0);
    coll_group_fail(g, coll_fail(COLL_ERR_TIMEOUT, "a failure"));
    ck_assert_int_eq(coll_free(memory), COLL_OK);
    ck_assert_uint_eq(held(), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(coll_alloc(&later[i], len), COLL_OK);
    memset(late, 'x', e.len);
    for (int i = 0; i < 3; i++) {
        for (size_t b = 0; b < len; b += 509)
            ck_assert_int_eq(((char *)later[i])[b], 0);
        ck_assert_int_eq(coll_free(later[i]), COLL_OK);
    }
    munmap(late, e.len);
    coll_group_free(g);
}
END_TEST

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* There are pages for it, but no addresses. */
START_TEST(what_cannot_be_mapped_takes_no_memory)
{
    const size_t bytes = (size_t)256 << 20;
    struct rlimit limit = {bytes, bytes};
    void *memory = NULL;

    ck_assert_int_eq(coll_alloc(&memory, 1), COLL_OK);
    ck_assert_int_eq(coll_free(memory), COLL_OK);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
    ck_assert_int_eq(coll_alloc(&memory, bytes), COLL_ERR_MEMORY);
    ck_assert_uint_eq(held(), 0);
}
END_TEST
#endif

START_TEST(what_is_not_the_librarys_is_not_freed)
{
    void *memory;
    int own;

    ck_assert_int_eq(coll_free(NULL), COLL_OK);
    ck_assert_int_eq(coll_free(&own), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(coll_alloc(&memory, 5000), COLL_OK);
    ck_assert_int_eq(coll_free((char *)memory + 1), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(coll_free(memory), COLL_OK);
    ck_assert_int_eq(coll_free(memory), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(coll_alloc(&memory, SIZE_MAX), COLL_ERR_MEMORY);
    ck_assert_int_eq(coll_alloc(&memory, PTRDIFF_MAX), COLL_ERR_MEMORY);
    ck_assert_int_eq(coll_alloc(NULL, 1), COLL_ERR_ARGUMENT);
    ck_assert_int_eq(coll_alloc(&memory, 0), COLL_OK);
    ck_assert_int_eq(coll_free(memory), COLL_OK);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("coll_memory");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, large_memory_suits_huge_pages);
    tcase_add_test(tc, memory_is_zeros_each_time);
    tcase_add_loop_test(tc, what_is_written_late_is_in_no_new_memory, 0, 2);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    tcase_add_test(tc, what_cannot_be_mapped_takes_no_memory);
#endif
    tcase_add_test(tc, what_is_not_the_librarys_is_not_freed);
    return unit_run("coll_memory", tc);
}
