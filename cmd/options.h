/*
 * crun's command line. One table describes every option: its spelling, its
 * type, where the value goes, its help. Parsing, --help and the checks all
 * read that table.
 */
#ifndef CRUN_CMD_OPTIONS_H
#define CRUN_CMD_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "rendezvous/base/err.h"

/* A port that was not given; 0 is one that the kernel shall choose. */
#define OPTIONS_PORT_UNSET (-1)

struct options {
    const char *nproc_per_node; /* checked by devices_nproc() */
    const char *master_addr;
    int64_t master_port;
    bool is_standalone;
    bool is_module;
    bool is_no_python;
    bool is_help;
    bool is_version;
    char **program; /* the rest of argv from the program on */
};

/*
 * Parses argv; the strings are borrowed from it. Rules, as torchrun's:
 * dashes and underscores are the same, `--opt value` and `--opt=value` too,
 * the last one of a repeated option counts, `--` ends the options, and the
 * first word that is no option is the program: all after it is the
 * program's. A missing program is an error unless --help or --version is
 * given. On failure o is undefined and e says what was wrong.
 */
int options_parse(struct options *o, int argc, char **argv, struct err *e);

/* The text of --help. */
void options_print_help(FILE *out);

#endif
