/*
 * GPUs, as the core sees them: which calls are of device memory, and their
 * running, which is putting them on a stream. docs/nccl.md is the design.
 */
#ifndef COLL_GPU_H
#define COLL_GPU_H

#include "backend.h"

struct coll_gpu_options;

/* What gpu_device_of() says of host memory. */
#define GPU_HOST (-1)

/* In coll_init(): loads the driver where there may be a GPU. Until then, and
 * elsewhere, all memory is the host's. */
void gpu_look(void);

/* Has it found a driver? */
bool gpu_is_possible(void);

/* The device that buf lies on, an ordinal, or GPU_HOST. */
int gpu_device_of(const void *buf);

/*
 * Is it a call of device memory? Then says so in it (on_gpu, device), or fails
 * for what is impossible there. In the public call, before its turn; function
 * is its name.
 */
coll_status_t gpu_check(
    struct coll_group *g, const char *function, struct coll_call *call);

/* Runs a call with on_gpu in its turn: puts it on a stream. What becomes of it
 * there the watchdog tells. */
coll_status_t gpu_run(struct coll_group *g, struct coll_call *call);

/* Does this call on host memory go by way of the device? Then the second one
 * runs it in its turn, and waits for the result. */
bool gpu_stage_takes(struct coll_group *g, const struct coll_call *call);
coll_status_t gpu_stage_run(struct coll_group *g, struct coll_call *call);

/* The same of messages, which take no turn; with call->work NULL or a work. */
coll_status_t gpu_send_recv(struct coll_group *g, struct coll_call *call);

/* Looks what has ended, and ends its works. False: nothing is left. */
bool gpu_advance(struct coll_group *g);

/* What is put on the stream from now on waits for the work. *is_ending: it is
 * on no stream any more, and its result is about to be there. */
coll_status_t gpu_order(struct coll_group *g, const coll_work_t *work,
    void *stream, bool *is_ending);

/* Makes communicators of g's for the parts of a split, child NULL for a rank
 * that is in none, if g has one: all ranks of g call it. */
coll_status_t gpu_split(
    struct coll_group *g, struct coll_group *child, int color, int key);

/* Makes child's of g's without the excluded ranks, if that of g is whole on all
 * ranks of child, which call it. */
coll_status_t gpu_shrink(
    struct coll_group *g, struct coll_group *child, const int *excluded, int n);

/* Ends the group's communicators, in a time that is bounded. */
void gpu_free(struct coll_group *g);

#endif
