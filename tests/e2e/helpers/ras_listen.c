/*
 * ras_listen
 *
 * Listens where NCCL_RAS_ADDR says (ADDRESS:PORT) as NCCL does: every process
 * of the node there, each sharing the port with the others. Prints
 * "listening" when all ranks do, or says what failed.
 */
#include <arpa/inet.h>
#include <collective.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int parse(const char *text, struct sockaddr_in *out)
{
    const char *colon = text != NULL ? strchr(text, ':') : NULL;
    char host[INET_ADDRSTRLEN];

    if (colon == NULL || colon - text >= (ptrdiff_t)sizeof(host))
        return -1;
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = '\0';
    out->sin_family = AF_INET;
    out->sin_port = htons((uint16_t)strtol(colon + 1, NULL, 10));
    return inet_pton(AF_INET, host, &out->sin_addr) == 1 ? 0 : -1;
}

int main(void)
{
    struct sockaddr_in address = {0};
    const int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (parse(getenv("NCCL_RAS_ADDR"), &address) < 0) {
        fprintf(stderr, "NCCL_RAS_ADDR is no address\n");
        return 1;
    }
    if (fd < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)) < 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
        listen(fd, 16) < 0) {
        perror(getenv("NCCL_RAS_ADDR"));
        return 1;
    }
    if (coll_init(NULL) != COLL_OK || coll_barrier(NULL) != COLL_OK ||
        coll_destroy() != COLL_OK) {
        fprintf(stderr, "%s\n", coll_last_error());
        return 1;
    }
    puts("listening");
    close(fd);
    return 0;
}
