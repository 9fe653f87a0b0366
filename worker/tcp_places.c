/*
 * Where the ranks of a group can be reached after their meeting: the bytes of
 * it in rank 0's table, and the object that a back end owns.
 *
 * Of each rank, in the order of ranks: its port in two bytes, in the byte order
 * of the host as everything in a meeting; one byte with the length of its
 * address; the address. A length of 0 stands for the address at which rank 0
 * was reached.
 */
#include "tcp_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

_Static_assert(TCP_ADDR_BYTES - 1 <= UINT8_MAX, "a length has one byte");

size_t tcp_place_write(char out[TCP_PLACE_BYTES], const char *addr, int port)
{
    size_t len = strlen(addr);
    uint16_t port16 = (uint16_t)port;

    memcpy(out, &port16, sizeof(port16));
    out[2] = (char)len;
    memcpy(out + 3, addr, len);
    return 3 + len;
}

int tcp_places_read(struct tcp_places **out, const char *bytes, size_t len,
    int size, const char *leader_addr)
{
    struct tcp_places *p =
        calloc(1, sizeof(*p) + (size_t)size * sizeof(p->of[0]));
    const char *end = bytes + len;
    int rc = -ENOMEM;
    char *text;

    if (p == NULL)
        goto fail;
    p->listener = -1;
    p->size = size;
    /* An address takes less here than there. */
    p->text = malloc(len + strlen(leader_addr) + 1);
    if (p->text == NULL)
        goto fail;
    text = stpcpy(p->text, leader_addr) + 1;
    rc = -EBADMSG;
    for (int r = 0; r < size; r++) {
        uint16_t port;
        size_t n;

        if (end - bytes < 3)
            goto fail;
        memcpy(&port, bytes, sizeof(port));
        n = (unsigned char)bytes[2];
        bytes += 3;
        if (port == 0 || (size_t)(end - bytes) < n ||
            memchr(bytes, '\0', n) != NULL)
            goto fail;
        p->of[r].port = port;
        p->of[r].addr = n == 0 ? p->text : text;
        memcpy(text, bytes, n);
        text[n] = '\0';
        text += n + 1;
        bytes += n;
    }
    if (bytes != end)
        goto fail;
    *out = p;
    return 0;
fail:
    tcp_places_free(p);
    return rc;
}

int tcp_places_get(
    const struct tcp_places *p, int rank, const char **addr, int *port)
{
    if (rank < 0 || rank >= p->size)
        return -EINVAL;
    *addr = p->of[rank].addr;
    *port = p->of[rank].port;
    return 0;
}

void tcp_places_free(struct tcp_places *p)
{
    if (p == NULL)
        return;
    /* Shut down first: a process that was forked may have a copy. */
    if (p->listener >= 0) {
        shutdown(p->listener, SHUT_RDWR);
        close(p->listener);
    }
    free(p->text);
    free(p);
}
