/* See option_table.h. */
#include "cmd/option_table.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "rendezvous/base/text.h"

static char dashed(char c)
{
    return c == '_' ? '-' : c;
}

/* How many letters are the same at the start of a name and of the first n
 * bytes of given. */
static size_t common_prefix(const char *given, size_t n, const char *name)
{
    size_t i = 0;

    while (i < n && name[i] != '\0' && dashed(given[i]) == dashed(name[i]))
        i++;
    return i;
}

static bool is_name(const char *given, size_t n, const char *name)
{
    return strlen(name) == n && common_prefix(given, n, name) == n;
}

static int unknown_option(
    const struct option_table *t, const char *arg, struct err *e)
{
    size_t n = strcspn(arg + 2, "=");
    const struct option *near = NULL;
    size_t best = 3; /* fewer equal letters are no hint */

    for (size_t i = 0; i < t->count && arg[1] == '-'; i++) {
        size_t same = common_prefix(arg + 2, n, t->options[i].name);

        if (same > best) {
            best = same;
            near = &t->options[i];
        }
    }
    if (near != NULL)
        return err_set(e, -EINVAL, "unknown option %s (did you mean --%s?)%s",
            arg, near->name, t->hint);
    return err_set(e, -EINVAL, "unknown option %s%s", arg, t->hint);
}

/* A number with or without one of K, M and G behind it. */
static int parse_size(const char *text, int64_t *out)
{
    static const char units[] = "KMG";
    size_t len = strlen(text);
    const char *unit = len > 0 ? strchr(units, text[len - 1]) : NULL;
    char digits[24];
    int64_t number;
    int rc;

    if (unit == NULL || len - 1 >= sizeof(digits))
        return text_to_i64(text, out);
    memcpy(digits, text, len - 1);
    digits[len - 1] = '\0';
    rc = text_to_i64(digits, &number);
    if (rc < 0)
        return rc;
    if (__builtin_mul_overflow(
            number, (int64_t)1 << (10 * (unit - units + 1)), out))
        return -ERANGE;
    return 0;
}

static int store_number(const struct option *opt, void *field,
    int (*parse)(const char *, int64_t *), const char *value, struct err *e)
{
    int64_t number;

    if (parse(value, &number) < 0 || number < opt->min || number > opt->max)
        return err_set(e, -EINVAL, "--%s='%s': expected a %s from %lld to %lld",
            opt->name, value, opt->type == OPTION_SIZE ? "size" : "number",
            (long long)opt->min, (long long)opt->max);
    *(int64_t *)field = number;
    return 0;
}

static int store_value(
    const struct option *opt, void *base, const char *value, struct err *e)
{
    void *field = (char *)base + opt->offset;

    switch (opt->type) {
    case OPTION_FLAG:
        if (value != NULL)
            return err_set(e, -EINVAL, "--%s takes no value, but got '%s'",
                opt->name, value);
        *(bool *)field = true;
        return 0;
    case OPTION_TEXT:
        if (value[0] == '\0')
            return err_set(e, -EINVAL, "--%s: its value is empty", opt->name);
        *(const char **)field = value;
        return 0;
    case OPTION_NUMBER:
        return store_number(opt, field, text_to_i64, value, e);
    case OPTION_SIZE:
        return store_number(opt, field, parse_size, value, e);
    }
    return -EINVAL;
}

/* The option that arg names, and in *value what it says after `=`. */
static const struct option *find_option(
    const struct option_table *t, const char *arg, const char **value)
{
    size_t n = strcspn(arg, "=");

    *value = NULL;
    for (size_t i = 0; i < t->count; i++) {
        const struct option *opt = &t->options[i];

        if (arg[1] == '-' && is_name(arg + 2, n - 2, opt->name)) {
            if (arg[n] == '=')
                *value = arg + n + 1;
            return opt;
        }
        if (arg[1] != '-' && opt->letter != 0 && arg[1] == opt->letter &&
            arg[2] == '\0')
            return opt;
    }
    return NULL;
}

int option_table_parse(const struct option_table *t, void *base, int argc,
    char **argv, int *rest, struct err *e)
{
    int i = 1;

    while (i < argc && argv[i][0] == '-' && argv[i][1] != '\0') {
        const char *arg = argv[i++];
        const struct option *opt;
        const char *value;
        int rc;

        if (strcmp(arg, "--") == 0)
            break;
        opt = find_option(t, arg, &value);
        if (opt == NULL)
            return unknown_option(t, arg, e);
        if (opt->type != OPTION_FLAG && value == NULL) {
            if (i == argc)
                return err_set(e, -EINVAL, "--%s needs a value: %s", opt->name,
                    opt->value);
            value = argv[i++];
        }
        rc = store_value(opt, base, value, e);
        if (rc < 0)
            return rc;
    }
    *rest = i;
    return 0;
}

/* Prints name and value in a column of their own, the help beside it. */
static void print_option(FILE *out, const struct option *opt)
{
    const char *line = opt->help;
    const char *end;
    char name[64];

    snprintf(name, sizeof(name), "%s%c%s--%s%s%s", opt->letter ? "-" : "",
        opt->letter ? opt->letter : ' ', opt->letter ? ", " : "   ", opt->name,
        opt->value != NULL ? " " : "", opt->value != NULL ? opt->value : "");
    for (; line != NULL; line = *end != '\0' ? end + 1 : NULL) {
        end = strchrnul(line, '\n');
        fprintf(out, "  %-36s %.*s\n", name, (int)(end - line), line);
        name[0] = '\0';
    }
}

void option_table_print(const struct option_table *t, FILE *out)
{
    for (size_t i = 0; i < t->count; i++)
        print_option(out, &t->options[i]);
}
