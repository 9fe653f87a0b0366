/* Texts that say where output goes: the values of options about logs. Pure. */
#ifndef CRUN_CMD_LOG_SPEC_H
#define CRUN_CMD_LOG_SPEC_H

#include <stdbool.h>

/*
 * "0" to "3", the streams (enum log_streams) of all workers, or
 * "RANK:STREAMS,RANK:STREAMS", others having none. *out is the caller's,
 * [nproc]. -EINVAL if text is neither, -ERANGE with *rank if a rank is not
 * below nproc, -ENOMEM.
 */
int log_spec_streams(
    const char *text, int nproc, unsigned char **out, long long *rank);

/* "RANK,RANK": *out is the caller's, [nproc], true for those. Errors as
 * above. */
int log_spec_ranks(const char *text, int nproc, bool **out, long long *rank);

/* "TEXT,TEXT", where `,,` stands for a comma within a text: *out is one
 * allocation of the caller's, ended by NULL, *out NULL if no text is in it.
 * -ENOMEM. */
int log_spec_needles(const char *text, const char *const **out);

#endif
