/* See job_env.h. */
#include "cmd/job_env.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Variables have short names; a longer one is matched like an empty name, so
 * by `*` only. */
#define NAME_MAX_LEN 256

int job_env_add(struct job_env *env, const char *name, const char *value)
{
    struct job_env_entry *entries;
    struct job_env_entry entry;

    if (name[0] == '\0' || strchr(name, '=') != NULL)
        return -EINVAL;
    for (size_t i = 0; i < env->count; i++)
        if (strcmp(env->entries[i].name, name) == 0)
            return -EEXIST;
    entries = reallocarray(env->entries, env->count + 1, sizeof(*env->entries));
    if (entries == NULL)
        return -ENOMEM;
    env->entries = entries;
    entry.name = strdup(name);
    entry.value = value != NULL ? strdup(value) : NULL;
    if (entry.name == NULL || (value != NULL && entry.value == NULL)) {
        free(entry.name);
        free(entry.value);
        return -ENOMEM;
    }
    env->entries[env->count++] = entry;
    return 0;
}

/* Whether a variable that was inherited ("NAME=value") goes to the workers. */
static bool is_kept(const struct job_env *env, const char *var)
{
    size_t len = strcspn(var, "=");
    bool has_pattern = false;
    bool is_matched = false;
    char name[NAME_MAX_LEN] = "";

    if (len < sizeof(name))
        memcpy(name, var, len);
    for (size_t i = 0; i < env->count; i++) {
        const struct job_env_entry *entry = &env->entries[i];

        if (entry->value == NULL) {
            has_pattern = true;
            is_matched = is_matched || fnmatch(entry->name, name, 0) == 0;
        } else if (strlen(entry->name) == len &&
                   memcmp(entry->name, var, len) == 0) {
            return false; /* it is replaced */
        }
    }
    return !has_pattern || is_matched;
}

char **job_env_build(const struct job_env *env, char *const *inherited)
{
    static const struct job_env none;
    size_t text_len = 0;
    size_t n = 0;
    char **vars;
    char *text;

    if (env == NULL)
        env = &none;
    while (inherited[n] != NULL)
        n++;
    for (size_t i = 0; i < env->count; i++)
        if (env->entries[i].value != NULL)
            text_len += strlen(env->entries[i].name) +
                        strlen(env->entries[i].value) + 2;
    /* The pointers first, then the text of what is set. */
    vars = malloc((n + env->count + 1) * sizeof(*vars) + text_len);
    if (vars == NULL)
        return NULL;
    text = (char *)(vars + n + env->count + 1);
    n = 0;
    for (; *inherited != NULL; inherited++)
        if (is_kept(env, *inherited))
            vars[n++] = *inherited;
    for (size_t i = 0; i < env->count; i++) {
        if (env->entries[i].value == NULL)
            continue;
        vars[n++] = text;
        text = stpcpy(text, env->entries[i].name);
        *text++ = '=';
        text = stpcpy(text, env->entries[i].value) + 1;
    }
    vars[n] = NULL;
    return vars;
}

void job_env_fini(struct job_env *env)
{
    for (size_t i = 0; i < env->count; i++) {
        free(env->entries[i].name);
        free(env->entries[i].value);
    }
    free(env->entries);
    *env = (struct job_env){0};
}
