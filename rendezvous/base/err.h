/*
 * A reason that a person can read.
 *
 * Functions return 0 or a negative errno. Where somebody will read why
 * (options, set-up, connecting), they also take a struct err that the
 * function which decided what went wrong fills in. Callers pass it on.
 */
#ifndef CRUN_BASE_ERR_H
#define CRUN_BASE_ERR_H

struct err {
    int rc; /* negative errno, 0 while nothing went wrong */
    char msg[512]; /* one sentence without a full stop or newline */
};

/* Writes rc and the formatted sentence into e (which may be NULL); returns
 * rc, so that a failing function can end with `return err_set(...)`. */
int err_set(struct err *e, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
