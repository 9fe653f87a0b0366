/* Options from a line of text, and what is said about them meanwhile. */
#ifndef COMMAND_LINE_H
#define COMMAND_LINE_H

#include <stdio.h>
#include <string.h>

#include "cmd/options.h"
#include "rendezvous/base/log.h"
#include "tests/unit/unit.h"

#define LEN(array) ((int)(sizeof(array) / sizeof((array)[0])))

static struct options o;
static struct err e;
static char log_text[1024];

static void keep_log(const char *line, size_t len, void *arg)
{
    size_t n = strlen(log_text);

    (void)arg;
    snprintf(log_text + n, sizeof(log_text) - n, "%.*s", (int)len, line);
}

static void keep_logs(void)
{
    log_text[0] = '\0';
    log_set_writer(keep_log, NULL);
}

/* Parses the words of a line, with a program behind them. */
static void parse_line(const char *line)
{
    static char text[512];
    static char *words[32];
    int argc = 0;

    snprintf(text, sizeof(text), "crun %s p", line);
    for (char *word = strtok(text, " "); word != NULL && argc < LEN(words) - 1;
         word = strtok(NULL, " "))
        words[argc++] = word;
    words[argc] = NULL;
    memset(&e, 0, sizeof(e));
    ck_assert_msg(options_parse(&o, argc, words, &e) == 0, "%s", e.msg);
}

#endif
