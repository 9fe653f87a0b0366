/*
 * A test double of the CUDA driver: the functions of COLL_CUDA_MAP on host
 * memory, with threads for streams. What one may set:
 *
 *   FAKE_CUDA_DEVICES    how many there are (2); 0: cuInit() finds none
 *   FAKE_CUDA_VERSION    of the driver (13000)
 *   FAKE_CUDA_FAIL       function:nth:error,...  the nth call (0: every call)
 *                        of the exported function returns that number
 *   CUDA_VISIBLE_DEVICES as of the real one, by number or UUID
 *
 * Like the real one it is of no use in a child of a process that has called
 * cuInit(). Unlike it, stream 0 waits for no other stream, and what goes to a
 * stream that captures is dropped, since there are no graphs.
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <pthread.h>
#include <stdbool.h>

#include "worker/cuda_api.h"

#define EXPORT __attribute__((visibility("default")))

/* ThreadSanitizer takes ld.so's freeing of other thread-local memory, that of
 * libraries which were opened later, for a race. */
#define THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))

/* The prototypes are those that libcollective looks up. */
#define FAKE_CUDA_DECLARE(member, symbol, required, args)                      \
    EXPORT cu_result_t symbol args;
COLL_CUDA_MAP(FAKE_CUDA_DECLARE)
#undef FAKE_CUDA_DECLARE

/* For tests alone: from now on the stream is in that state of capture. */
EXPORT void fake_cuda_set_capture(
    struct cu_stream *stream, cu_capture_status_t status);

#define FAKE_CUDA_DEVICES_MAX 16

struct cu_context {
    int device;
    unsigned int refs;
};

extern struct cu_context fake_cuda_contexts[FAKE_CUDA_DEVICES_MAX];

/* One lock for all: speed is nothing that a test double must have. */
extern pthread_mutex_t fake_cuda_lock;
extern pthread_cond_t fake_cuda_changed;

/* What every function begins with: what the script says, or that this process
 * has not called cuInit(). */
cu_result_t fake_cuda_enter(const char *function);

/* The same, and a context is needed, which goes to *out. */
cu_result_t fake_cuda_enter_context(
    const char *function, struct cu_context **out);

/* Has the stream's thread call run(arg) when all before it is done. */
cu_result_t fake_cuda_push(
    struct cu_stream *stream, cu_host_function_t *run, void *arg);

#endif
