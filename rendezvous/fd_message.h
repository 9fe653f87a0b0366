/*
 * Packets over a Unix socket with a descriptor in them: what local processes
 * hand each other memory with. Nothing blocks.
 */
#ifndef CRUN_RENDEZVOUS_FD_MESSAGE_H
#define CRUN_RENDEZVOUS_FD_MESSAGE_H

#include <stddef.h>
#include <sys/types.h>

/* Sends n bytes, with a descriptor unless that is -1. 0, or a negative errno:
 * -EAGAIN if the other side does not read. */
int fd_message_send(int fd, const void *bytes, size_t n, int descriptor);

/*
 * Takes in one packet of at most n bytes. *descriptor is what came with it,
 * close-on-exec and the caller's, or -1. Returns the bytes (0: the other side
 * has closed) or a negative errno: -EAGAIN if there is none. What somebody has
 * sent who then closed without having read everything is still received: the
 * reset, which is reported first, is passed over once.
 */
ssize_t fd_message_receive(int fd, void *bytes, size_t n, int *descriptor);

#endif
