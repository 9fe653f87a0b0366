/* See fd_message.h. */
#include "rendezvous/fd_message.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

/* Room for one descriptor beside a packet, aligned as the kernel wants it. */
union passed {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
};

int fd_message_send(int fd, const void *bytes, size_t n, int descriptor)
{
    struct iovec iov = {(void *)(uintptr_t)bytes, n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    union passed passed = {0};

    if (descriptor >= 0) {
        msg.msg_control = &passed;
        msg.msg_controllen = sizeof(passed.space);
        passed.header.cmsg_level = SOL_SOCKET;
        passed.header.cmsg_type = SCM_RIGHTS;
        passed.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&passed.header), &descriptor, sizeof(int));
    }
    return sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

static int take_descriptor(struct msghdr *msg)
{
    struct cmsghdr *c = CMSG_FIRSTHDR(msg);
    int fd;

    if (c == NULL || c->cmsg_level != SOL_SOCKET ||
        c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int)))
        return -1;
    memcpy(&fd, CMSG_DATA(c), sizeof(int));
    return fd;
}

ssize_t fd_message_receive(int fd, void *bytes, size_t n, int *descriptor)
{
    bool was_reset = false;

    *descriptor = -1;
    for (;;) {
        struct iovec iov = {bytes, n};
        union passed passed;
        struct msghdr msg = {.msg_iov = &iov,
            .msg_iovlen = 1,
            .msg_control = &passed,
            .msg_controllen = sizeof(passed)};
        ssize_t got = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

        if (got >= 0) {
            *descriptor = take_descriptor(&msg);
            return got;
        }
        if (errno != EINTR && (errno != ECONNRESET || was_reset))
            return -errno;
        was_reset = errno == ECONNRESET;
    }
}
