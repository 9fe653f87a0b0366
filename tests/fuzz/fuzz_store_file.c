/*
 * The file of a file store against arbitrary bytes. Whatever they are:
 * nothing crashes; a record that is parsed gives its own bytes when it is
 * encoded again; and of a record that is cut off, the size asked for is more
 * than there is and no more than the whole.
 */
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "rendezvous/file_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Small, so that inputs get over them. */
static const struct store_limits limits = {.key_len = 300, .value_len = 1000};

static void check_round_trip(
    const struct file_record *rec, const uint8_t *data, size_t size)
{
    struct buf again;

    buf_init(&again, SIZE_MAX / 2);
    assert(file_log_put_head(&again, &limits, rec) == 0);
    assert(buf_append(&again, rec->value.data, rec->value.len) == 0);
    assert(again.len == size);
    assert(memcmp(buf_bytes(&again), data, size) == 0);
    buf_fini(&again);
}

/* Reads a record as one does who fetches no byte too many. */
static void check_growing(const uint8_t *data, size_t size)
{
    struct file_record rec;
    struct err e;
    size_t have = 0, want = 0;

    while (file_log_parse(&limits, data, have, &rec, &want, &e) == 0) {
        assert(want > have && want <= size);
        have = want;
    }
    assert(have == size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct file_record rec;
    struct err e;
    size_t used;
    int rc;

    while ((rc = file_log_parse(&limits, data, size, &rec, &used, &e)) == 1) {
        assert(used <= size);
        check_round_trip(&rec, data, used);
        check_growing(data, used);
        data += used;
        size -= used;
    }
    assert(rc == -EPROTO || rc == -EMSGSIZE || (rc == 0 && used > size));
    return 0;
}
