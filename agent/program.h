/*
 * From what the user typed to what is executed. torchrun starts everything
 * in Python unless --no-python is given; crun looks at the file:
 *
 *   -m NAME              PYTHON -u -m NAME args
 *   --no-python PROGRAM  PROGRAM args
 *   *.py                 PYTHON -u FILE args
 *   ELF, executable #!   PROGRAM args
 *   other readable file  PYTHON -u FILE args
 *
 * PYTHON is $PYTHON_EXEC, else the first python3, else python, on PATH. A
 * program without a slash is looked for on PATH, then in the working
 * directory; one that ends in .py only in the working directory.
 */
#ifndef CRUN_AGENT_PROGRAM_H
#define CRUN_AGENT_PROGRAM_H

#include <stdbool.h>

#include "rendezvous/base/err.h"

struct program {
    char *path; /* owned: the file for execve */
    char **argv; /* owned array of borrowed strings, ends with NULL */
    const char *title; /* borrowed: what reports call it */
};

/* The exit codes that shells use for a command that cannot run. */
#define PROGRAM_EXIT_NOT_EXECUTABLE 126
#define PROGRAM_EXIT_NOT_FOUND 127

/* The exit code of a program that fork or exec could not start, from the
 * errno: one of those, as in a shell; 1 where the machine was short of
 * something. */
int program_start_code(int error);

/*
 * args is the command line from the program on, ended by NULL, and must
 * outlive *p. Nothing is started. On failure e says why, with exit code 127
 * for a file that does not exist and 126 for one that cannot be executed.
 */
int program_resolve(struct program *p, char **args, bool is_module,
    bool is_no_python, struct err *e);

/*
 * The command of one worker: $local_rank and ${local_rank} in every argument
 * but argv[0] are replaced, all else stays as it was typed ($$ too, of which
 * torchrun makes $). One allocation, freed with free(); what has no macro is
 * borrowed from p. NULL when out of memory.
 */
char **program_argv(const struct program *p, int local_rank);

void program_fini(struct program *p);

#endif
