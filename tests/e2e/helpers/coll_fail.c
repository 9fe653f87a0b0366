/*
 * coll_fail RANK record TEXT | crash | overflow | abort TEXT
 *
 * Rank RANK fails: it records TEXT and exits with status 5, or writes to
 * address 16, or recurses for ever, or records TEXT (unless it is empty) and
 * aborts. The others wait for it in a barrier, record why that fails, and exit
 * with status 3.
 */
#include <collective.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int *volatile nowhere = (int *)16;

static void crash_here(void)
{
    *nowhere = 1;
}

static int overflow(volatile char *above, int depth)
{
    volatile char here[4096];

    here[0] = above[0];
    return depth == 0 ? 0 : overflow(here, depth - 1) + here[0];
}

static int fail(const char *how, const char *text)
{
    volatile char here[1] = {0};

    if (text[0] != '\0' && coll_record_error(text) != COLL_OK) {
        fprintf(stderr, "%s\n", coll_last_error());
        return 6;
    }
    if (strcmp(how, "crash") == 0)
        crash_here();
    else if (strcmp(how, "overflow") == 0)
        return overflow(here, INT_MAX);
    else if (strcmp(how, "abort") == 0)
        abort();
    return 5;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: coll_fail RANK HOW [TEXT]\n");
        return 2;
    }
    if (coll_install_crash_handler() != COLL_OK || coll_init(NULL) != COLL_OK) {
        fprintf(stderr, "%s\n", coll_last_error());
        return 1;
    }
    if (coll_rank(NULL) == (int)strtol(argv[1], NULL, 10))
        return fail(argv[2], argc > 3 ? argv[3] : "");
    if (coll_barrier(NULL) == COLL_OK)
        return 0;
    coll_record_error(coll_last_error());
    return 3;
}
