/* See log_dir.h. */
#include "agent/log_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "rendezvous/base/text.h"

#define TEMPORARY_NAME "torchelastic"
#define RANDOM_DIGITS 8
#define RANDOM_TRIES 100
/* Of a run id in the folder's name: with the random part it stays well below
 * NAME_MAX. */
#define RUN_ID_MAX 200
#define TREE_DEPTH_FDS 8

struct log_dir {
    char *base; /* what the run's folder is in; ours alone if temporary */
    char *run; /* NULL: not made */
    char *attempt; /* NULL: none yet */
    size_t base_made; /* length of the first folder that was made in base; 0:
                       * all of it was there */
    bool is_temporary;
    bool is_flat; /* attempt is what files' names begin with */
    bool has_files;
};

/* --- Folders ------------------------------------------------------------ */

static int is_folder(const char *path)
{
    struct stat st;

    if (stat(path, &st) < 0)
        return -errno;
    return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

/* Makes path and its parents; *made is the length of the first one that was
 * not there. Others may make the same ones meanwhile. */
static int make_folders(char *path, size_t *made)
{
    size_t len = strlen(path);

    for (size_t i = 1; i <= len; i++) {
        char c = path[i];
        int rc;

        if (c != '/' && c != '\0')
            continue;
        path[i] = '\0';
        rc = mkdir(path, 0777) < 0 ? -errno : 0;
        if (rc == 0 && *made == 0)
            *made = i;
        /* A folder that is there may be in one that is read-only. */
        if (rc < 0 && is_folder(path) == 0)
            rc = 0;
        else if (rc == -EEXIST)
            rc = -ENOTDIR;
        path[i] = c;
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Undoes make_folders(), as far as others have not put something in. */
static void remove_folders(char *path, size_t made)
{
    for (size_t len = strlen(path); made > 0 && len >= made; len--)
        if (path[len] == '\0' || path[len] == '/') {
            path[len] = '\0';
            if (rmdir(path) < 0 && errno != ENOENT)
                return;
        }
}

/* A new folder parent/name_xxxxxxxx; *out is set even on failure, as far as
 * there was memory for it. */
static int make_random(const char *parent, const char *name, char **out)
{
    char hex[33];
    int rc = -EEXIST;

    for (int i = 0; i < RANDOM_TRIES && rc == -EEXIST; i++) {
        free(*out);
        *out = NULL;
        rc = text_random_hex(hex);
        if (rc < 0)
            return rc;
        if (asprintf(out, "%s/%s_%.*s", parent, name, RANDOM_DIGITS, hex) < 0) {
            *out = NULL;
            return -ENOMEM;
        }
        rc = mkdir(*out, 0700) < 0 ? -errno : 0;
    }
    return rc;
}

/* A run id is the user's; in a file's name it must be one name, and one that
 * a terminal can show. */
static void make_name(const char *run_id, char name[RUN_ID_MAX + 1])
{
    size_t n = strlen(run_id);

    if (n > RUN_ID_MAX) {
        n = RUN_ID_MAX;
        while (n > 0 && (run_id[n] & 0xc0) == 0x80)
            n--; /* not within a character of UTF-8 */
    }
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)run_id[i];

        name[i] = c == '/' || c < ' ' || c == 0x7f ? '_' : (char)c;
    }
    name[n] = '\0';
}

/* The path as an absolute one without slashes at the end. Workers may change
 * their folder before they use it. */
static char *make_absolute(const char *path)
{
    char *cwd;
    char *abs;
    size_t n;

    while (path[0] == '.' && path[1] == '/') {
        path += 2;
        path += strspn(path, "/");
    }
    if (path[0] == '/') {
        abs = strdup(path);
    } else {
        cwd = getcwd(NULL, 0);
        if (cwd == NULL || asprintf(&abs, "%s/%s", cwd, path) < 0)
            abs = NULL;
        free(cwd);
    }
    if (abs == NULL)
        return NULL;
    for (n = strlen(abs); n > 1 && abs[n - 1] == '/'; n--)
        abs[n - 1] = '\0';
    return abs;
}

static bool is_null_device(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISCHR(st.st_mode) &&
           st.st_rdev == makedev(1, 3);
}

/* --- The run's folder --------------------------------------------------- */

static int fail(struct err *e, int rc, const char *path)
{
    return err_set(
        e, rc, "log folder %s: %s", path == NULL ? "" : path, strerror(-rc));
}

static int make_base(struct log_dir *d, const char *dir, struct err *e)
{
    const char *tmp = getenv("TMPDIR");
    char *parent;
    int rc;

    if (dir != NULL) {
        d->base = make_absolute(dir);
        rc = d->base == NULL ? (errno > 0 ? -errno : -ENOMEM)
                             : make_folders(d->base, &d->base_made);
        return rc < 0 ? fail(e, rc, d->base == NULL ? dir : d->base) : 0;
    }
    parent = make_absolute(tmp == NULL || *tmp == '\0' ? "/tmp" : tmp);
    rc = parent == NULL ? -ENOMEM
                        : make_random(parent, TEMPORARY_NAME, &d->base);
    free(parent);
    if (rc < 0) {
        err_set(e, rc,
            "temporary log folder %s: %s; TMPDIR or --log_dir may name "
            "another place",
            d->base == NULL ? "" : d->base, strerror(-rc));
        free(d->base);
        d->base = NULL;
        return rc;
    }
    d->is_temporary = true;
    return 0;
}

int log_dir_create(struct log_dir **out, const char *dir, const char *run_id,
    bool has_logs, struct err *e)
{
    char name[RUN_ID_MAX + 1];
    struct log_dir *d;
    int rc;

    if (dir != NULL && is_null_device(dir)) {
        *out = NULL;
        return 0;
    }
    if (dir != NULL && *dir == '\0')
        return err_set(e, -ENOENT, "the log folder's name is empty");
    d = calloc(1, sizeof(*d));
    if (d == NULL)
        return fail(e, -ENOMEM, dir);
    rc = make_base(d, dir, e);
    if (rc < 0)
        goto fail;
    d->is_flat = d->is_temporary && !has_logs;
    make_name(run_id, name);
    if (d->is_flat) {
        d->run = strdup(d->base);
        rc = d->run == NULL ? -ENOMEM : 0;
    } else {
        rc = make_random(d->base, name, &d->run);
    }
    if (rc < 0) {
        fail(e, rc, d->run);
        free(d->run);
        d->run = NULL;
        goto fail;
    }
    *out = d;
    return 0;
fail:
    log_dir_destroy(d);
    return rc;
}

const char *log_dir_path(const struct log_dir *d)
{
    return d->run;
}

bool log_dir_is_temporary(const struct log_dir *d)
{
    return d->is_temporary;
}

/* --- Attempts ----------------------------------------------------------- */

static int name_attempt(
    const struct log_dir *d, int restart_count, int round, char **path)
{
    char suffix[24] = "";

    if (round != restart_count)
        snprintf(suffix, sizeof(suffix), ".r%d", round);
    if (asprintf(path, "%s/attempt_%d%s", d->run, restart_count, suffix) < 0) {
        *path = NULL;
        return -ENOMEM;
    }
    return 0;
}

static int make_attempt(
    struct log_dir *d, int restart_count, int round, char **path)
{
    if (asprintf(path, "%s/attempt_%d", d->run, restart_count) < 0) {
        *path = NULL;
        return -ENOMEM;
    }
    if (mkdir(*path, 0777) == 0)
        return 0;
    if (errno != EEXIST)
        return -errno;
    free(*path);
    if (asprintf(path, "%s/attempt_%d.r%d", d->run, restart_count, round) < 0) {
        *path = NULL;
        return -ENOMEM;
    }
    return mkdir(*path, 0777) < 0 ? -errno : 0;
}

int log_dir_begin_attempt(
    struct log_dir *d, int restart_count, int round, int nranks, struct err *e)
{
    char *attempt = NULL;
    int rc = d->is_flat ? name_attempt(d, restart_count, round, &attempt)
                        : make_attempt(d, restart_count, round, &attempt);

    for (int rank = 0; rc == 0 && !d->is_flat && rank < nranks; rank++) {
        char *path;

        if (asprintf(&path, "%s/%d", attempt, rank) < 0) {
            rc = -ENOMEM;
            break;
        }
        rc = mkdir(path, 0777) < 0 ? -errno : 0;
        free(path);
    }
    if (rc < 0) {
        fail(e, rc, attempt);
        free(attempt);
        return rc;
    }
    free(d->attempt);
    d->attempt = attempt;
    return 0;
}

char *log_dir_file(const struct log_dir *d, int local_rank, const char *name)
{
    char *path;
    int rc;

    if (local_rank < 0)
        rc = asprintf(&path, "%s/%s", d->attempt, name);
    else
        rc = asprintf(&path, d->is_flat ? "%s.%d.%s" : "%s/%d/%s", d->attempt,
            local_rank, name);
    return rc < 0 ? NULL : path;
}

int log_dir_open(struct log_dir *d, const char *path, struct err *e)
{
    int fd =
        open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);

    if (fd < 0)
        return err_set(e, -errno, "log file %s: %s", path, strerror(errno));
    d->has_files = true;
    return fd;
}

/* --- The end ------------------------------------------------------------ */

static bool has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name);
    size_t len = strlen(suffix);

    return n >= len && strcmp(name + n - len, suffix) == 0;
}

/* An error file that was opened but never written says nothing. */
static bool is_nothing(
    const char *path, const struct stat *st, int type, struct FTW *where)
{
    return type == FTW_F && S_ISREG(st->st_mode) && st->st_size == 0 &&
           has_suffix(path + where->base, LOG_DIR_ERROR_FILE);
}

static int find_content(
    const char *path, const struct stat *st, int type, struct FTW *where)
{
    return type != FTW_DP && !is_nothing(path, st, type, where);
}

static int remove_nothing(
    const char *path, const struct stat *st, int type, struct FTW *where)
{
    if (is_nothing(path, st, type, where))
        unlink(path);
    else if (type == FTW_DP)
        rmdir(path);
    return 0;
}

void log_dir_destroy(struct log_dir *d)
{
    const int flags = FTW_DEPTH | FTW_PHYS | FTW_MOUNT;

    if (d == NULL)
        return;
    if (d->attempt == NULL && d->run != NULL)
        rmdir(d->run);
    if (d->is_temporary && !d->has_files && rmdir(d->base) < 0 &&
        nftw(d->base, find_content, TREE_DEPTH_FDS, flags) == 0)
        nftw(d->base, remove_nothing, TREE_DEPTH_FDS, flags);
    if (d->base != NULL && d->attempt == NULL)
        remove_folders(d->base, d->base_made);
    free(d->attempt);
    free(d->run);
    free(d->base);
    free(d);
}
