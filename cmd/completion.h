/* --print_completion: a script for a shell, made from a table of options. */
#ifndef CRUN_CMD_COMPLETION_H
#define CRUN_CMD_COMPLETION_H

#include <stdio.h>

#include "cmd/option_table.h"

/* shell is "bash" or "zsh". Options are completed with dashes, or with
 * underscores once one is typed; choices with their words; other values and
 * what follows the options as files. */
void completion_print(const struct option_table *t, const char *program,
    const char *shell, FILE *out);

#endif
