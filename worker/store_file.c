/*
 * The store in a file, shared with PyTorch's FileStore; file_log.h has its
 * format.
 *
 * Every operation locks the file (exclusively if it may write), reads the
 * records that are new since the last one into a table, does its work on the
 * table and appends what it changed. The lock is flock() on the file itself,
 * as PyTorch's; asked for without blocking and with growing pauses, because
 * flock() knows no time-out. Waiting for a key is polling, since the file may
 * be on NFS, where nobody tells of another node's writes.
 *
 * A record is written whole or not at all: what a full disk cut off is cut
 * off completely. So behind the lock an incomplete record means that its
 * writer crashed. A reader says so; a writer removes it, for nobody else can
 * be writing, and PyTorch's readers would spin on it. Only a file that starts
 * with one is left alone: it may be somebody's who knows nothing of stores.
 *
 * PyTorch counts in the file how many have opened it and not closed it, and
 * how many have closed it. 1.13, which knows only the latter, may close before
 * or after us: so the file goes when the former is 0 and the latter has
 * reached the world size.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/file_log.h"
#include "rendezvous/interrupt.h"
#include "rendezvous/store_keys.h"
#include "worker/store.h"

/* How long to wait for the lock in order to close. Others hold it for one
 * operation, so this is more than a queue of thousands takes. */
#define CLOSE_MAX_MS 30000

#define PAUSE_MIN_NS 50000ull
#define PAUSE_MAX_NS 10000000ull

#define SHOWN_KEY_MAX 100 /* bytes of a key in a sentence */

#define READ_CHUNK ((size_t)64 << 10)

/* Counters in the file that are no user's. */
static const char opened_key[] = "refcount/";
static const char closed_key[] = "cleanup/";

struct store_impl {
    char *path; /* owned; absolute, the program may change its folder */
    /* Open until the store is closed: so the inode cannot be another file's,
     * and a replaced file is recognised. */
    int fd;
    int world_size;
    int close_ms; /* how long closing may take */
    bool is_counted; /* among those that have opened the file */
    struct store_limits limits;
    struct store_keys table; /* the file up to offset; keys as in the file */
    off_t offset;
    struct buf key; /* for file_key() */
    struct buf head; /* for append_record() */
};

/* --- The lock and the file behind it ------------------------------------ */

/* Sleeps for *pause_ns, which grows, but not beyond the deadline. -ETIMEDOUT
 * if that is over, -ECANCELED if the thread's interrupt is due: the pauses are
 * too short to wait for that in them. */
static int pause_once(uint64_t *pause_ns, uint64_t deadline_ns)
{
    uint64_t now = clock_now_ns();
    uint64_t ns = *pause_ns;
    struct timespec ts;

    if (interrupt_is_due())
        return -ECANCELED;
    if (now >= deadline_ns)
        return -ETIMEDOUT;
    if (ns > deadline_ns - now)
        ns = deadline_ns - now;
    ts.tv_sec = (time_t)(ns / CLOCK_NS_PER_S);
    ts.tv_nsec = (long)(ns % CLOCK_NS_PER_S);
    nanosleep(&ts, NULL); /* a signal makes it shorter, which is no harm */
    *pause_ns = *pause_ns * 2 < PAUSE_MAX_NS ? *pause_ns * 2 : PAUSE_MAX_NS;
    return 0;
}

static int lock(
    struct store_impl *s, int how, uint64_t deadline_ns, struct err *e)
{
    uint64_t pause_ns = PAUSE_MIN_NS;

    while (flock(s->fd, how | LOCK_NB) < 0) {
        int rc = -errno;

        if (rc != -EWOULDBLOCK && rc != -EINTR)
            return err_set(e, rc,
                "cannot lock %s: %s; a file store needs a file system with "
                "flock()",
                s->path, strerror(-rc));
        rc = pause_once(&pause_ns, deadline_ns);
        if (rc < 0)
            return err_set(e, rc,
                "%s was locked by other processes until the time was over; is "
                "one of them stopped?",
                s->path);
    }
    return 0;
}

static void unlock(struct store_impl *s)
{
    flock(s->fd, LOCK_UN);
}

/* Whether the path still leads to the file that is open; its size. */
static int check_identity(struct store_impl *s, off_t *size, struct err *e)
{
    struct stat ours, there;

    if (fstat(s->fd, &ours) < 0 || stat(s->path, &there) < 0) {
        int rc = -errno;

        if (rc == -ENOENT)
            return err_set(e, rc,
                "%s was removed while this store was open: by the last worker "
                "of a job with a smaller world size, or by hand",
                s->path);
        return err_set(e, rc, "cannot look at %s: %s", s->path, strerror(-rc));
    }
    if (ours.st_dev != there.st_dev || ours.st_ino != there.st_ino)
        return err_set(e, -ESTALE,
            "%s was replaced by another file while this store was open; each "
            "job needs a file of its own",
            s->path);
    if (ours.st_size < s->offset)
        return err_set(e, -ESTALE,
            "%s was cut off at byte %jd while this store was open; each job "
            "needs a file of its own",
            s->path, (intmax_t)ours.st_size);
    *size = ours.st_size;
    return 0;
}

/* --- From the file to the table ----------------------------------------- */

/* Drops the table; the next operation reads the file from its start. */
static void forget(struct store_impl *s)
{
    store_keys_fini(&s->table);
    store_keys_init(&s->table, &s->limits);
    s->offset = 0;
}

static int apply(
    struct store_impl *s, const struct file_record *rec, struct err *e)
{
    int rc;

    if (rec->is_deletion) {
        store_keys_delete(&s->table, rec->key);
        return 0;
    }
    rc = store_keys_set(&s->table, rec->key, rec->value);
    if (rc == -EDQUOT)
        return err_set(e, rc,
            "the keys and values in %s are more than the limit of %zu bytes",
            s->path, s->limits.memory);
    if (rc < 0)
        return err_set(e, rc, "no memory for what is in %s", s->path);
    return 0;
}

/* Reads on until the buffer holds need bytes from s->offset on, in larger
 * pieces as far as there is more below size. */
static int fill(struct store_impl *s, struct buf *in, size_t need, off_t size,
    struct err *e)
{
    while (in->len < need) {
        off_t at = s->offset + (off_t)in->len;
        size_t want = need - in->len;
        ssize_t n;
        char *room;

        if (want < READ_CHUNK)
            want = READ_CHUNK;
        if ((off_t)want > size - at)
            want = (size_t)(size - at);
        room = buf_reserve(in, want);
        if (room == NULL)
            return err_set(e, -ENOMEM, "no memory to read %s", s->path);
        n = pread(s->fd, room, want, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int rc = -errno;

            return err_set(e, rc, "cannot read %s: %s", s->path, strerror(-rc));
        }
        if (n == 0)
            return err_set(e, -ESTALE,
                "%s was cut off at byte %jd by somebody who does not hold its "
                "lock",
                s->path, (intmax_t)at);
        buf_added(in, (size_t)n);
    }
    return 0;
}

/* What to do about the incomplete record that the file ends with. */
static int handle_torn(struct store_impl *s, bool may_write, struct err *e)
{
    if (s->offset == 0)
        return err_set(e, -EPROTO,
            "%s holds no whole record of a store: it is something else, or "
            "its first writer crashed; remove it, or choose another path",
            s->path);
    if (!may_write)
        return err_set(e, -EPROTO,
            "%s ends in an incomplete record at byte %jd: its writer crashed; "
            "end this job and remove the file",
            s->path, (intmax_t)s->offset);
    if (ftruncate(s->fd, s->offset) < 0) {
        int rc = -errno;

        return err_set(e, rc,
            "cannot remove the incomplete record at byte %jd of %s: %s",
            (intmax_t)s->offset, s->path, strerror(-rc));
    }
    return 0;
}

/* Brings the table up to date with the size bytes of the file. */
static int replay(
    struct store_impl *s, off_t size, bool may_write, struct err *e)
{
    struct buf in;
    int rc = 0;

    buf_init(&in, store_limits_request(&s->limits) + READ_CHUNK);
    while (s->offset < size) {
        struct file_record rec;
        struct err why;
        size_t record;

        rc = file_log_parse(&s->limits, in.len > 0 ? buf_bytes(&in) : "",
            in.len, &rec, &record, &why);
        if (rc < 0) {
            err_set(e, rc,
                "%s holds no record of a store at byte %jd but %s; remove it, "
                "or choose another path",
                s->path, (intmax_t)s->offset, why.msg);
            break;
        }
        if (rc == 1) {
            rc = apply(s, &rec, e);
            if (rc < 0)
                break;
            buf_consume(&in, record);
            s->offset += (off_t)record;
            continue;
        }
        /* Also what is cut off is looked at: it may be no record at all. */
        if ((off_t)in.len == size - s->offset) {
            rc = handle_torn(s, may_write, e);
            break;
        }
        if ((off_t)record > size - s->offset)
            record = (size_t)(size - s->offset);
        rc = fill(s, &in, record, size, e);
        if (rc < 0)
            break;
    }
    buf_fini(&in);
    return rc;
}

/* --- One operation ------------------------------------------------------ */

/* Begins an operation: the lock is held and the table up to date. To be ended
 * by unlock(). */
static int begin(
    struct store_impl *s, int how, uint64_t deadline_ns, struct err *e)
{
    off_t size;
    int rc = lock(s, how, deadline_ns, e);

    if (rc < 0)
        return rc;
    rc = check_identity(s, &size, e);
    if (rc == 0)
        rc = replay(s, size, how == LOCK_EX, e);
    if (rc < 0)
        unlock(s);
    return rc;
}

/* The name of a user's key in the file; valid until the next call. */
static int file_key(struct store_impl *s, const char *key,
    struct store_bytes *out, struct err *e)
{
    size_t len = strlen(key);
    char *room;

    if (len > s->limits.key_len)
        return err_set(e, -EMSGSIZE,
            "a key of %zu bytes is over the limit of %zu", len,
            s->limits.key_len);
    buf_consume(&s->key, s->key.len);
    room = buf_reserve(&s->key, len + 1);
    if (room == NULL)
        return err_set(e, -ENOMEM, "no memory for a key");
    room[0] = FILE_LOG_USER_KEY;
    memcpy(room + 1, key, len);
    *out = store_bytes(room, len + 1);
    return 0;
}

/* Writes at the end of what was read. On failure the file is as before. */
static int append_record(
    struct store_impl *s, const struct file_record *rec, struct err *e)
{
    struct iovec iov[2];
    size_t total, done = 0;
    int rc;

    buf_consume(&s->head, s->head.len);
    rc = file_log_put_head(&s->head, &s->limits, rec);
    if (rc == -EMSGSIZE)
        return err_set(e, rc, "a value of %zu bytes is over the limit of %zu",
            rec->value.len, s->limits.value_len);
    if (rc < 0)
        return err_set(e, -ENOMEM, "no memory for a record");
    iov[0].iov_base = (char *)buf_bytes(&s->head);
    iov[0].iov_len = s->head.len;
    iov[1].iov_base = (char *)rec->value.data;
    iov[1].iov_len = rec->value.len;
    total = s->head.len + rec->value.len;
    /* One call, but where the disk is full: then the next says so. */
    while (done < total) {
        ssize_t n = pwritev(s->fd, iov, 2, s->offset + (off_t)done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            rc = n < 0 ? -errno : -ENOSPC;
            if (ftruncate(s->fd, s->offset) < 0)
                return err_set(e, rc,
                    "cannot write to %s: %s; and nor can the part at byte "
                    "%jd be removed: %s",
                    s->path, strerror(-rc), (intmax_t)s->offset,
                    strerror(errno));
            return err_set(
                e, rc, "cannot write to %s: %s", s->path, strerror(-rc));
        }
        done += (size_t)n;
        for (int i = 0; i < 2 && n > 0; i++) {
            size_t part =
                (size_t)n < iov[i].iov_len ? (size_t)n : iov[i].iov_len;

            iov[i].iov_base = (char *)iov[i].iov_base + part;
            iov[i].iov_len -= part;
            n -= (ssize_t)part;
        }
    }
    s->offset += (off_t)total;
    return 0;
}

/* As much of a key of the file as fits into a sentence, as users know it. */
static struct store_bytes shown(struct store_bytes key)
{
    if (key.data[0] == FILE_LOG_USER_KEY) {
        key.data++;
        key.len--;
    }
    if (key.len > SHOWN_KEY_MAX)
        key.len = SHOWN_KEY_MAX;
    return key;
}

static int refuse_change(
    struct store_impl *s, int rc, struct store_bytes key, struct err *e)
{
    struct store_bytes k = shown(key);

    switch (rc) {
    case -EINVAL:
    case -ERANGE:
        return err_set(e, rc,
            "the value of key '%.*s' in %s is no 64-bit number", (int)k.len,
            k.data, s->path);
    case -EMSGSIZE:
        return err_set(e, rc,
            "the value of key '%.*s' would be over the limit of %zu bytes",
            (int)k.len, k.data, s->limits.value_len);
    case -EDQUOT:
        return err_set(e, rc,
            "the keys and values in %s would be more than the limit of %zu "
            "bytes",
            s->path, s->limits.memory);
    default:
        return err_set(e, rc, "no memory for key '%.*s'", (int)k.len, k.data);
    }
}

/*
 * Changes go to the table first, which has the rules, and from there to the
 * file; rc is what the table said. If either fails the table is dropped, as
 * it may have what the file has not.
 */
static int commit(
    struct store_impl *s, int rc, struct store_bytes key, struct err *e)
{
    if (rc < 0) {
        refuse_change(s, rc, key, e);
    } else {
        struct store_blob *value = store_keys_get(&s->table, key);
        struct file_record rec = {.is_deletion = value == NULL, .key = key};

        if (value != NULL)
            rec.value = store_blob_bytes(value);
        rc = append_record(s, &rec, e);
    }
    if (rc < 0)
        forget(s);
    return rc;
}

/* As store_keys_add(), but an empty value counts as 0: FileStore's rule. */
static int add_locked(struct store_impl *s, struct store_bytes key,
    int64_t delta, int64_t *out, struct err *e)
{
    struct store_blob *value = store_keys_get(&s->table, key);
    int rc = 0;

    if (value != NULL && value->len == 0)
        rc = store_keys_set(&s->table, key, store_bytes("0", 1));
    if (rc == 0)
        rc = store_keys_add(&s->table, key, delta, out);
    return commit(s, rc, key, e);
}

static int count(struct store_impl *s, const char *counter, int64_t delta,
    int64_t *out, struct err *e)
{
    return add_locked(s, store_bytes(counter, strlen(counter)), delta, out, e);
}

/* --- Opening and closing ------------------------------------------------ */

/* Opens the file and begins an operation. The last user of the file may
 * remove it before the lock is ours: then it is created anew. */
static int open_and_begin(
    struct store_impl *s, uint64_t deadline_ns, struct err *e)
{
    uint64_t pause_ns = PAUSE_MIN_NS;
    struct stat st;
    int rc;

    for (;;) {
        s->fd = open(s->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0644);
        if (s->fd < 0) {
            rc = -errno;
            return err_set(e, rc,
                "cannot open %s for a file store: %s; every worker must be "
                "able to read and write it",
                s->path, strerror(-rc));
        }
        if (fstat(s->fd, &st) == 0 && !S_ISREG(st.st_mode))
            return err_set(e, -EINVAL,
                "%s is no regular file, so no store can live in it", s->path);
        rc = begin(s, LOCK_EX, deadline_ns, e);
        if ((rc != -ENOENT && rc != -ESTALE) ||
            pause_once(&pause_ns, deadline_ns) < 0)
            return rc;
        close(s->fd);
        s->fd = -1;
    }
}

static int make_absolute(const char *path, char **out)
{
    char *folder;
    int n;

    if (path[0] == '/') {
        *out = strdup(path);
        return *out != NULL ? 0 : -ENOMEM;
    }
    folder = get_current_dir_name();
    if (folder == NULL)
        return -errno;
    n = asprintf(out, "%s/%s", folder, path);
    free(folder);
    if (n < 0)
        *out = NULL;
    return n < 0 ? -ENOMEM : 0;
}

static void leave_file(struct store_impl *s)
{
    int64_t closed = 0, open_still = -1;

    if (begin(s, LOCK_EX, clock_deadline_ns(s->close_ms), NULL) < 0)
        return; /* removed by somebody else, or not ours any more */
    if (count(s, closed_key, 1, &closed, NULL) == 0 &&
        count(s, opened_key, -1, &open_still, NULL) == 0 && open_still == 0 &&
        s->world_size > 0 && closed >= s->world_size)
        unlink(s->path);
    unlock(s);
}

static void file_close(struct store_impl *s)
{
    if (s == NULL)
        return;
    if (s->is_counted)
        leave_file(s);
    if (s->fd >= 0)
        close(s->fd);
    store_keys_fini(&s->table);
    buf_fini(&s->key);
    buf_fini(&s->head);
    free(s->path);
    free(s);
}

int store_file_open(struct store_impl **out, const char *path, int world_size,
    uint64_t deadline_ns, struct err *e)
{
    struct store_impl *s;
    int64_t opened;
    int rc;

    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return err_set(e, -ENOMEM, "no memory for a store");
    s->fd = -1;
    s->world_size = world_size;
    s->close_ms = clock_left_ms(deadline_ns);
    if (s->close_ms > CLOSE_MAX_MS)
        s->close_ms = CLOSE_MAX_MS;
    s->limits = STORE_LIMITS_DEFAULT;
    store_keys_init(&s->table, &s->limits);
    buf_init(&s->key, s->limits.key_len + 1);
    buf_init(&s->head, store_limits_request(&s->limits));
    rc = make_absolute(path, &s->path);
    if (rc < 0) {
        err_set(
            e, rc, "cannot make %s an absolute path: %s", path, strerror(-rc));
        goto fail;
    }
    rc = open_and_begin(s, deadline_ns, e);
    if (rc < 0)
        goto fail;
    rc = count(s, opened_key, 1, &opened, e);
    unlock(s);
    if (rc < 0)
        goto fail;
    s->is_counted = true;
    *out = s;
    return 0;
fail:
    file_close(s);
    return rc;
}

/* --- Operations --------------------------------------------------------- */

static int set_locked(struct store_impl *s, const char *key,
    struct store_bytes value, struct err *e)
{
    struct store_bytes name;
    int rc = file_key(s, key, &name, e);

    if (rc < 0)
        return rc;
    if (value.len > s->limits.value_len)
        return err_set(e, -EMSGSIZE,
            "a value of %zu bytes is over the limit of %zu", value.len,
            s->limits.value_len);
    return commit(s, store_keys_set(&s->table, name, value), name, e);
}

static int file_multi_set(struct store_impl *s, const char *const *keys,
    const struct store_bytes *values, size_t nkeys, uint64_t deadline_ns,
    struct err *e)
{
    int rc = begin(s, LOCK_EX, deadline_ns, e);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < nkeys && rc == 0; i++)
        rc = set_locked(s, keys[i], values[i], e);
    unlock(s);
    return rc;
}

static int file_set(struct store_impl *s, const char *key,
    struct store_bytes value, uint64_t deadline_ns, struct err *e)
{
    return file_multi_set(s, &key, &value, 1, deadline_ns, e);
}

static int file_add(struct store_impl *s, const char *key, int64_t delta,
    int64_t *out, uint64_t deadline_ns, struct err *e)
{
    struct store_bytes name;
    int rc = file_key(s, key, &name, e);

    if (rc == 0)
        rc = begin(s, LOCK_EX, deadline_ns, e);
    if (rc < 0)
        return rc;
    rc = add_locked(s, name, delta, out, e);
    unlock(s);
    return rc;
}

static int file_append(struct store_impl *s, const char *key,
    struct store_bytes value, uint64_t deadline_ns, struct err *e)
{
    struct store_bytes name;
    int rc = file_key(s, key, &name, e);

    if (rc == 0)
        rc = begin(s, LOCK_EX, deadline_ns, e);
    if (rc < 0)
        return rc;
    rc = commit(s, store_keys_append(&s->table, name, value), name, e);
    unlock(s);
    return rc;
}

static int file_compare_set(struct store_impl *s, const char *key,
    struct store_bytes expected, struct store_bytes desired, struct buf *now,
    uint64_t deadline_ns, struct err *e)
{
    struct store_bytes name, result;
    struct store_blob *old;
    int rc = file_key(s, key, &name, e);

    if (rc == 0)
        rc = begin(s, LOCK_EX, deadline_ns, e);
    if (rc < 0)
        return rc;
    old = store_keys_get(&s->table, name);
    if (old != NULL ? store_bytes_equal(store_blob_bytes(old), expected)
                    : expected.len == 0) {
        rc = set_locked(s, key, desired, e);
        result = desired;
    } else {
        result = old != NULL ? store_blob_bytes(old) : expected;
    }
    if (rc == 0 && buf_append(now, result.data, result.len) < 0)
        rc = err_set(e, -ENOMEM, "no memory for a value");
    unlock(s);
    return rc;
}

static int file_delete(struct store_impl *s, const char *key, bool *existed,
    uint64_t deadline_ns, struct err *e)
{
    struct store_bytes name;
    bool did_exist;
    int rc = file_key(s, key, &name, e);

    if (rc == 0)
        rc = begin(s, LOCK_EX, deadline_ns, e);
    if (rc < 0)
        return rc;
    did_exist = store_keys_delete(&s->table, name);
    if (did_exist)
        rc = commit(s, 0, name, e);
    unlock(s);
    if (rc == 0 && existed != NULL)
        *existed = did_exist;
    return rc;
}

/* The index of a key that is not in the table, searched for from index first
 * on, round and round; nkeys if there is none, or a negative errno. */
static ssize_t find_missing(struct store_impl *s, const char *const *keys,
    size_t nkeys, size_t first, struct err *e)
{
    for (size_t n = 0; n < nkeys; n++) {
        size_t i = (first + n) % nkeys;
        struct store_bytes name;
        int rc = file_key(s, keys[i], &name, e);

        if (rc < 0)
            return rc;
        if (store_keys_get(&s->table, name) == NULL)
            return (ssize_t)i;
    }
    return (ssize_t)nkeys;
}

/* Waits until all keys exist at one time; the table has that time's values
 * until the next operation. */
static int file_wait(struct store_impl *s, const char *const *keys,
    size_t nkeys, uint64_t deadline_ns, struct err *e)
{
    uint64_t pause_ns = PAUSE_MIN_NS;
    ssize_t missing = -1;

    for (;;) {
        int rc = begin(s, LOCK_SH, deadline_ns, e);

        /* Just no lock at the very end is no news. */
        if (rc < 0 && (rc != -ETIMEDOUT || missing < 0))
            return rc;
        if (rc == 0) {
            unlock(s);
            missing = find_missing(
                s, keys, nkeys, missing < 0 ? 0 : (size_t)missing, e);
            if (missing < 0)
                return (int)missing;
            if ((size_t)missing == nkeys)
                return 0;
        }
        rc = pause_once(&pause_ns, deadline_ns);
        if (rc < 0)
            return err_set(e, rc,
                "nobody set key '%.*s' in %s in time; does every process use "
                "this file, and is it none of an earlier job?",
                SHOWN_KEY_MAX, keys[missing], s->path);
    }
}

static int file_multi_get(struct store_impl *s, const char *const *keys,
    size_t nkeys, struct buf *values, uint64_t deadline_ns, struct err *e)
{
    int rc = file_wait(s, keys, nkeys, deadline_ns, e);

    for (size_t i = 0; i < nkeys && rc == 0; i++) {
        struct store_bytes name;
        struct store_blob *value;

        rc = file_key(s, keys[i], &name, e);
        if (rc < 0)
            break;
        value = store_keys_get(&s->table, name);
        if (buf_append(&values[i], value->data, value->len) < 0)
            rc = err_set(e, -ENOMEM, "no memory for a value");
    }
    return rc;
}

static int file_get(struct store_impl *s, const char *key, struct buf *out,
    uint64_t deadline_ns, struct err *e)
{
    return file_multi_get(s, &key, 1, out, deadline_ns, e);
}

static int file_check(struct store_impl *s, const char *const *keys,
    size_t nkeys, bool *out, uint64_t deadline_ns, struct err *e)
{
    ssize_t missing;
    int rc = begin(s, LOCK_SH, deadline_ns, e);

    if (rc < 0)
        return rc;
    unlock(s);
    missing = find_missing(s, keys, nkeys, 0, e);
    if (missing < 0)
        return (int)missing;
    *out = (size_t)missing == nkeys;
    return 0;
}

static int file_num_keys(
    struct store_impl *s, int64_t *number, uint64_t deadline_ns, struct err *e)
{
    int rc = begin(s, LOCK_SH, deadline_ns, e);

    if (rc < 0)
        return rc;
    unlock(s);
    *number = (int64_t)s->table.count;
    return 0;
}

struct listing {
    void (*cb)(struct store_bytes key, void *arg);
    void *arg;
};

static void list_one_cb(struct store_bytes key, void *arg)
{
    struct listing *l = arg;

    if (key.len > 0 && key.data[0] == FILE_LOG_USER_KEY)
        l->cb(store_bytes(key.data + 1, key.len - 1), l->arg);
}

static int file_list_keys(struct store_impl *s,
    void (*cb)(struct store_bytes key, void *arg), void *arg,
    uint64_t deadline_ns, struct err *e)
{
    struct listing l = {cb, arg};
    int rc = begin(s, LOCK_SH, deadline_ns, e);

    if (rc < 0)
        return rc;
    unlock(s);
    store_keys_each(&s->table, list_one_cb, &l);
    return 0;
}

static int refuse_queue(struct err *e)
{
    return err_set(e, -EOPNOTSUPP,
        "a file store has no queues; use a TCP store or one in the process");
}

static int file_queue_push(struct store_impl *s, const char *key,
    struct store_bytes value, uint64_t deadline_ns, struct err *e)
{
    (void)s;
    (void)key;
    (void)value;
    (void)deadline_ns;
    return refuse_queue(e);
}

static int file_queue_pop(struct store_impl *s, const char *key,
    struct buf *out, uint64_t deadline_ns, struct err *e)
{
    (void)s;
    (void)key;
    (void)out;
    (void)deadline_ns;
    return refuse_queue(e);
}

static int file_queue_len(struct store_impl *s, const char *key, int64_t *len,
    uint64_t deadline_ns, struct err *e)
{
    (void)s;
    (void)key;
    (void)len;
    (void)deadline_ns;
    return refuse_queue(e);
}

const struct store_kind store_file_kind = {
    .name = "file",
    .close = file_close,
    .set = file_set,
    .get = file_get,
    .add = file_add,
    .wait = file_wait,
    .compare_set = file_compare_set,
    .delete_key = file_delete,
    .check = file_check,
    .num_keys = file_num_keys,
    .append = file_append,
    .multi_get = file_multi_get,
    .multi_set = file_multi_set,
    .queue_push = file_queue_push,
    .queue_pop = file_queue_pop,
    .queue_len = file_queue_len,
    .list_keys = file_list_keys,
};
