/* See err.h. */
#include "rendezvous/base/err.h"

#include <stdarg.h>
#include <stdio.h>

int err_set(struct err *e, int rc, const char *fmt, ...)
{
    va_list ap;

    if (e == NULL)
        return rc;
    e->rc = rc;
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
    va_end(ap);
    return rc;
}
