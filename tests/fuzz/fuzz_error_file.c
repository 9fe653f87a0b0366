/*
 * A worker's error file of arbitrary bytes. Whatever they are: nothing
 * crashes, there is either a message or a problem, a time stamp is a number,
 * and what is shown of it is printable text.
 */
#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/error_file.h"
#include "agent/plain_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_shown(const char *text)
{
    struct buf out;

    buf_init(&out, 4 * strlen(text) + 1);
    assert(plain_text_append(&out, text, strlen(text)) == 0);
    for (size_t i = 0; i < out.len; i++) {
        unsigned char c = (unsigned char)buf_bytes(&out)[i];

        assert((c >= ' ' && c != 0x7f) || c == '\t');
    }
    buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* Exactly as large as the input, so that AddressSanitizer sees a read
     * behind it. */
    char *bytes = malloc(size > 0 ? size : 1);
    struct error_file f;

    if (bytes == NULL)
        return -1;
    if (size > 0)
        memcpy(bytes, data, size);
    error_file_parse(&f, bytes, size);
    free(bytes);
    assert((f.message == NULL) == (f.problem[0] != '\0'));
    assert(isfinite(f.timestamp) && f.timestamp >= 0);
    assert(f.json != NULL || f.message == NULL);
    check_shown(f.problem);
    if (f.message != NULL)
        check_shown(f.message);
    if (f.traceback != NULL)
        check_shown(f.traceback);
    error_file_fini(&f);
    return 0;
}
