/* See coll_ranks.h. */
#include "coll_ranks.h"

#include <stdio.h>
#include <string.h>

void coll_ranks_text(
    char *out, size_t cap, const bool *in, int size, const int *names)
{
    size_t len;
    int members = 0;

    for (int r = 0; r < size; r++)
        members += in[r];
    len = (size_t)snprintf(out, cap, members == 1 ? "rank " : "ranks ");
    for (int first = 0, last; first < size; first = last + 1) {
        const char *comma = len > 0 && out[len - 1] != ' ' ? "," : "";
        char item[32];
        size_t n;

        last = first;
        if (!in[first])
            continue;
        while (
            last + 1 < size && in[last + 1] &&
            coll_rank_name(names, last + 1) == coll_rank_name(names, last) + 1)
            last++;
        if (last - first < 2) {
            last = first; /* a pair reads better as "1,2" */
            n = (size_t)snprintf(item, sizeof(item), "%s%d", comma,
                coll_rank_name(names, first));
        } else {
            n = (size_t)snprintf(item, sizeof(item), "%s%d-%d", comma,
                coll_rank_name(names, first), coll_rank_name(names, last));
        }
        if (len + n + sizeof("...") > cap) {
            memcpy(out + len, "...", sizeof("..."));
            return;
        }
        memcpy(out + len, item, n + 1);
        len += n;
    }
}
