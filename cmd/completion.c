/* See completion.h. */
#include "cmd/completion.h"

#include <string.h>

/* The name with c between its words. */
static void print_name(const struct option *opt, char c, FILE *out)
{
    fputs("--", out);
    for (const char *n = opt->name; *n != '\0'; n++)
        putc(*n == '-' || *n == '_' ? c : *n, out);
}

/* --- bash --------------------------------------------------------------- */

/* Both spellings of an option, and its letter, as a pattern for `case`. */
static void print_pattern(const struct option *opt, FILE *out)
{
    print_name(opt, '-', out);
    if (strpbrk(opt->name, "-_") != NULL) {
        fputs(" | ", out);
        print_name(opt, '_', out);
    }
    if (opt->letter != 0)
        fprintf(out, " | -%c", opt->letter);
}

static void print_words(const char *const *words, FILE *out)
{
    for (const char *const *w = words; *w != NULL; w++)
        fprintf(out, "%s%s", w > words ? " " : "", *w);
}

static void print_bash_values(const struct option_table *t, FILE *out)
{
    for (size_t i = 0; i < t->count; i++) {
        if (t->options[i].type == OPTION_FLAG)
            continue;
        fputs("    ", out);
        print_pattern(&t->options[i], out);
        fputs(")\n        words='", out);
        if (t->options[i].type == OPTION_CHOICE)
            print_words(t->options[i].choices, out);
        fputs("'\n        return 0\n        ;;\n", out);
    }
}

static void print_bash_names(const struct option_table *t, char c, FILE *out)
{
    for (size_t i = 0; i < t->count; i++) {
        fputs(i > 0 ? " " : "", out);
        print_name(&t->options[i], c, out);
    }
}

/* An empty list of proposals makes bash propose files. */
static void print_bash(
    const struct option_table *t, const char *program, FILE *out)
{
    fprintf(out,
        "# Completion of %s for bash, made by it.\n"
        "\n"
        "# Succeeds if an option takes a value; $words is what it may be.\n"
        "_%s_takes_value()\n"
        "{\n"
        "    case $1 in\n",
        program, program);
    print_bash_values(t, out);
    fprintf(out,
        "    esac\n"
        "    return 1\n"
        "}\n"
        "\n"
        "_%s()\n"
        "{\n"
        "    local i=1 cur=${COMP_WORDS[COMP_CWORD]} words=\n"
        "    COMPREPLY=()\n"
        "    while ((i < COMP_CWORD)); do\n"
        "        # After the program, or --, there are no options.\n"
        "        [[ ${COMP_WORDS[i]} == -?* && ${COMP_WORDS[i]} != -- ]] ||\n"
        "            return 0\n"
        "        if _%s_takes_value \"${COMP_WORDS[i]}\"; then\n"
        "            # readline makes --option=value three words.\n"
        "            [[ ${COMP_WORDS[i + 1]} != = ]] || ((++i))\n"
        "            if ((++i >= COMP_CWORD)); then\n"
        "                cur=${cur#=}\n"
        "                mapfile -t COMPREPLY < <(compgen -W \"$words\" -- "
        "\"$cur\")\n"
        "                return 0\n"
        "            fi\n"
        "        fi\n"
        "        ((++i))\n"
        "    done\n"
        "    words=\n"
        "    case $cur in\n"
        "    -*_*) words='",
        program, program);
    print_bash_names(t, '_', out);
    fputs("' ;;\n    -*) words='", out);
    print_bash_names(t, '-', out);
    fprintf(out,
        "' ;;\n"
        "    esac\n"
        "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
        "}\n"
        "\n"
        "complete -o default -F _%s %s\n",
        program, program);
}

/* --- zsh ---------------------------------------------------------------- */

/* The first line of the help, as it may stand in [] and quotes. */
static void print_zsh_help(const char *help, FILE *out)
{
    for (; *help != '\0' && *help != '\n'; help++) {
        if (*help == '\'')
            fputs("'\\''", out);
        else if (strchr("[]\\:", *help) != NULL)
            fprintf(out, "\\%c", *help);
        else
            putc(*help, out);
    }
}

/* What comes behind the name in a specification of _arguments. */
static void print_zsh_rest(const struct option *opt, FILE *out)
{
    putc('[', out);
    print_zsh_help(opt->help, out);
    putc(']', out);
    if (opt->type != OPTION_FLAG)
        fputs(":value:", out);
    if (opt->type == OPTION_CHOICE) {
        putc('(', out);
        print_words(opt->choices, out);
        putc(')', out);
    } else if (opt->type != OPTION_FLAG) {
        fputs(strcmp(opt->value, "DIR") == 0    ? "_files -/"
              : strcmp(opt->value, "FILE") == 0 ? "_files"
                                                : " ",
            out);
    }
    fputs("' \\\n", out);
}

static void print_zsh_spelling(const struct option *opt, char c, FILE *out)
{
    fputs("    '*", out);
    print_name(opt, c, out);
    fputs(opt->type == OPTION_FLAG ? "" : "=", out);
    print_zsh_rest(opt, out);
}

static void print_zsh(
    const struct option_table *t, const char *program, FILE *out)
{
    fprintf(out,
        "#compdef %s\n"
        "# Completion of %s for zsh, made by it.\n"
        "\n"
        "_%s()\n"
        "{\n"
        "    _arguments -S -A '-*' \\\n",
        program, program, program);
    for (size_t i = 0; i < t->count; i++) {
        const struct option *opt = &t->options[i];

        fputs("    ", out);
        print_zsh_spelling(opt, '-', out);
        if (strpbrk(opt->name, "-_") != NULL) {
            fputs("    ", out);
            print_zsh_spelling(opt, '_', out);
        }
        if (opt->letter != 0) {
            fprintf(out, "        '*-%c%s", opt->letter,
                opt->type == OPTION_FLAG ? "" : "+");
            print_zsh_rest(opt, out);
        }
    }
    fprintf(out,
        "        '1:program:_files' \\\n"
        "        '*:arguments:_files'\n"
        "}\n"
        "\n"
        "# Loaded by compinit, or read by eval or source.\n"
        "if [[ ${funcstack[1]} == _%s ]]; then\n"
        "    _%s \"$@\"\n"
        "else\n"
        "    compdef _%s %s\n"
        "fi\n",
        program, program, program, program);
}

void completion_print(const struct option_table *t, const char *program,
    const char *shell, FILE *out)
{
    if (strcmp(shell, "zsh") == 0)
        print_zsh(t, program, out);
    else
        print_bash(t, program, out);
}
