/*
 * Devices: CUDA_VISIBLE_DEVICES as the CUDA driver reads it, and the value of
 * --nproc_per_node. What asks drivers is tested end to end, with fake ones.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/devices.h"
#include "tests/unit/unit.h"

/* --- CUDA_VISIBLE_DEVICES ------------------------------------------------- */

#define UUID_0 "GPU-11112222-3333-4444-5555-666677778888"
#define UUID_1 "GPU-11119999-3333-4444-5555-666677778888"
#define UUID_2 "GPU-aaaa2222-3333-4444-5555-666677778888"

/* models has a letter for each GPU: another letter is another model, a capital
 * one is a GPU in MIG mode. want is what is seen, "-" a MIG device; with a
 * question mark if only the driver knows. */
static const struct {
    const char *models;
    const char *list;
    const char *want;
} lists[] = {
    {"aaa", NULL, "012"},
    {"", NULL, ""},
    {"aaa", "", ""},
    {"aaa", "0", "0"},
    {"aaa", "2,0", "20"},
    {"aaa", "0,1,2", "012"},
    {"aaa", " 1 ,\t2", "12"},
    {"aaa", "+1", "1"},
    {"aaa", "-1", ""},
    {"aaa", "0,2,-1,1", "02"},
    {"aaa", "NoDevFiles", ""},
    {"aaa", "0,x,1", "0"},
    {"aaa", "0,,1", "0"},
    {"aaa", "0,", "0"},
    {"aaa", ",0", ""},
    {"aaa", "1gpu,2x", "12"},
    {"aaa", "3", ""},
    {"aaa", "1,3,0", "1"},
    {"aaa", "99999999999999999999", ""},
    {"aaa", "0,4294967297", "0"},
    {"aaa", "1,1", "?"},
    {"aaa", "0,1,0", "?"},
    {"aaa", UUID_2, "2"},
    {"aaa", UUID_2 "," UUID_0, "20"},
    {"aaa", "GPU-11112222", "0"},
    {"aaa", "GPU-aaaa2222,GPU-11119", "21"},
    {"aaa", "GPU-1111", ""},
    {"aaa", "GPU-aaaa,GPU-1111,GPU-11112222", "2"},
    {"aaa", "GPU-bbbb", ""},
    {"aaa", "GPU-", ""},
    {"a", "GPU-", "0"},
    {"aaa", UUID_0 "0", ""},
    {"aaa", "GPU-aaaa,0", "2"},
    {"aaa", "0,GPU-aaaa", "0?"},
    {"aaa", "GPU-11112222,GPU-11112222", "?"},
    {"aaa", "GPU-11112222,MIG-aaaa", "0?"},
    {"aaa", "MIG-aaaa", ""},
    {"aab", NULL, "012?"},
    {"aab", "2", "2?"},
    {"AAA", NULL, "0?"},
    {"aAa", NULL, "1?"},
    {"aAa", "0,2", "02?"},
    {"aAa", "0,1", "1?"},
    {"aAa", "MIG-aaaa", "-?"},
    {"aAa", "MIG-aaaa,MIG-bbbb", "-?"},
    {"aAa", "MIG-GPU-1111/0/0", "-?"},
    {"aAa", "", "?"},
};

static int make_gpus(struct gpu *gpus, const char *models)
{
    static const char *const uuids[] = {UUID_0, UUID_1, UUID_2};
    int n = (int)strlen(models);

    memset(gpus, 0, (size_t)n * sizeof(*gpus));
    for (int i = 0; i < n; i++) {
        snprintf(gpus[i].uuid, sizeof(gpus[i].uuid), "%s", uuids[i]);
        gpus[i].is_mig = models[i] >= 'A' && models[i] <= 'Z';
        gpus[i].model[0] = (char)(models[i] | 0x20);
    }
    return n;
}

static void describe(const struct gpus_visible *v, char *text)
{
    for (int i = 0; i < v->count; i++)
        *text++ = v->gpu[i] < 0 ? '-' : (char)('0' + v->gpu[i]);
    if (!v->is_certain)
        *text++ = '?';
    *text = '\0';
}

START_TEST(lists_are_read_as_the_driver_does)
{
    struct gpus_visible visible;
    struct gpu gpus[3];
    int ngpus = make_gpus(gpus, lists[_i].models);
    char text[GPUS_MAX + 2];

    gpus_visible(&visible, gpus, ngpus, lists[_i].list, false);
    describe(&visible, text);
    ck_assert_msg(strcmp(text, lists[_i].want) == 0,
        "\"%s\" of \"%s\": got %s, wanted %s",
        lists[_i].list ? lists[_i].list : "(unset)", lists[_i].models, text,
        lists[_i].want);
}
END_TEST

START_TEST(the_order_of_the_bus_needs_no_driver)
{
    struct gpus_visible visible;
    struct gpu gpus[3];
    int ngpus = make_gpus(gpus, "abc");
    char text[GPUS_MAX + 2];

    gpus_visible(&visible, gpus, ngpus, "2,1", true);
    describe(&visible, text);
    ck_assert_str_eq(text, "21");
}
END_TEST

/* --- --virtual_local_rank ------------------------------------------------- */

static const struct {
    const char *list;
    int local_rank;
    int share;
    const char *want; /* NULL: an error */
} views[] = {
    {NULL, 0, 1, "0"},
    {NULL, 11, 1, "11"},
    {NULL, 11, 4, "2"},
    {"4,5,6", 0, 1, "4"},
    {"4,5,6", 2, 1, "6"},
    {"4,5,6", 2, 2, "5"},
    {"4,5,6", 5, 2, "6"},
    {"4,5,6", 6, 2, NULL},
    {"4,5,6", 3, 1, NULL},
    {"4", 1, 1, NULL},
    {"4", 1, 2, "4"},
    {"", 0, 1, NULL},
    {"4,,6", 1, 1, NULL},
    {"4,", 1, 1, NULL},
    {"GPU-11112222,MIG-aaaa", 1, 1, "MIG-aaaa"},
    {" 4 ,5", 0, 1, " 4 "},
};

START_TEST(a_worker_sees_its_own_entry)
{
    struct err e = {0};
    char *text = NULL;
    int rc = devices_visible(
        views[_i].list, views[_i].local_rank, views[_i].share, &text, &e);

    if (views[_i].want == NULL) {
        ck_assert_int_eq(rc, -EINVAL);
        ck_assert_ptr_nonnull(strstr(e.msg, "has no entry for local rank"));
        ck_assert_int_eq(
            strstr(e.msg, ", 2 to a device") != NULL, views[_i].share == 2);
        return;
    }
    ck_assert_int_eq(rc, 0);
    ck_assert_str_eq(text, views[_i].want);
    free(text);
}
END_TEST

/* --- --nproc_per_node ----------------------------------------------------- */

static const struct {
    const char *text;
    int want; /* 0: an error */
    const char *words;
} counts[] = {
    {"1", 1, NULL},
    {"4096", 4096, NULL},
    {"0", 0, "expected a number from 1 to 4096, or cpu, gpu, auto"},
    {"4097", 0, "=4097: expected"},
    {"-1", 0, "expected"},
    {"2x", 0, "expected"},
    {"", 0, "expected"},
    {"GPU", 0, "expected"},
    {"99999999999999999999", 0, "expected"},
    {"xpu", 0, "give their number"},
};

START_TEST(counts_are_numbers_or_words)
{
    struct err e = {0};
    int n = devices_nproc(counts[_i].text, 2, &e);

    if (counts[_i].want > 0) {
        ck_assert_int_eq(n, counts[_i].want);
        return;
    }
    ck_assert_int_eq(n, -EINVAL);
    ck_assert_msg(strstr(e.msg, counts[_i].words) != NULL, "%s", e.msg);
}
END_TEST

#define COUNT(a) ((int)(sizeof(a) / sizeof(a[0])))

int main(void)
{
    TCase *tcase = tcase_create("devices");

    tcase_add_loop_test(
        tcase, lists_are_read_as_the_driver_does, 0, COUNT(lists));
    tcase_add_test(tcase, the_order_of_the_bus_needs_no_driver);
    tcase_add_loop_test(tcase, a_worker_sees_its_own_entry, 0, COUNT(views));
    tcase_add_loop_test(tcase, counts_are_numbers_or_words, 0, COUNT(counts));
    return unit_run("devices", tcase);
}
