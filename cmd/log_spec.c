/* See log_spec.h. */
#include "cmd/log_spec.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/log_options.h"

/* Reads a number at *at, which moves behind it; the greatest one if it is too
 * long. */
static int take_number(const char **at, long long *number)
{
    char *end;

    if (!isdigit((unsigned char)**at))
        return -EINVAL;
    *number = strtoll(*at, &end, 10);
    *at = end;
    return 0;
}

static bool is_streams(char c)
{
    return c >= '0' + LOG_NONE && c <= '0' + LOG_BOTH;
}

static int fill_streams(
    const char *text, int nproc, unsigned char *streams, long long *rank)
{
    if (is_streams(text[0]) && text[1] == '\0') {
        memset(streams, text[0] - '0', (size_t)nproc);
        return 0;
    }
    for (;; text += 3) {
        if (take_number(&text, rank) < 0 || text[0] != ':' ||
            !is_streams(text[1]) || (text[2] != ',' && text[2] != '\0'))
            return -EINVAL;
        if (*rank >= nproc)
            return -ERANGE;
        streams[*rank] = (unsigned char)(text[1] - '0');
        if (text[2] == '\0')
            return 0;
    }
}

int log_spec_streams(
    const char *text, int nproc, unsigned char **out, long long *rank)
{
    unsigned char *streams = calloc((size_t)nproc, sizeof(*streams));
    int rc;

    if (streams == NULL)
        return -ENOMEM;
    rc = fill_streams(text, nproc, streams, rank);
    if (rc < 0)
        free(streams);
    else
        *out = streams;
    return rc;
}

static int fill_ranks(const char *text, int nproc, bool *ranks, long long *rank)
{
    for (;; text++) {
        text += strspn(text, " ");
        if (take_number(&text, rank) < 0)
            return -EINVAL;
        text += strspn(text, " ");
        if (*text != ',' && *text != '\0')
            return -EINVAL;
        if (*rank >= nproc)
            return -ERANGE;
        ranks[*rank] = true;
        if (*text == '\0')
            return 0;
    }
}

int log_spec_ranks(const char *text, int nproc, bool **out, long long *rank)
{
    bool *ranks = calloc((size_t)nproc, sizeof(*ranks));
    int rc;

    if (ranks == NULL)
        return -ENOMEM;
    rc = fill_ranks(text, nproc, ranks, rank);
    if (rc < 0)
        free(ranks);
    else
        *out = ranks;
    return rc;
}

int log_spec_needles(const char *text, const char *const **out)
{
    size_t len = strlen(text);
    size_t n = 0;
    const char **needles;
    char *to, *begin;

    /* The pointers first, as many as there are commas allow, then the texts,
     * which are no longer than the whole. */
    needles = malloc((len + 2) * sizeof(*needles) + len + 1);
    if (needles == NULL)
        return -ENOMEM;
    begin = to = (char *)(needles + len + 2);
    for (;; text++) {
        if (text[0] == ',' && text[1] == ',') {
            *to++ = *text++;
        } else if (text[0] == ',' || text[0] == '\0') {
            if (to > begin) { /* an empty text would be in every line */
                needles[n++] = begin;
                *to++ = '\0';
                begin = to;
            }
            if (text[0] == '\0')
                break;
        } else {
            *to++ = *text;
        }
    }
    needles[n] = NULL;
    if (n == 0) {
        free(needles);
        needles = NULL;
    }
    *out = (const char *const *)needles;
    return 0;
}
