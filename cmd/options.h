/* crun's command line, by a table (option_table.h). */
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
 * Parses argv; the strings are borrowed from it. The rules are those of
 * option_table_parse(), which are torchrun's; the first word that is no
 * option is the program: all after it is the program's. A missing program is
 * an error unless --help or --version is given. On failure o is undefined
 * and e says what was wrong.
 */
int options_parse(struct options *o, int argc, char **argv, struct err *e);

/* The text of --help. */
void options_print_help(FILE *out);

#endif
