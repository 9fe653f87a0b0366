/* A net's memory, and the last words of its ranks; see tcp_internal.h. */
#include "tcp_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "coll_ranks.h"

int tcp_neighbours(int rank, int size, int out[TCP_MAX_LINKS])
{
    int count = 0;

    for (int d = 1; d < size; d *= 2) {
        const int both[] = {(rank + d) % size, (rank + size - d) % size};

        for (int i = 0; i < 2; i++) {
            int at = count;

            while (at > 0 && out[at - 1] > both[i])
                at--;
            if (at > 0 && out[at - 1] == both[i])
                continue;
            memmove(
                &out[at + 1], &out[at], (size_t)(count - at) * sizeof(*out));
            out[at] = both[i];
            count++;
        }
    }
    return count;
}

int tcp_net_create(struct tcp_net **out, struct coll_group *g, int rank,
    int size, const int *ranks)
{
    struct tcp_net *net = calloc(1, sizeof(*net));
    size_t n = (size_t)size;
    int neighbours[TCP_MAX_LINKS];
    size_t links;

    if (net == NULL)
        return -ENOMEM;
    net->rank = rank;
    net->size = size;
    net->g = g;
    net->watch_fd = -1;
    net->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (net->wake_fd < 0) {
        int rc = -errno;

        free(net);
        return rc;
    }
    net->nlinks = tcp_neighbours(rank, size, neighbours);
    links = (size_t)net->nlinks + 1; /* calloc() of nothing may be NULL */
    net->ranks = calloc(n, sizeof(*net->ranks));
    net->names = calloc(n, sizeof(*net->names));
    net->links = calloc(links, sizeof(*net->links));
    net->polls = calloc(links + TCP_EXTRA_POLLS, sizeof(*net->polls));
    net->srcs = calloc(n, sizeof(*net->srcs));
    net->scratch = calloc(1, TCP_SCRATCH_BYTES); /* gaps in it are sent */
    if (net->ranks == NULL || net->names == NULL || net->links == NULL ||
        net->polls == NULL || net->srcs == NULL || net->scratch == NULL) {
        tcp_net_destroy(net);
        return -ENOMEM;
    }
    memcpy(net->ranks, ranks, n * sizeof(*ranks));
    for (int i = 0; i < size; i++)
        net->names[i] = coll_rank_name(g->names, ranks[i]);
    for (int i = 0; i < net->nlinks; i++)
        net->links[i] =
            (struct tcp_link){.rank = neighbours[i], .data = -1, .news = -1};
    *out = net;
    return 0;
}

void tcp_net_destroy(struct tcp_net *net)
{
    if (net == NULL)
        return;
    for (int i = 0; net->links != NULL && i < net->nlinks; i++) {
        /* Shut down first: a process that was forked may have a copy. */
        if (net->links[i].data >= 0) {
            shutdown(net->links[i].data, SHUT_WR);
            close(net->links[i].data);
        }
        if (net->links[i].news >= 0) {
            shutdown(net->links[i].news, SHUT_WR);
            close(net->links[i].news);
        }
    }
    if (net->wake_fd >= 0)
        close(net->wake_fd);
    free(net->ranks);
    free(net->names);
    free(net->links);
    free(net->polls);
    free(net->srcs);
    free(net->scratch);
    free(net);
}

void tcp_net_after_fork(struct tcp_net *net)
{
    for (int i = 0; net != NULL && i < net->nlinks; i++) {
        close(net->links[i].data);
        close(net->links[i].news);
    }
}

struct tcp_link *tcp_net_link(struct tcp_net *net, int rank)
{
    for (int i = 0; i < net->nlinks; i++)
        if (net->links[i].rank == rank)
            return &net->links[i];
    return NULL;
}

/* There are so few in the life of a group that they fit the socket's buffer:
 * what does not is for a rank that reads nothing. */
void tcp_news_send(struct tcp_link *link, struct tcp_news *news)
{
    news->magic = TCP_NEWS_MAGIC;
    if (link->news >= 0)
        send(link->news, news, sizeof(*news), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void tcp_net_leave(struct tcp_net *net, uint64_t seq)
{
    struct tcp_news news = {.kind = TCP_LEFT, .seq = seq};

    for (int i = 0; i < net->nlinks; i++)
        tcp_news_send(&net->links[i], &news);
}

void tcp_net_fail(struct tcp_net *net, uint64_t seq, coll_status_t status)
{
    struct tcp_news news = {.kind = TCP_FAILED, .seq = seq, .status = status};
    if (atomic_flag_test_and_set(&net->has_told))
        return;
    if (tcp_is_for_all(status)) {
        snprintf(news.text, sizeof(news.text), "%s", coll_last_error());
    } else {
        news.status = COLL_ERR_PEER;
        snprintf(news.text, sizeof(news.text), "rank %d gave up: %.400s",
            net->names[net->rank], coll_last_error());
    }
    for (int i = 0; i < net->nlinks; i++)
        tcp_news_send(&net->links[i], &news);
}
