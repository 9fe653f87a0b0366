/*
 * The agent channel: what an agent and its workers say to each other over a
 * Unix socket (SOCK_SEQPACKET, so that one packet is one frame). The codec
 * does no I/O. docs/protocol.md has the bytes.
 *
 *   ATTACH      worker: who it is
 *   ATTACHED    agent: from now on it is told; the descriptor of the memory
 *               for its recorder (recorder.h) is passed along
 *   REFUSED     agent: why not; the connection is closed
 *   FAILURE     agent: a rank has failed, and how
 *   COLLATERAL  worker: a call of its failed because of another rank
 */
#ifndef CRUN_RENDEZVOUS_AGENT_CHANNEL_H
#define CRUN_RENDEZVOUS_AGENT_CHANNEL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#define AGENT_CHANNEL_VERSION 1

/* The largest frame is smaller: whoever sends more is no peer. */
#define AGENT_FRAME_MAX 1024

/* Room for the value of CRUN_AGENT, NAME:ROUND. */
#define AGENT_CHANNEL_TEXT_MAX 128

#define AGENT_FRAME_MAP(X)                                                     \
    X(AGENT_ATTACH)                                                            \
    X(AGENT_ATTACHED)                                                          \
    X(AGENT_REFUSED)                                                           \
    X(AGENT_FAILURE)                                                           \
    X(AGENT_COLLATERAL)

enum agent_frame_kind {
#define AGENT_FRAME_ENUM(name) name,
    AGENT_FRAME_MAP(AGENT_FRAME_ENUM) AGENT_FRAME_COUNT
#undef AGENT_FRAME_ENUM
};

/* "ATTACH"; "?" for an unknown value. */
const char *agent_frame_name(enum agent_frame_kind kind);

/* Fields that a kind does not have are 0 or empty. */
struct agent_frame {
    enum agent_frame_kind kind;
    int32_t rank; /* ATTACH, FAILURE: global */
    int32_t local_rank; /* ATTACH, FAILURE */
    int32_t pid; /* ATTACH */
    int32_t round; /* ATTACH */
    char host[256]; /* FAILURE: where that rank ran */
    char text[512]; /* REFUSED, FAILURE, COLLATERAL: why */
};

/* Returns the length. Texts that are too long do not exist: a frame's have
 * the size of its arrays. */
size_t agent_frame_encode(
    const struct agent_frame *f, uint8_t out[AGENT_FRAME_MAX]);

/*
 * One whole packet. 0, -EPROTONOSUPPORT (another version) or -EPROTO; *f is
 * set only on success. Texts are fit to be shown: no control characters.
 */
int agent_frame_decode(struct agent_frame *f, const void *bytes, size_t len);

/* CRUN_AGENT=NAME:ROUND. The name is that of an abstract socket; the round
 * keeps a worker of an older one from attaching. Returns -EINVAL for what is
 * none. */
int agent_channel_parse(const char *text, struct sockaddr_un *addr,
    socklen_t *addr_len, int32_t *round);

#endif
