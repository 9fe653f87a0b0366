/* What a rank called: to compare with what others did, and for sentences. */
#ifndef COLL_SIGNATURE_H
#define COLL_SIGNATURE_H

#include "backend.h"

/* Two are the same call if their bytes are. */
struct coll_signature {
    uint8_t kind;
    uint8_t dtype;
    uint8_t op;
    uint8_t flags;
    int32_t root;
    uint64_t count;
    uint32_t seq; /* its lower half */
    uint32_t extra;
};

/* Flags: extra has the code of algorithms that are forced (coll_algorithm.h);
 * it is of device memory. */
#define COLL_SIGNATURE_FORCED 1
#define COLL_SIGNATURE_ON_GPU 2

/* In place of a reduction: SUM of what has been multiplied with a factor. */
#define COLL_SIGNATURE_PREMUL 255

/* Likewise of an all_to_all, which has none: in place. */
#define COLL_SIGNATURE_IN_PLACE 254

/* Of a part, the signature is that of the whole. */
struct coll_signature coll_signature_of(const struct coll_call *call);

bool coll_signature_is_same(
    const struct coll_signature *a, const struct coll_signature *b);

/* Room for every such text. */
#define COLL_SIGNATURE_TEXT_BYTES 144

/* "all_reduce(count=200, float32, sum)", and what the flags say. */
void coll_signature_text(
    char *out, size_t cap, const struct coll_signature *sig);

/* "all_reduce #17"; NULL: "coll_init". Returns out or a constant. */
const char *coll_call_text(char *out, size_t cap, const struct coll_call *call);

#endif
