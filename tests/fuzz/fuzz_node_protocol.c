/*
 * The agents' protocol from arbitrary bytes: what a stranger can send to the
 * coordinator's port, or to an agent.
 *
 * Whatever the bytes are: nothing crashes, texts end within their arrays and
 * can be shown, every frame that is understood is no longer than what was
 * there, and comes back the same when it is sent on.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/node_protocol.h"
#include "tests/fuzz/shown.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct node_msg *m)
{
    struct node_msg *again = malloc(sizeof(*again));
    struct buf bytes, more;

    assert(can_be_shown(m->run_id, sizeof(m->run_id)));
    assert(can_be_shown(m->host, sizeof(m->host)));
    assert(can_be_shown(m->role, sizeof(m->role)));
    assert(can_be_shown(m->addr, sizeof(m->addr)));
    assert(can_be_shown(m->addrs, sizeof(m->addrs)));
    assert(can_be_shown(m->master_addr, sizeof(m->master_addr)));
    assert(can_be_shown(m->text, sizeof(m->text)));
    buf_init(&bytes, NODE_FRAME_MAX);
    if (again != NULL && node_msg_encode(m, &bytes) == 0) {
        assert(node_msg_decode(again, buf_bytes(&bytes), bytes.len) ==
               (int)bytes.len);
        buf_init(&more, NODE_FRAME_MAX);
        assert(node_msg_encode(again, &more) == 0 && more.len == bytes.len);
        assert(memcmp(buf_bytes(&more), buf_bytes(&bytes), more.len) == 0);
        buf_fini(&more);
    }
    buf_fini(&bytes);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct node_msg *m = malloc(sizeof(*m));

    while (m != NULL && size > 0) {
        int n = node_msg_decode(m, data, size);

        assert(n == 0 || n == -EPROTO || (n >= 8 && (size_t)n <= size));
        if (n <= 0)
            break;
        check(m);
        data += n;
        size -= (size_t)n;
    }
    free(m);
    return 0;
}
