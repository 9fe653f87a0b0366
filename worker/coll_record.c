/*
 * coll_record_error(): why this worker fails, in a file for its launcher. The
 * form is that of torch's @record, so crun, torchrun and whatever started them
 * read it.
 *
 * A crash handler writes the file, too. So what writes it calls nothing but
 * async-signal-safe functions: no stdio, no malloc, and the stack's text takes
 * its way through the kernel's memory (memfd), since backtrace_symbols() would
 * need the heap.
 */
#include "coll_record.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "backend.h"
#include "rendezvous/base/utf8.h"
#include "rendezvous/worker_env.h"

#define FRAMES_MAX 64
/* coll_record_write() and who called it for the program. */
#define FRAMES_OURS 2
/* Escaped, a byte becomes up to six; launchers refuse a file of a MiB. */
#define TEXT_MAX (64 * 1024)

/* What is on its way to the file. */
struct out {
    int fd;
    int rc; /* the first failure */
    size_t len;
    char bytes[1024];
};

static void flush(struct out *o)
{
    size_t done = 0;

    while (o->rc == 0 && done < o->len) {
        ssize_t n = write(o->fd, o->bytes + done, o->len - done);

        if (n >= 0)
            done += (size_t)n;
        else if (errno != EINTR)
            o->rc = -errno;
    }
    o->len = 0;
}

static void put(struct out *o, const char *text)
{
    for (; *text != '\0'; text++) {
        if (o->len == sizeof(o->bytes))
            flush(o);
        o->bytes[o->len++] = *text;
    }
}

static void put_decimal(struct out *o, uint64_t number)
{
    char digits[24];
    char *at = digits + sizeof(digits) - 1;

    *at = '\0';
    do
        *--at = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    put(o, at);
}

/* \u00e9 */
static void put_utf16(struct out *o, uint32_t unit)
{
    char text[] = "\\u....";

    for (int i = 0; i < 4; i++)
        text[2 + i] = "0123456789abcdef"[unit >> (12 - 4 * i) & 0xf];
    put(o, text);
}

static void put_character(struct out *o, uint32_t c)
{
    char text[] = {(char)c, '\0'};

    if (c == '"' || c == '\\')
        put(o, "\\");
    if (c == '\n') {
        put(o, "\\n");
    } else if (c >= ' ' && c < 0x7f) {
        put(o, text);
    } else if (c < 0x10000) {
        put_utf16(o, c);
    } else {
        put_utf16(o, 0xd800 + ((c - 0x10000) >> 10));
        put_utf16(o, 0xdc00 + ((c - 0x10000) & 0x3ff));
    }
}

/* The inside of a JSON string, in ASCII: PyTorch reads the file in whatever
 * encoding the locale has. */
static void put_json(struct out *o, const char *bytes, size_t len)
{
    for (size_t i = 0, n; i < len && i < TEXT_MAX; i += n) {
        uint32_t c;

        n = utf8_decode(bytes + i, len - i, &c);
        if (n == 0) {
            c = UTF8_REPLACEMENT;
            n = 1;
        }
        put_character(o, c);
    }
}

/* Most recent call first. The addresses are for addr2line. */
static void put_stack(struct out *o, void *const *frames, int nframes)
{
    int fd = memfd_create("backtrace", MFD_CLOEXEC);
    struct stat st;
    char *text;

    if (fd < 0)
        return;
    backtrace_symbols_fd(frames, nframes, fd);
    if (fstat(fd, &st) == 0 && st.st_size > 0) {
        text = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (text != MAP_FAILED) {
            put_json(o, text, (size_t)st.st_size);
            munmap(text, (size_t)st.st_size);
        }
    }
    close(fd);
}

bool coll_record_prepare(struct coll_record *r)
{
    const char *path = getenv(ENV_ERROR_FILE);

    if (path == NULL || path[0] == '\0' || strlen(path) >= sizeof(r->path))
        return false;
    memcpy(r->path, path, strlen(path) + 1);
    return true;
}

/* Gives the finished file its name, unless another one has it: 1, 0, or a
 * negative errno. There are file systems without hard links, and some of them
 * cannot rename without replacing either. */
static int publish(const char *temporary, const char *path)
{
    int rc = 0;

    if (link(temporary, path) == 0) {
        unlink(temporary);
        return 1;
    }
    if (errno != EEXIST && syscall(SYS_renameat2, AT_FDCWD, temporary, AT_FDCWD,
                               path, RENAME_NOREPLACE) == 0)
        return 1;
    if (errno != EEXIST && rename(temporary, path) == 0)
        return 1;
    if (errno != EEXIST)
        rc = -errno;
    unlink(temporary);
    return rc;
}

/* PATH.TID, without snprintf(). */
static bool name_temporary(const char *path, char out[PATH_MAX])
{
    struct out name = {.fd = -1};

    put(&name, ".");
    put_decimal(&name, (uint64_t)syscall(SYS_gettid));
    if (strlen(path) + name.len >= PATH_MAX)
        return false;
    memcpy(out, path, strlen(path));
    memcpy(out + strlen(path), name.bytes, name.len);
    out[strlen(path) + name.len] = '\0';
    return true;
}

static int write_file(
    const char *path, const char *message, void *const *frames, int nframes)
{
    struct out o = {.fd = -1};
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    o.fd =
        open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (o.fd < 0)
        return -errno;
    put(&o, "{\"message\": {\"message\": \"");
    put_json(&o, message, strlen(message));
    put(&o, "\", \"extraInfo\": {\"py_callstack\": \"");
    /* torchrun shows nothing but this; a Python traceback has the message, too.
     */
    put_json(&o, message, strlen(message));
    put(&o, "\\n");
    if (nframes > 0)
        put_stack(&o, frames, nframes);
    put(&o, "\", \"timestamp\": \"");
    put_decimal(&o, (uint64_t)now.tv_sec);
    put(&o, "\"}}}");
    flush(&o);
    if (close(o.fd) < 0 && o.rc == 0)
        o.rc = -errno; /* a remote file system may tell of it here only */
    if (o.rc < 0)
        unlink(path);
    return o.rc;
}

/* Walking a stack that is smashed may be the end: the message comes first. */
__attribute__((noinline)) int coll_record_write(
    const struct coll_record *r, const char *message)
{
    void *frames[FRAMES_MAX];
    char temporary[PATH_MAX];
    int nframes;
    int rc;

    if (access(r->path, F_OK) == 0)
        return 0; /* what was said first is nearer to the cause */
    if (!name_temporary(r->path, temporary))
        return -ENAMETOOLONG;
    rc = write_file(temporary, message, NULL, 0);
    if (rc == 0)
        rc = publish(temporary, r->path);
    if (rc <= 0)
        return rc;
    nframes = backtrace(frames, FRAMES_MAX);
    if (nframes > FRAMES_OURS &&
        write_file(temporary, message, frames + FRAMES_OURS,
            nframes - FRAMES_OURS) == 0 &&
        rename(temporary, r->path) < 0)
        unlink(temporary);
    return 0;
}

coll_status_t coll_record_error(const char *message)
{
    struct coll_record r;
    int rc;

    if (message == NULL)
        return coll_fail(
            COLL_ERR_ARGUMENT, "coll_record_error: message is NULL");
    if (!coll_record_prepare(&r))
        return COLL_OK;
    rc = coll_record_write(&r, message);
    if (rc < 0)
        return coll_fail(COLL_ERR_SYSTEM, "coll_record_error: write %s: %s",
            r.path, strerror(-rc));
    return COLL_OK;
}
