/*
 * What the checks of a real GPU stand on: the job and this rank's device, its
 * memory, numbers to send and to expect, and the table of results.
 *
 * The checks use libcollective as programs do, through collective.h, and its
 * table of the driver's functions (cuda_api.h) for memory and streams, so that
 * they build without CUDA and run against the doubles in tests/fake_nccl, too.
 */
#ifndef GPU_RIG_H
#define GPU_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collective_gpu.h"
#include "worker/cuda_api.h"
#include "worker/nccl_api.h"

struct rig {
    const struct cuda_api *cuda;
    int rank, size; /* of the default group, which carries the results */
    int device;
    bool has_doubles; /* of CUDA and NCCL, instead of a GPU */
    coll_group_t *group; /* of all ranks: what is checked */
    bool has_failed;
};

/* An operation of the group that waits longer than this fails. */
#define RIG_TIMEOUT_MS 60000

/* Joins, makes the device of this rank current, and makes the group. False
 * after having said why. */
bool rig_open(struct rig *rig);
void rig_close(struct rig *rig);

/* Another group of all ranks; its predecessor, if any, is destroyed. */
bool rig_regroup(struct rig *rig, int64_t timeout_ms);

/* Says on stderr what is wrong, with this rank's number; returns false. */
bool rig_fail(struct rig *rig, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* False, after having said so, if it is not. */
bool rig_expect(struct rig *rig, coll_status_t status, coll_status_t wanted,
    const char *what);
bool rig_cuda_ok(struct rig *rig, cu_result_t result, const char *what);

/* Memory of the device; what is copied is there when it returns. */
void *rig_alloc(struct rig *rig, size_t bytes);
void rig_free(struct rig *rig, void *memory);
bool rig_write(struct rig *rig, void *to, const void *from, size_t bytes);
bool rig_read(struct rig *rig, void *to, const void *from, size_t bytes);

/* --- The table ----------------------------------------------------------- */

/* One line, of the calling rank: what, ranks, PASS or FAIL or SKIP, seconds,
 * note. */
void rig_row(const struct rig *rig, const char *what, const char *result,
    double seconds, const char *note);

/*
 * Runs check and prints its line on rank 0. check returns whether it was well
 * on this rank, after a rig_fail() that says why, and may set *note, to a text
 * that begins with "skip" if it could not be made. False if it was not well on
 * some rank.
 */
typedef bool rig_check_t(struct rig *rig, char *note, size_t size);
bool rig_run(struct rig *rig, const char *what, rig_check_t *check);

double rig_now(void); /* seconds */

/* Whether it is before end, by rank 0's clock: all ranks get the same. */
bool rig_has_time(struct rig *rig, double end, bool *has_time);

/* --- Numbers ------------------------------------------------------------- */

/*
 * Small ones, such that every type holds them exactly, and also sums, means and
 * products of four of them, in whichever order they are formed: the reference
 * is exact, too.
 */
double rig_value(coll_dtype_t dtype, int op, int rank, size_t i);

/* op, with the factor of a pre-multiplied sum or 1, of what n ranks have. */
double rig_reduced(coll_dtype_t dtype, int op, double factor, int n, size_t i);

/* As an element of dtype. */
void rig_encode(coll_dtype_t dtype, double value, void *to);

/* What op counts as where it was made by coll_op_premul_sum(). */
#define RIG_PREMUL 1000

#endif
