/*
 * See job_file.h. libyaml's events are read one by one, as the form of a job
 * file is flat; what does not belong there is refused where it begins.
 */
#include "cmd/job_file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

enum job_key { KEY_PROGRAM, KEY_ARGS, KEY_ENV, KEY_COUNT };

static const char *const key_names[KEY_COUNT] = {
    [KEY_PROGRAM] = "program", [KEY_ARGS] = "args", [KEY_ENV] = "env"};

struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one */
    const char *path;
    const char *text;
    const struct option_table *table;
    const struct option_target *to;
    struct job_file *file;
    bool *seen; /* owned, [table->count + KEY_COUNT] */
    char *program; /* borrowed from file->strings, as are args */
    char **args; /* owned */
    size_t nargs;
    yaml_mark_t args_mark;
    struct err *e;
};

static int fail(struct reader *r, const yaml_mark_t *mark, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int fail(struct reader *r, const yaml_mark_t *mark, const char *fmt, ...)
{
    char sentence[256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(sentence, sizeof(sentence), fmt, args);
    va_end(args);
    return err_set(r->e, -EINVAL, "%s:%zu:%zu: %s", r->path, mark->line + 1,
        mark->column + 1, sentence);
}

static int out_of_memory(struct reader *r)
{
    return err_set(r->e, -ENOMEM, "%s: out of memory", r->path);
}

/* A byte that is no text: libyaml tells its offset only. */
static yaml_mark_t mark_of_offset(const struct reader *r)
{
    yaml_mark_t mark = {0};

    for (size_t i = 0; i < r->parser.problem_offset; i++) {
        mark.column++;
        if (r->text[i] == '\n') {
            mark.line++;
            mark.column = 0;
        }
    }
    return mark;
}

static int parser_failed(struct reader *r)
{
    const char *problem = r->parser.problem;
    yaml_mark_t mark = r->parser.problem_mark;

    if (r->parser.error == YAML_MEMORY_ERROR)
        return out_of_memory(r);
    if (r->parser.error == YAML_READER_ERROR)
        mark = mark_of_offset(r);
    return fail(r, &mark, "not YAML: %s%s%s", problem != NULL ? problem : "?",
        r->parser.context != NULL ? " " : "",
        r->parser.context != NULL ? r->parser.context : "");
}

/* What may stand before a value in YAML, and has no use here. */
static int check_properties(
    struct reader *r, const yaml_char_t *anchor, const yaml_char_t *tag)
{
    if (anchor != NULL)
        return fail(r, &r->event.start_mark,
            "an anchor, &%s, is not read here; write values out", anchor);
    if (tag != NULL)
        return fail(r, &r->event.start_mark,
            "a tag, %s, is not read here; leave it out", tag);
    return 0;
}

static int next_event(struct reader *r)
{
    yaml_event_delete(&r->event);
    if (!yaml_parser_parse(&r->parser, &r->event))
        return parser_failed(r);
    switch (r->event.type) {
    case YAML_ALIAS_EVENT:
        return fail(r, &r->event.start_mark,
            "an alias, *%s, is not read here; write values out",
            r->event.data.alias.anchor);
    case YAML_SCALAR_EVENT:
        return check_properties(
            r, r->event.data.scalar.anchor, r->event.data.scalar.tag);
    case YAML_SEQUENCE_START_EVENT:
        return check_properties(r, r->event.data.sequence_start.anchor,
            r->event.data.sequence_start.tag);
    case YAML_MAPPING_START_EVENT:
        return check_properties(r, r->event.data.mapping_start.anchor,
            r->event.data.mapping_start.tag);
    default:
        return 0;
    }
}

/* --- Scalars ------------------------------------------------------------ */

static const char *scalar_text(const struct reader *r)
{
    return (const char *)r->event.data.scalar.value;
}

static bool is_plain(const struct reader *r)
{
    return r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

/* What YAML reads as "no value". */
static bool is_null(const struct reader *r)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (is_plain(r) && strcmp(scalar_text(r), words[i]) == 0)
            return true;
    return false;
}

/* The current event has to be one value, for something called what. */
static int expect_scalar(struct reader *r, const char *what)
{
    const yaml_mark_t *mark = &r->event.start_mark;

    if (r->event.type == YAML_SEQUENCE_START_EVENT)
        return fail(r, mark, "%s: expected one value, not a list", what);
    if (r->event.type == YAML_MAPPING_START_EVENT)
        return fail(r, mark, "%s: expected one value, not a mapping", what);
    if (strlen(scalar_text(r)) != r->event.data.scalar.length)
        return fail(r, mark, "%s: a NUL byte cannot be passed on", what);
    return 0;
}

static int expect_value(struct reader *r, const char *what)
{
    int rc = expect_scalar(r, what);

    if (rc == 0 && is_null(r))
        return fail(r, &r->event.start_mark,
            "%s: its value is missing; leave the line out, or quote the word",
            what);
    return rc;
}

/* A copy of the current scalar that lives as long as the file. */
static char *keep_text(struct reader *r)
{
    struct job_file *f = r->file;
    char **strings =
        reallocarray(f->strings, f->nstrings + 1, sizeof(*strings));
    char *text = NULL;

    if (strings != NULL) {
        f->strings = strings;
        text = strdup(scalar_text(r));
    }
    if (text != NULL)
        f->strings[f->nstrings++] = text;
    return text;
}

/* --- Keys --------------------------------------------------------------- */

static int read_program(struct reader *r)
{
    int rc = expect_value(r, "program");

    if (rc < 0)
        return rc;
    r->program = keep_text(r);
    return r->program == NULL ? out_of_memory(r) : 0;
}

static int read_args(struct reader *r)
{
    int rc;

    r->args_mark = r->event.start_mark;
    if (r->event.type != YAML_SEQUENCE_START_EVENT)
        return fail(r, &r->event.start_mark, "args: expected a list, [A, B]");
    for (;;) {
        char **args;

        rc = next_event(r);
        if (rc < 0 || r->event.type == YAML_SEQUENCE_END_EVENT)
            return rc;
        rc = expect_value(r, "args");
        if (rc < 0)
            return rc;
        args = reallocarray(r->args, r->nargs + 1, sizeof(*args));
        if (args == NULL)
            return out_of_memory(r);
        r->args = args;
        r->args[r->nargs] = keep_text(r);
        if (r->args[r->nargs++] == NULL)
            return out_of_memory(r);
    }
}

/* The value of variable or pattern name, which began at mark. */
static int add_env(struct reader *r, const char *name, const yaml_mark_t *mark)
{
    int rc = expect_scalar(r, name);

    if (rc < 0)
        return rc;
    rc = job_env_add(&r->file->env, name, is_null(r) ? NULL : scalar_text(r));
    if (rc == -EEXIST)
        return fail(r, mark, "env: %s is given twice", name);
    if (rc == -EINVAL)
        return fail(
            r, mark, "env: '%s' cannot be the name of a variable", name);
    return rc < 0 ? out_of_memory(r) : 0;
}

static int read_env(struct reader *r)
{
    yaml_mark_t mark;
    char *name;
    int rc;

    if (r->event.type != YAML_MAPPING_START_EVENT)
        return fail(r, &r->event.start_mark,
            "env: expected a mapping, NAME: VALUE for each variable");
    for (;;) {
        rc = next_event(r);
        if (rc < 0 || r->event.type == YAML_MAPPING_END_EVENT)
            return rc;
        rc = expect_scalar(r, "the name of a variable");
        if (rc < 0)
            return rc;
        mark = r->event.start_mark;
        name = strdup(scalar_text(r));
        if (name == NULL)
            return out_of_memory(r);
        rc = next_event(r);
        if (rc == 0)
            rc = add_env(r, name, &mark);
        free(name);
        if (rc < 0)
            return rc;
    }
}

static int read_option(struct reader *r, const struct option *opt)
{
    const struct option_origin from = {.source = OPTION_FROM_FILE,
        .file = r->path,
        .line = (int)r->event.start_mark.line + 1,
        .column = (int)r->event.start_mark.column + 1};
    const char *text;
    int rc = expect_value(r, opt->name);

    if (rc < 0)
        return rc;
    text = scalar_text(r);
    if (opt->type == OPTION_FLAG && (!is_plain(r) || !isalpha(text[0])))
        return fail(r, &r->event.start_mark,
            "%s: expected true or false, not '%s'", opt->name, text);
    if (opt->type != OPTION_FLAG && opt->type != OPTION_TEXT &&
        opt->type != OPTION_CHOICE && !is_plain(r))
        return fail(r, &r->event.start_mark,
            "%s: expected a number, not the text '%s'", opt->name, text);
    text = keep_text(r);
    if (text == NULL)
        return out_of_memory(r);
    return option_table_set(r->table, opt, r->to, &from, text, r->e);
}

/* The key that the current event is: *opt, or *key if opt is NULL. */
static int find_key(
    struct reader *r, const struct option **opt, enum job_key *key)
{
    const yaml_mark_t *mark = &r->event.start_mark;
    const char *name;
    size_t index;
    int rc;

    rc = expect_scalar(r, "the name of an option");
    if (rc < 0)
        return rc;
    name = scalar_text(r);
    *opt = option_table_find(r->table, name);
    for (*key = 0; *opt == NULL && *key < KEY_COUNT; ++*key)
        if (strcmp(name, key_names[*key]) == 0)
            break;
    if (*opt == NULL && *key == KEY_COUNT)
        return fail(r, mark,
            "unknown key '%s': expected an option's long name, program, args "
            "or env",
            name);
    if (*opt != NULL && (*opt)->flags & OPTION_COMMAND)
        return fail(r, mark, "%s belongs on the command line", name);
    index = *opt != NULL ? (size_t)(*opt - r->table->options)
                         : r->table->count + *key;
    if (r->seen[index])
        return fail(r, mark, "%s is given twice", name);
    r->seen[index] = true;
    return 0;
}

static int read_keys(struct reader *r)
{
    const struct option *opt;
    enum job_key key;
    int rc;

    for (;;) {
        rc = next_event(r);
        if (rc < 0 || r->event.type == YAML_MAPPING_END_EVENT)
            return rc;
        rc = find_key(r, &opt, &key);
        if (rc == 0)
            rc = next_event(r);
        if (rc < 0)
            return rc;
        if (opt != NULL)
            rc = read_option(r, opt);
        else if (key == KEY_PROGRAM)
            rc = read_program(r);
        else if (key == KEY_ARGS)
            rc = read_args(r);
        else
            rc = read_env(r);
        if (rc < 0)
            return rc;
    }
}

/* program and args, which may come in any order. */
static int join_program(struct reader *r)
{
    struct job_file *f = r->file;

    if (r->program == NULL && r->seen[r->table->count + KEY_ARGS])
        return fail(r, &r->args_mark, "args: there is no program beside it");
    if (r->program == NULL)
        return 0;
    f->program = calloc(r->nargs + 2, sizeof(*f->program));
    if (f->program == NULL)
        return out_of_memory(r);
    f->program[0] = r->program;
    for (size_t i = 0; i < r->nargs; i++)
        f->program[1 + i] = r->args[i];
    return 0;
}

/* A stream with one document, which is a mapping, or with none. */
static int read_stream(struct reader *r)
{
    int rc = next_event(r);

    if (rc == 0)
        rc = next_event(r);
    if (rc < 0 || r->event.type == YAML_STREAM_END_EVENT)
        return rc;
    rc = next_event(r);
    if (rc < 0)
        return rc;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return fail(
            r, &r->event.start_mark, "expected OPTION: VALUE in each line");
    rc = read_keys(r);
    if (rc == 0)
        rc = next_event(r);
    if (rc == 0)
        rc = next_event(r);
    if (rc == 0 && r->event.type != YAML_STREAM_END_EVENT)
        return fail(r, &r->event.start_mark,
            "a second document; a job file holds one job");
    return rc == 0 ? join_program(r) : rc;
}

int job_file_parse(struct job_file **out, const char *path, const char *text,
    size_t len, const struct option_table *t, const struct option_target *to,
    struct err *e)
{
    struct reader r = {
        .path = path, .text = text, .table = t, .to = to, .e = e};
    int rc;

    if (!yaml_parser_initialize(&r.parser))
        return out_of_memory(&r);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, len);
    r.file = calloc(1, sizeof(*r.file));
    r.seen = calloc(t->count + KEY_COUNT, sizeof(*r.seen));
    rc = r.file != NULL && r.seen != NULL ? read_stream(&r) : out_of_memory(&r);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    free(r.seen);
    free(r.args);
    if (rc < 0)
        job_file_destroy(r.file);
    else
        *out = r.file;
    return rc;
}

/* Reads at most size bytes; returns their number or a negative errno. */
static ssize_t read_some(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t n = 0;
    ssize_t got;

    if (fd < 0)
        return -errno;
    do {
        got = read(fd, text + n, size - n);
        n += got > 0 ? (size_t)got : 0;
    } while (got > 0);
    got = got < 0 ? -errno : (ssize_t)n;
    close(fd);
    return got;
}

int job_file_load(struct job_file **out, const char *path,
    const struct option_table *t, const struct option_target *to, struct err *e)
{
    char *text = malloc(JOB_FILE_SIZE_MAX + 1);
    ssize_t len = -ENOMEM;
    int rc;

    if (text != NULL)
        len = read_some(path, text, JOB_FILE_SIZE_MAX + 1);
    if (len < 0)
        rc = err_set(e, (int)len, "--config='%s': cannot be read: %s", path,
            strerror((int)-len));
    else if (len > JOB_FILE_SIZE_MAX)
        rc = err_set(
            e, -EFBIG, "--config='%s': more than 1 MiB is no job file", path);
    else
        rc = job_file_parse(out, path, text, (size_t)len, t, to, e);
    free(text);
    return rc;
}

void job_file_destroy(struct job_file *f)
{
    if (f == NULL)
        return;
    for (size_t i = 0; i < f->nstrings; i++)
        free(f->strings[i]);
    free(f->strings);
    free(f->program);
    job_env_fini(&f->env);
    free(f);
}
