/* What every unit test program ends with. */
#ifndef CRUN_TESTS_UNIT_H
#define CRUN_TESTS_UNIT_H

#include <check.h>

/* Sanitizers look at what is done, not at how much: where a test repeats
 * itself with other numbers, the flavours that are ten times slower take a part
 * of them, and the release flavour all. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { UNIT_IS_SANITIZED = 1 };
#else
enum { UNIT_IS_SANITIZED = 0 };
#endif

/* Runs a suite, prints Check's closing line and returns main()'s exit
 * status. */
static inline int unit_run_suite(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    int failed;

    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

/* The same for a program with one test case. */
static inline int unit_run(const char *name, TCase *tcase)
{
    Suite *suite = suite_create(name);

    suite_add_tcase(suite, tcase);
    return unit_run_suite(suite);
}

#endif
