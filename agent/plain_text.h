/* Text of strangers, made fit for a terminal. */
#ifndef CRUN_AGENT_PLAIN_TEXT_H
#define CRUN_AGENT_PLAIN_TEXT_H

#include <stddef.h>

#include "rendezvous/base/buf.h"

/*
 * Appends len bytes of anything: printable UTF-8 and tabs as they are, each
 * byte of anything else (escape sequences, newlines, what is no UTF-8) as
 * \x1b. 0 or what buf_append() says.
 */
int plain_text_append(struct buf *out, const char *bytes, size_t len);

/* The first line of text, at most max bytes of it, and "..." if that is not
 * all of the line. */
int plain_text_append_line(struct buf *out, const char *text, size_t max);

#endif
