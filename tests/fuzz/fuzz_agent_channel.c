/*
 * The agent channel and the recorder from arbitrary bytes: what a process can
 * send to the agent, and what one with a stray pointer can leave in memory
 * that the agent reads.
 *
 * The bytes are a frame, then the value of CRUN_AGENT, then a recorder (as
 * far as they go). Whatever they are: nothing crashes, texts end within their
 * arrays and can be shown, and a frame that is understood comes back the same
 * when it is sent on.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/agent_channel.h"
#include "rendezvous/recorder.h"
#include "tests/fuzz/shown.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode(const uint8_t *data, size_t size)
{
    struct agent_frame f, again;
    uint8_t bytes[AGENT_FRAME_MAX];
    size_t len;
    int rc = agent_frame_decode(&f, data, size);

    if (rc < 0) {
        assert(rc == -EPROTO || rc == -EPROTONOSUPPORT);
        return;
    }
    assert(can_be_shown(f.host, sizeof(f.host)));
    assert(can_be_shown(f.text, sizeof(f.text)));
    len = agent_frame_encode(&f, bytes);
    assert(len == size);
    assert(agent_frame_decode(&again, bytes, len) == 0);
    assert(memcmp(&f, &again, sizeof(f)) == 0);
}

static void parse(const uint8_t *data, size_t size)
{
    struct sockaddr_un addr;
    socklen_t len;
    int32_t round;
    char *text = malloc(size + 1);

    if (text == NULL)
        return;
    memcpy(text, data, size);
    text[size] = '\0';
    if (agent_channel_parse(text, &addr, &len, &round) == 0)
        assert(len <= sizeof(addr) && round >= 0);
    free(text);
}

static void read_recorder(const uint8_t *data, size_t size)
{
    struct recorder *r = aligned_alloc(64, sizeof(*r));
    struct recorder_seen seen[RECORDER_ENTRIES];
    char text[40], ranks[RECORDER_RANKS_LEN];
    uint32_t n;

    if (r == NULL)
        return;
    memset(r, 0, sizeof(*r));
    memcpy(r, data, size < sizeof(*r) ? size : sizeof(*r));
    if (recorder_last_text(r, text, sizeof(text)))
        assert(can_be_shown(text, sizeof(text)));
    for (size_t i = recorder_read(r, seen); i-- > 0;) {
        assert(can_be_shown(seen[i].kind, sizeof(seen[i].kind)));
        assert(can_be_shown(seen[i].dtype, sizeof(seen[i].dtype)));
        assert(can_be_shown(seen[i].op, sizeof(seen[i].op)));
        if (recorder_find_group(r, seen[i].group, ranks, &n))
            assert(n > 0 && can_be_shown(ranks, sizeof(ranks)));
    }
    free(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    decode(data, size);
    parse(data, size);
    read_recorder(data, size);
    return 0;
}
