/*
 * A command line by a table: it describes every option of a program, its
 * spelling, its type, where the value goes, its help. Parsing, --help and
 * the checks all read that table, and so does whatever else sets options: the
 * environment, a file.
 */
#ifndef CRUN_CMD_OPTION_TABLE_H
#define CRUN_CMD_OPTION_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "rendezvous/base/err.h"

enum option_type {
    OPTION_FLAG, /* bool */
    OPTION_TEXT, /* const char *, borrowed, not empty */
    OPTION_CHOICE, /* const char *: one of choices */
    OPTION_NUMBER, /* int64_t */
    OPTION_SIZE, /* int64_t; K, M or G behind the number: powers of 1024 */
    OPTION_SECONDS, /* int64_t in milliseconds; a fraction is rounded up */
};

enum option_flags {
    OPTION_ENV = 1, /* may be set by the environment, see env_prefix */
    OPTION_EMPTY = 2, /* text: an empty value is stored as NULL */
    OPTION_YIELDS = 4, /* loses an abbreviation to options without this */
    OPTION_COMMAND = 8, /* on the command line only */
};

struct option {
    const char *name; /* as messages and --help spell it */
    char letter; /* 0: none */
    enum option_type type;
    unsigned flags;
    size_t offset; /* of the field in the program's struct */
    int64_t min; /* of a number, size or milliseconds; less: not set */
    int64_t max;
    const char *const *choices; /* end with NULL */
    const char *value; /* how --help calls the value */
    const char *group; /* heading of --help; NULL: that of the one before */
    const char *help; /* lines after the first are indented by the printer */
};

struct option_table {
    const struct option *options;
    size_t count;
    const char *env_prefix; /* of OPTION_ENV: with the name in capitals */
    const char *hint; /* ends the message about an unknown option; or "" */
    bool has_abbreviations; /* a long option may be cut short */
};

/* Who set an option; the greater one wins. */
enum option_source {
    OPTION_FROM_DEFAULT,
    OPTION_FROM_FILE,
    OPTION_FROM_ENV,
    OPTION_FROM_COMMAND,
};

struct option_origin {
    enum option_source source;
    const char *file; /* borrowed; of OPTION_FROM_FILE, as are the next two */
    int line;
    int column;
};

/* Where values go: the program's struct, which holds the defaults. */
struct option_target {
    void *base;
    struct option_origin *origins; /* [count], zeroed; NULL: the last wins */
};

/* "--name", "PET_NAME" or "FILE:LINE:COLUMN: name". */
struct option_where {
    char text[256];
};

/*
 * Parses argv by argparse's rules; the strings are borrowed from it.
 *
 * Dashes and underscores are the same. A long option may be cut short, if the
 * table allows that and it names one option only (the two spellings of one are
 * no conflict).
 * `--opt value`, `--opt=value`, `-o value`, `-ovalue`, `-o=value`; a value
 * that begins with a dash needs one of the joined forms unless it is a number
 * or holds a blank. The last one of a repeated option counts. `--` ends the
 * options, and so does the first word that is none. *rest is the index of
 * what follows, which may be argc. On failure what to points at is undefined
 * and e says what was wrong.
 */
int option_table_parse(const struct option_table *t,
    const struct option_target *to, int argc, char **argv, int *rest,
    struct err *e);

/*
 * Takes options that nothing on the command line set from the environment.
 * An empty variable is the same as none. A flag is a number, 0 for off, or
 * one of true, false, yes, no, on, off.
 */
int option_table_read_env(const struct option_table *t,
    const struct option_target *to, struct err *e);

/* Sets one option to what text says, unless a stronger source has set it
 * already; a wrong value is an error in any case. A flag's text is one of the
 * words above. */
int option_table_set(const struct option_table *t, const struct option *opt,
    const struct option_target *to, const struct option_origin *from,
    const char *text, struct err *e);

/* Decimal seconds to milliseconds; what is above zero stays so. 0, -EINVAL or
 * -ERANGE. */
int option_parse_seconds(const char *text, int64_t *out);

/* The option with exactly this name, dashes being underscores; or NULL. */
const struct option *option_table_find(
    const struct option_table *t, const char *name);

struct option_where option_table_where(const struct option_table *t,
    const struct option *opt, const struct option_origin *from);

/* Writes the value that opt has in the struct at base, as parsing takes it;
 * returns text, or NULL if it has none (a flag that is off, text that is
 * NULL, a number below its minimum). */
const char *option_table_value(
    const struct option *opt, const void *base, char *text, size_t size);

/* One or more lines for each option, under the headings of their groups. Says
 * which default an option has in the struct at defaults (NULL: does not). */
void option_table_print(
    const struct option_table *t, const void *defaults, FILE *out);

#endif
