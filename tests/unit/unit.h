/* What every unit test program ends with. */
#ifndef CRUN_TESTS_UNIT_H
#define CRUN_TESTS_UNIT_H

#include <check.h>

/* Runs the one test case of a program, prints Check's closing line and
 * returns main()'s exit status. */
static inline int unit_run(const char *name, TCase *tcase)
{
    Suite *suite = suite_create(name);
    SRunner *runner;
    int failed;

    suite_add_tcase(suite, tcase);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

#endif
