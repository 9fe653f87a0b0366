/*
 * What the workers' environment is made of: what crun inherited, changed by
 * the `env` of a job file. An entry with a value sets a variable. An entry
 * without one is a pattern (as of a shell) for names: where there is at least
 * one, a variable that was inherited reaches the workers only if its name
 * matches one. What crun itself sets for workers comes on top, in any case.
 */
#ifndef CRUN_CMD_JOB_ENV_H
#define CRUN_CMD_JOB_ENV_H

#include <stddef.h>

struct job_env_entry {
    char *name; /* owned; of a variable, or a pattern */
    char *value; /* owned; NULL: a pattern */
};

struct job_env {
    struct job_env_entry *entries; /* owned, each name once */
    size_t count;
};

/* Adds an entry. -EEXIST if the name is there already, -EINVAL if it cannot be
 * a name (it is empty or holds '='). */
int job_env_add(struct job_env *env, const char *name, const char *value);

/*
 * The workers' environment: one allocation, freed with free(). The strings of
 * inherited that reach them are borrowed. env may be NULL. NULL when out of
 * memory.
 */
char **job_env_build(const struct job_env *env, char *const *inherited);

void job_env_fini(struct job_env *env);

#endif
