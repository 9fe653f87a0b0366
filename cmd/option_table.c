/* See option_table.h. */
#include "cmd/option_table.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "rendezvous/base/text.h"

#define HELP_COLUMN 30
#define HELP_WIDTH 80

/* --- Names -------------------------------------------------------------- */

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

const struct option *option_table_find(
    const struct option_table *t, const char *name)
{
    size_t n = strlen(name);

    for (size_t i = 0; i < t->count; i++)
        if (strlen(t->options[i].name) == n &&
            common_prefix(name, n, t->options[i].name) == n)
            return &t->options[i];
    return NULL;
}

static void env_name(const struct option_table *t, const struct option *opt,
    char *out, size_t size)
{
    int n = snprintf(out, size, "%s%s", t->env_prefix, opt->name);

    for (int i = 0; i < n && out[i] != '\0'; i++)
        out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

struct option_where option_table_where(const struct option_table *t,
    const struct option *opt, const struct option_origin *from)
{
    struct option_where w;

    switch (from->source) {
    case OPTION_FROM_FILE:
        snprintf(w.text, sizeof(w.text), "%s:%d:%d: %s", from->file, from->line,
            from->column, opt->name);
        break;
    case OPTION_FROM_ENV:
        env_name(t, opt, w.text, sizeof(w.text));
        break;
    default:
        snprintf(w.text, sizeof(w.text), "--%s", opt->name);
        break;
    }
    return w;
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

static int ambiguous_option(
    const struct option_table *t, const char *given, size_t n, struct err *e)
{
    char list[384] = "";
    size_t len = 0;

    for (size_t i = 0; i < t->count; i++)
        if (common_prefix(given, n, t->options[i].name) == n &&
            len < sizeof(list))
            len += (size_t)snprintf(list + len, sizeof(list) - len, "%s--%s",
                len > 0 ? ", " : "", t->options[i].name);
    return err_set(e, -EINVAL, "--%.*s is ambiguous: %s", (int)n, given, list);
}

/* The option that --name or --name=value means, whole or cut short. */
static int find_long(const struct option_table *t, const char *arg,
    const struct option **out, struct err *e)
{
    const char *given = arg + 2;
    size_t n = strcspn(given, "=");
    const struct option *found[2] = {NULL, NULL}; /* [1]: those that yield */
    int count[2] = {0, 0};

    for (size_t i = 0; i < t->count && n > 0; i++) {
        const struct option *opt = &t->options[i];
        int yields = (opt->flags & OPTION_YIELDS) != 0;

        if (common_prefix(given, n, opt->name) < n)
            continue;
        if (opt->name[n] == '\0') {
            *out = opt;
            return 0;
        }
        if (!t->has_abbreviations)
            continue;
        found[yields] = opt;
        count[yields]++;
    }
    *out = count[0] > 0 ? found[0] : found[1];
    if (*out == NULL)
        return unknown_option(t, arg, e);
    if (count[0] > 1 || (count[0] == 0 && count[1] > 1))
        return ambiguous_option(t, given, n, e);
    return 0;
}

static const struct option *find_letter(const struct option_table *t, char c)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->options[i].letter == c)
            return &t->options[i];
    return NULL;
}

/* --- Values ------------------------------------------------------------- */

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

int option_parse_seconds(const char *text, int64_t *out)
{
    double seconds, ms;
    int64_t whole;
    char *end;

    if (text[strspn(text, "+-.0123456789eE")] != '\0')
        return -EINVAL; /* strtod would take blanks, nan and hexadecimal */
    seconds = strtod(text, &end);
    if (end == text || *end != '\0')
        return -EINVAL;
    ms = seconds * 1000;
    if (!(ms > -1e15 && ms < 1e15))
        return -ERANGE;
    whole = (int64_t)ms;
    /* 0.3 * 1000 may be a hair above 300, which was meant. */
    *out = whole + (ms - (double)whole > (whole > 0 ? 1e-6 : 0));
    return 0;
}

static int parse_bool(const char *text, bool *out)
{
    static const char *const words[2][3] = {
        {"false", "no", "off"}, {"true", "yes", "on"}};
    int64_t number;

    for (int value = 0; value < 2; value++)
        for (int i = 0; i < 3; i++)
            if (strcasecmp(text, words[value][i]) == 0) {
                *out = value != 0;
                return 0;
            }
    if (text_to_i64(text, &number) < 0)
        return -EINVAL;
    *out = number != 0;
    return 0;
}

static int store_number(const struct option *opt, const char *where,
    const char *text, int64_t *field, struct err *e)
{
    int64_t number;
    int rc;

    switch (opt->type) {
    case OPTION_SECONDS:
        rc = option_parse_seconds(text, &number);
        if (rc < 0 || number < opt->min || number > opt->max)
            return err_set(e, -EINVAL,
                "%s='%s': expected seconds from %.10g to %.10g", where, text,
                (double)opt->min / 1000, (double)opt->max / 1000);
        break;
    default:
        rc = opt->type == OPTION_SIZE ? parse_size(text, &number)
                                      : text_to_i64(text, &number);
        if (rc < 0 || number < opt->min || number > opt->max)
            return err_set(e, -EINVAL,
                "%s='%s': expected a %s from %lld to %lld", where, text,
                opt->type == OPTION_SIZE ? "size" : "number",
                (long long)opt->min, (long long)opt->max);
        break;
    }
    *field = number;
    return 0;
}

static int store_choice(const struct option *opt, const char *where,
    const char *text, const char **field, struct err *e)
{
    char list[256] = "";
    size_t len = 0;

    for (const char *const *c = opt->choices; *c != NULL; c++) {
        if (strcmp(text, *c) == 0) {
            *field = *c;
            return 0;
        }
        if (len < sizeof(list))
            len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%s",
                len > 0 ? ", " : "", *c);
    }
    return err_set(
        e, -EINVAL, "%s='%s': expected one of %s", where, text, list);
}

static int store_value(const struct option *opt, const char *where,
    const char *text, void *field, struct err *e)
{
    switch (opt->type) {
    case OPTION_FLAG:
        if (parse_bool(text, field) < 0)
            return err_set(e, -EINVAL,
                "%s='%s': expected true or false, or a number, 0 for off",
                where, text);
        return 0;
    case OPTION_TEXT:
        if (text[0] == '\0' && !(opt->flags & OPTION_EMPTY))
            return err_set(e, -EINVAL, "%s: its value is empty", where);
        *(const char **)field = text[0] != '\0' ? text : NULL;
        return 0;
    case OPTION_CHOICE:
        return store_choice(opt, where, text, field, e);
    case OPTION_NUMBER:
    case OPTION_SIZE:
    case OPTION_SECONDS:
        return store_number(opt, where, text, field, e);
    }
    return -EINVAL;
}

int option_table_set(const struct option_table *t, const struct option *opt,
    const struct option_target *to, const struct option_origin *from,
    const char *text, struct err *e)
{
    struct option_origin *origin =
        to->origins != NULL ? &to->origins[opt - t->options] : NULL;
    bool is_weaker = origin != NULL && from->source < origin->source;
    union {
        bool is_set;
        const char *text;
        int64_t number;
    } unused; /* a value that is checked only */
    int rc;

    rc = store_value(opt, option_table_where(t, opt, from).text, text,
        is_weaker ? (void *)&unused : (char *)to->base + opt->offset, e);
    if (rc == 0 && origin != NULL && !is_weaker)
        *origin = *from;
    return rc;
}

const char *option_table_value(
    const struct option *opt, const void *base, char *text, size_t size)
{
    const void *field = (const char *)base + opt->offset;
    int64_t number;

    switch (opt->type) {
    case OPTION_FLAG:
        if (!*(const bool *)field)
            return NULL;
        snprintf(text, size, "true");
        return text;
    case OPTION_TEXT:
    case OPTION_CHOICE:
        if (*(const char *const *)field == NULL)
            return NULL;
        snprintf(text, size, "%s", *(const char *const *)field);
        return text;
    default:
        break;
    }
    number = *(const int64_t *)field;
    if (number < opt->min)
        return NULL;
    if (opt->type == OPTION_SECONDS)
        snprintf(text, size, "%.10g", (double)number / 1000);
    else
        snprintf(text, size, "%lld", (long long)number);
    return text;
}

/* --- The command line --------------------------------------------------- */

struct words {
    char **argv;
    int argc;
    int next;
};

static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] != '\0';
}

/* A word that argparse would not take for the value before it. */
static bool is_no_value(const char *word)
{
    const char *digits = word + 1;

    if (!is_option(word) || strchr(word, ' ') != NULL)
        return false;
    digits += strspn(digits, "0123456789");
    if (*digits == '.')
        digits += 1 + strspn(digits + 1, "0123456789");
    return *digits != '\0' || digits[-1] == '-' || digits[-1] == '.';
}

/* given is what follows the option in its own word, or NULL. */
static int take_value(const struct option_table *t, const struct option *opt,
    const struct option_target *to, const char *given, struct words *w,
    struct err *e)
{
    static const struct option_origin from = {.source = OPTION_FROM_COMMAND};

    if (opt->type == OPTION_FLAG)
        given = "true";
    else if (given == NULL && w->next == w->argc)
        return err_set(
            e, -EINVAL, "--%s needs a value: %s", opt->name, opt->value);
    else if (given == NULL && is_no_value(w->argv[w->next]))
        return err_set(e, -EINVAL,
            "--%s needs a value, %s, but %s follows; a value like that is "
            "joined to the option, --%s=%s",
            opt->name, opt->value, w->argv[w->next], opt->name,
            w->argv[w->next]);
    else if (given == NULL)
        given = w->argv[w->next++];
    return option_table_set(t, opt, to, &from, given, e);
}

static int parse_long(const struct option_table *t,
    const struct option_target *to, const char *arg, struct words *w,
    struct err *e)
{
    const char *equals = strchr(arg, '=');
    const struct option *opt;
    int rc;

    rc = find_long(t, arg, &opt, e);
    if (rc < 0)
        return rc;
    if (opt->type == OPTION_FLAG && equals != NULL)
        return err_set(e, -EINVAL, "--%s takes no value, but got '%s'",
            opt->name, equals + 1);
    return take_value(t, opt, to, equals != NULL ? equals + 1 : NULL, w, e);
}

/* -m, -r VALUE, -rVALUE, -r=VALUE; flags may stand before others, -mr3. */
static int parse_letters(const struct option_table *t,
    const struct option_target *to, const char *arg, struct words *w,
    struct err *e)
{
    const char *at = arg + 1;
    int rc = 0;

    while (rc == 0 && *at != '\0') {
        const struct option *opt = find_letter(t, *at++);

        if (opt == NULL)
            return unknown_option(t, arg, e);
        if (opt->type == OPTION_FLAG) {
            rc = take_value(t, opt, to, NULL, w, e);
            continue;
        }
        if (*at == '=')
            return take_value(t, opt, to, at + 1, w, e);
        return take_value(t, opt, to, *at != '\0' ? at : NULL, w, e);
    }
    return rc;
}

int option_table_parse(const struct option_table *t,
    const struct option_target *to, int argc, char **argv, int *rest,
    struct err *e)
{
    struct words w = {argv, argc, 1};
    int rc;

    while (w.next < argc && is_option(argv[w.next])) {
        const char *arg = argv[w.next++];

        if (strcmp(arg, "--") == 0)
            break;
        rc = arg[1] == '-' ? parse_long(t, to, arg, &w, e)
                           : parse_letters(t, to, arg, &w, e);
        if (rc < 0)
            return rc;
    }
    *rest = w.next;
    return 0;
}

int option_table_read_env(
    const struct option_table *t, const struct option_target *to, struct err *e)
{
    static const struct option_origin from = {.source = OPTION_FROM_ENV};
    const char *text;
    char name[64];
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < t->count; i++) {
        if (!(t->options[i].flags & OPTION_ENV) ||
            to->origins[i].source > OPTION_FROM_ENV)
            continue;
        env_name(t, &t->options[i], name, sizeof(name));
        text = getenv(name);
        if (text != NULL && text[0] != '\0')
            rc = option_table_set(t, &t->options[i], to, &from, text, e);
    }
    return rc;
}

/* --- Help --------------------------------------------------------------- */

/* "(default 30; PET_SHUTDOWN_TIMEOUT)", or less, or nothing. */
static void settings_text(const struct option_table *t,
    const struct option *opt, const void *defaults, char *out, size_t size)
{
    const char *value = NULL;
    char value_text[64], name[64];
    const char *env = NULL;

    if (defaults != NULL)
        value =
            option_table_value(opt, defaults, value_text, sizeof(value_text));
    if (opt->flags & OPTION_ENV) {
        env_name(t, opt, name, sizeof(name));
        env = name;
    }
    out[0] = '\0';
    if (value != NULL && env != NULL &&
        HELP_COLUMN + strlen(value) + strlen(env) + sizeof("(default ; )") >
            HELP_WIDTH)
        snprintf(
            out, size, "(default %s;\n%*s%s)", value, HELP_COLUMN, "", env);
    else if (value != NULL || env != NULL)
        snprintf(out, size, "(%s%s%s%s)", value != NULL ? "default " : "",
            value != NULL ? value : "",
            value != NULL && env != NULL ? "; " : "", env != NULL ? env : "");
}

/* Name and value in a column of their own, the help beside it, or below a
 * name that is too long for that; then the settings, where there is room. */
static void print_option(const struct option_table *t, const struct option *opt,
    const void *defaults, FILE *out)
{
    const char *line = opt->help;
    char settings[160];
    char name[80];
    int len, n;

    settings_text(t, opt, defaults, settings, sizeof(settings));
    n = snprintf(name, sizeof(name), "  %s%c%s--%s%s%s", opt->letter ? "-" : "",
        opt->letter ? opt->letter : ' ', opt->letter ? ", " : "   ", opt->name,
        opt->value != NULL ? " " : "", opt->value != NULL ? opt->value : "");
    if (n >= HELP_COLUMN) {
        fprintf(out, "%s\n", name);
        name[0] = '\0';
    }
    for (;; line += len + 1) {
        len = (int)strcspn(line, "\n");
        fprintf(out, "%-*s%.*s", HELP_COLUMN, name, len, line);
        name[0] = '\0';
        if (line[len] == '\0')
            break;
        putc('\n', out);
    }
    if (settings[0] != '\0' &&
        HELP_COLUMN + (size_t)len + 1 + strlen(settings) <= HELP_WIDTH)
        fprintf(out, " %s", settings);
    else if (settings[0] != '\0')
        fprintf(out, "\n%*s%s", HELP_COLUMN, "", settings);
    putc('\n', out);
}

void option_table_print(
    const struct option_table *t, const void *defaults, FILE *out)
{
    for (size_t i = 0; i < t->count; i++) {
        if (t->options[i].group != NULL)
            fprintf(out, "%s%s:\n", i > 0 ? "\n" : "", t->options[i].group);
        print_option(t, &t->options[i], defaults, out);
    }
}
