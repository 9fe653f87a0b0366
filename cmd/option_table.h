/*
 * A command line by a table: it describes every option of a program, its
 * spelling, its type, where the value goes, its help. Parsing, --help and
 * the checks all read that table.
 */
#ifndef CRUN_CMD_OPTION_TABLE_H
#define CRUN_CMD_OPTION_TABLE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "rendezvous/base/err.h"

enum option_type {
    OPTION_FLAG, /* bool, set to true */
    OPTION_TEXT, /* const char *, borrowed from argv, not empty */
    OPTION_NUMBER, /* int64_t */
    OPTION_SIZE, /* int64_t; K, M or G behind the number: powers of 1024 */
};

struct option {
    const char *name; /* as messages and --help spell it */
    char letter; /* 0: none */
    enum option_type type;
    size_t offset; /* of the field in the program's struct */
    int64_t min; /* of a number or size */
    int64_t max;
    const char *value; /* how --help calls the value */
    const char *help; /* lines after the first are indented by the printer */
};

struct option_table {
    const struct option *options;
    size_t count;
    const char *hint; /* ends the message about an unknown option; or "" */
};

/*
 * Parses argv into the struct at base, which holds the defaults; the strings
 * are borrowed from argv. Dashes and underscores are the same, `--opt value`
 * and `--opt=value` too, the last one of a repeated option counts, `--` ends
 * the options, and so does the first word that is none. *rest is the index of
 * what follows, which may be argc. On failure base is undefined and e says
 * what was wrong.
 */
int option_table_parse(const struct option_table *t, void *base, int argc,
    char **argv, int *rest, struct err *e);

/* One or more lines for each option. */
void option_table_print(const struct option_table *t, FILE *out);

#endif
