/* See dry_run.h. */
#include "cmd/dry_run.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/devices.h"
#include "agent/worker_vars.h"
#include "cmd/job_file.h"
#include "rendezvous/base/utf8.h"
#include "rendezvous/worker_env.h"

/* --- A job file --------------------------------------------------------- */

/* Text that YAML reads as it stands, and job files as text. */
static bool is_plain_yaml(const char *text)
{
    if (text[0] == '\0' ||
        (!isalnum((unsigned char)text[0]) && strchr("/._", text[0]) == NULL))
        return false;
    if (strcasecmp(text, "null") == 0 || text[strlen(text) - 1] == ':')
        return false;
    for (; *text != '\0'; text++)
        if (!isalnum((unsigned char)*text) && strchr("/._-+:=@", *text) == NULL)
            return false;
    return true;
}

/*
 * The character at text, and in *length its bytes. False for bytes that are no
 * UTF-8, or a character that YAML or a terminal takes for something else:
 * controls, line separators, byte order mark.
 */
static bool is_printable(const char *text, size_t *length, uint32_t *character)
{
    uint32_t c;

    *length = utf8_decode(text, strlen(text), &c);
    *character = c;
    if (*length == 0) {
        *length = 1;
        *character = UTF8_REPLACEMENT; /* YAML has no form for such a byte */
        return false;
    }
    return c >= ' ' && (c < 0x7f || c >= 0xa0) && c != 0x2028 && c != 0x2029 &&
           c != 0xfeff && c != 0xfffe && c != 0xffff;
}

/* In double quotes where it has to be. */
static void print_yaml(const char *text, FILE *out)
{
    if (is_plain_yaml(text)) {
        fputs(text, out);
        return;
    }
    putc('"', out);
    while (*text != '\0') {
        uint32_t c;
        size_t n;

        if (*text == '"' || *text == '\\') {
            fprintf(out, "\\%c", *text++);
            continue;
        }
        if (is_printable(text, &n, &c))
            fwrite(text, 1, n, out);
        else
            fprintf(out, c > 0xffff ? "\\U%08x" : "\\u%04x", (unsigned)c);
        text += n;
    }
    putc('"', out);
}

static void print_options(
    const struct job *job, const struct options *o, FILE *out)
{
    const struct option_table *t = options_table();

    for (size_t i = 0; i < t->count; i++) {
        const struct option *opt = &t->options[i];
        char number[24];
        const char *value;

        if (opt->flags & OPTION_COMMAND)
            continue;
        if (opt->offset == offsetof(struct options, nproc_per_node)) {
            fprintf(out, "%s: %d\n", opt->name, job->nproc);
            continue;
        }
        if (opt->type == OPTION_TEXT || opt->type == OPTION_CHOICE)
            value = *(const char *const *)((const char *)o + opt->offset);
        else
            value = option_table_value(opt, o, number, sizeof(number));
        if (value == NULL)
            continue;
        fprintf(out, "%s: ", opt->name);
        print_yaml(value, out);
        putc('\n', out);
    }
}

static void print_program(char *const *program, FILE *out)
{
    fputs("program: ", out);
    print_yaml(program[0], out);
    fputs("\nargs: [", out);
    for (size_t i = 1; program[i] != NULL; i++) {
        fputs(i > 1 ? ", " : "", out);
        print_yaml(program[i], out);
    }
    fputs("]\n", out);
}

static void print_env(const struct job_env *env, FILE *out)
{
    if (env->count > 0)
        fputs("env:\n", out);
    for (size_t i = 0; i < env->count; i++) {
        fputs("  ", out);
        print_yaml(env->entries[i].name, out);
        putc(':', out);
        if (env->entries[i].value != NULL) {
            putc(' ', out);
            print_yaml(env->entries[i].value, out);
        }
        putc('\n', out);
    }
}

/* --- Workers ------------------------------------------------------------ */

static bool is_plain_shell(const char *text)
{
    if (text[0] == '\0')
        return false;
    for (; *text != '\0'; text++)
        if (!isalnum((unsigned char)*text) &&
            strchr("/._-+:=@,%", *text) == NULL)
            return false;
    return true;
}

/* A byte of a remark, which has to stay one line and be UTF-8. */
static void print_escaped(const char *text, size_t n, FILE *out)
{
    for (size_t i = 0; i < n; i++)
        fprintf(out, "\\%03o", (unsigned char)text[i]);
}

/* Quoted where a shell needs it; with $'' for what cannot be printed. */
static void print_shell(const char *text, FILE *out)
{
    bool is_escaped = false;
    uint32_t c;
    size_t n;

    if (is_plain_shell(text)) {
        fputs(text, out);
        return;
    }
    for (const char *at = text; *at != '\0'; at += n)
        is_escaped = !is_printable(at, &n, &c) || is_escaped;
    fputs(is_escaped ? "$'" : "'", out);
    for (; *text != '\0'; text += n) {
        if (!is_printable(text, &n, &c))
            print_escaped(text, n, out);
        else if (*text == '\'')
            fputs(is_escaped ? "\\'" : "'\\''", out);
        else if (*text == '\\' && is_escaped)
            fputs("\\\\", out);
        else
            fwrite(text, 1, n, out);
    }
    putc('\'', out);
}

static bool is_in(char *const *list, const char *entry)
{
    for (; *list != NULL; list++)
        if (*list == entry)
            return true;
    return false;
}

/* What crun sets, in env, that the worker does not inherit. */
static void print_vars(const struct job *job, char *const *env, FILE *out)
{
    for (; *env != NULL; env++) {
        int len = (int)strcspn(*env, "=");
        const char *value = *env + len + 1;

        if (is_in(job->env, *env))
            continue;
        if (job->master_port == 0 &&
            strncmp(*env, ENV_MASTER_PORT "=", sizeof(ENV_MASTER_PORT)) == 0)
            value = "<free port>";
        fprintf(out, "#   %.*s=", len, *env);
        print_shell(value, out);
        putc('\n', out);
    }
}

static void print_command(char *const *argv, FILE *out)
{
    fputs("#   ", out);
    for (; *argv != NULL; argv++) {
        print_shell(*argv, out);
        putc(argv[1] != NULL ? ' ' : '\n', out);
    }
}

static int print_worker(const struct job *job, int local_rank, FILE *out)
{
    char omp_text[16];
    struct worker_vars vars = worker_vars_of_job(job, local_rank, omp_text);
    char *devices = NULL;
    char **env = NULL, **argv = NULL;
    int rc = 0;

    vars.run_id = job->run_id != NULL ? job->run_id : "<random>";
    vars.error_file = "<path or empty>";
    vars.agent = "<socket>";
    if (job->is_virtual_local_rank)
        rc = devices_visible(
            worker_vars_find(job->env, ENV_CUDA_VISIBLE_DEVICES), local_rank,
            job->share_gpu, &devices, NULL);
    vars.visible_devices = devices;
    vars.nccl_ras_addr =
        job->has_nccl_ras_port ? "127.0.0.1:<free port>" : NULL;
    if (rc == 0) {
        env = worker_vars_build(&vars, job->env);
        argv = program_argv(&job->program, local_rank);
        rc = env == NULL || argv == NULL ? -ENOMEM : 0;
    }
    if (rc == 0) {
        fprintf(out, "#\n# rank %d, %s:\n", local_rank, job->program.path);
        print_vars(job, env, out);
        print_command(argv, out);
    }
    free(env);
    free(argv);
    free(devices);
    return rc;
}

int dry_run_print(const struct job *job, const struct options *o, FILE *out)
{
    int rc = 0;

    print_options(job, o, out);
    print_program(o->program, out);
    if (o->file != NULL)
        print_env(&o->file->env, out);
    if (job->nodes.max > 1)
        fputs(
            "#\n# ranks, sizes and where the workers meet are as if this node "
            "were alone:\n# the nodes agree on them when they meet\n",
            out);
    for (int i = 0; rc == 0 && i < job->nproc; i++)
        rc = print_worker(job, i, out);
    return rc;
}
