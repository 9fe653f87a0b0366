/*
 * A worker for cases that people have met, by the name of the case:
 *
 *   all            every operation, on the job and on groups, messages,
 *                  objects; checks every element
 *   early N        rank 1 leaves after N operations
 *   cycles N       joins and leaves so often, after pauses of its own
 *   late MS        rank 1 comes to the first operation so late
 *   absent MS      rank 1 joins so late, or not at all
 *   group-late MS  the same in a group of all with a time-out of a quarter
 *   huge           buffers of more than 2^31 elements
 *
 * Prints "rank R of N ok", or what went wrong and after how many milliseconds.
 */
#include <collective.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static int rank, size;

static long now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void pause_ms(long ms)
{
    struct timespec ts = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&ts, NULL);
}

#define CHECK(cond)                                                            \
    do {                                                                       \
        if (!(cond)) {                                                         \
            fprintf(stderr, "rank %d, line %d: %s: %s\n", rank, __LINE__,      \
                #cond, coll_last_error());                                     \
            return 1;                                                          \
        }                                                                      \
    } while (0)
#define OK(call) CHECK((call) == COLL_OK)

static int ok(void)
{
    printf("rank %d of %d ok\n", rank, size);
    return 0;
}

static int join(const coll_options_t *options)
{
    OK(coll_init(options));
    rank = coll_rank(NULL);
    size = coll_world_size(NULL);
    return 0;
}

/* An operation or coll_init() that is expected to fail. */
static int tell(long since_ms, coll_status_t status)
{
    printf("rank %d: %s after %ld ms: %s\n", rank, coll_strerror(status),
        now_ms() - since_ms, status == COLL_OK ? "" : coll_last_error());
    return status == COLL_OK ? 1 : 0;
}

/* --- all ------------------------------------------------------------------ */

enum { MOST = 8 };

static int64_t sent(int from, size_t i)
{
    return from * 1000 + (int64_t)(i % 321);
}

static int64_t summed(int n, size_t i)
{
    int64_t sum = 0;

    for (int r = 0; r < n; r++)
        sum += sent(r, i);
    return sum;
}

#define EACH(want)                                                             \
    for (size_t r = 0, at = 0; r < n; r++)                                     \
        for (size_t i = 0; i < count; i++, at++)                               \
    CHECK(y[at] == (want))
#define FIRST(want)                                                            \
    for (size_t i = 0; i < count; i++)                                         \
    CHECK(y[i] == (want))

static int try_operations(coll_group_t *g, size_t count, int64_t *x, int64_t *y)
{
    size_t n = (size_t)coll_world_size(g);
    int own = coll_rank(g);
    int root = (int)count % (int)n;
    size_t mine = (size_t)own * count;
    size_t counts[MOST];
    const void *send[2] = {x, x + count};
    void *recv[2] = {y, y + count};
    coll_work_t *work;

    for (size_t r = 0; r < n; r++)
        counts[r] = count;
    for (size_t i = 0; i < n * count; i++)
        x[i] = sent(own, i);
    OK(coll_all_reduce(x, y, count, COLL_INT64, COLL_SUM, g));
    FIRST(summed((int)n, i));
    OK(coll_reduce_async(x, y, count, COLL_INT64, COLL_SUM, root, g, &work));
    OK(coll_work_wait(work, 0));
    coll_work_free(work);
    if (own == root)
        FIRST(summed((int)n, i));
    OK(coll_all_gather(x, y, count, COLL_INT64, g));
    EACH(sent((int)r, i));
    memset(y, 0, n * count * sizeof(*y));
    OK(coll_all_gather_v(x, count, y, counts, NULL, COLL_INT64, g));
    EACH(sent((int)r, i));
    OK(coll_gather(x, y, count, COLL_INT64, root, g));
    if (own == root)
        EACH(sent((int)r, i));
    OK(coll_scatter(x, y, count, COLL_INT64, root, g));
    FIRST(sent(root, mine + i));
    OK(coll_reduce_scatter(x, y, count, COLL_INT64, COLL_SUM, g));
    FIRST(summed((int)n, mine + i));
    OK(coll_reduce_scatter_v(x, counts, NULL, y, COLL_INT64, COLL_SUM, g));
    FIRST(summed((int)n, mine + i));
    OK(coll_all_to_all(x, y, count, COLL_INT64, g));
    EACH(sent((int)r, mine + i));
    memset(y, 0, n * count * sizeof(*y));
    OK(coll_all_to_all_v(x, counts, NULL, y, counts, NULL, COLL_INT64, g));
    EACH(sent((int)r, mine + i));
    if (n > 1) {
        OK(coll_all_reduce_coalesced(
            send, recv, counts, 2, COLL_INT64, COLL_SUM, g));
        FIRST(summed((int)n, i));
    }
    memcpy(y, x, count * sizeof(*x));
    OK(coll_broadcast(y, count, COLL_INT64, root, g));
    FIRST(sent(root, i));
    OK(coll_monitored_barrier(60000, g));
    return 0;
}

static int try_messages(coll_group_t *g, size_t count, int64_t *x, int64_t *y)
{
    int n = coll_world_size(g);
    int own = coll_rank(g);
    int before = (own + n - 1) % n;
    coll_work_t *work;
    int source;

    if (n == 1)
        return 0;
    OK(coll_isend(x, count, COLL_INT64, (own + 1) % n, 7, g, &work));
    OK(coll_recv(y, count, COLL_INT64, COLL_ANY_SOURCE, 7, &source, g));
    CHECK(source == before);
    FIRST(sent(before, i));
    OK(coll_work_wait(work, 0));
    coll_work_free(work);
    return 0;
}

static int try_objects(coll_group_t *g)
{
    int n = coll_world_size(g);
    char text[16];
    void *data = text;
    void *all;
    size_t lens[MOST];
    size_t len = (size_t)snprintf(
        text, sizeof(text), "%.*s", 1 + coll_rank(g), "abcdefgh");
    size_t at = 0;

    OK(coll_all_gather_object(text, len, &all, lens, g));
    for (int r = 0; r < n; r++) {
        CHECK(lens[r] == (size_t)r + 1);
        CHECK(memcmp((char *)all + at, "abcdefgh", lens[r]) == 0);
        at += lens[r];
    }
    free(all);
    OK(coll_broadcast_object(&data, &len, n - 1, g));
    CHECK(len == (size_t)n && memcmp(data, "abcdefgh", len) == 0);
    if (data != text)
        free(data);
    return 0;
}

static int run_all(void)
{
    static const size_t counts[] = {1, 10, 999, 70000};
    int64_t *x, *y;
    coll_group_t *groups[3] = {NULL};

    CHECK(join(NULL) == 0);
    CHECK(size <= MOST);
    x = malloc((size_t)size * counts[3] * sizeof(*x));
    y = malloc((size_t)size * counts[3] * sizeof(*y));
    CHECK(x != NULL && y != NULL);
    OK(coll_group_split(&groups[1], NULL, rank % 2, -rank, NULL));
    OK(coll_group_split(&groups[2], groups[1], 0, 0, NULL));
    for (int g = 0; g < 3; g++) {
        for (int c = 0; c < 4; c++) {
            CHECK(try_operations(groups[g], counts[c], x, y) == 0);
            CHECK(try_messages(groups[g], counts[c], x, y) == 0);
        }
        CHECK(try_objects(groups[g]) == 0);
    }
    free(x);
    free(y);
    OK(coll_group_destroy(groups[1]));
    OK(coll_destroy());
    return ok();
}

/* --- Who is late or leaves ------------------------------------------------ */

static int run_early(long n)
{
    coll_status_t status = COLL_OK;
    long since = 0;

    CHECK(join(NULL) == 0);
    for (long i = 0; status == COLL_OK && i <= n; i++) {
        int64_t x = 1;

        if (rank == 1 && i == n) {
            OK(coll_destroy());
            return 0;
        }
        since = now_ms();
        status = coll_all_reduce(&x, &x, 1, COLL_INT64, COLL_SUM, NULL);
        CHECK(status != COLL_OK || x == size);
    }
    return tell(since, status);
}

static int run_cycles(long n)
{
    unsigned int seed = (unsigned int)getpid();

    for (long i = 0; i < n; i++) {
        int64_t x = i;

        pause_ms(rand_r(&seed) % 20);
        CHECK(join(NULL) == 0);
        OK(coll_all_reduce(&x, &x, 1, COLL_INT64, COLL_SUM, NULL));
        CHECK(x == i * size);
        OK(coll_destroy());
    }
    return ok();
}

static int run_late(long ms, bool is_group)
{
    const coll_group_options_t options = {.timeout_ms = ms > 4 ? ms / 4 : 1};
    coll_group_t *g = NULL;
    coll_status_t status;
    long since;

    CHECK(join(NULL) == 0);
    if (is_group)
        OK(coll_group_split(&g, NULL, 0, 0, &options));
    if (rank == 1)
        pause_ms(ms);
    since = now_ms();
    status = coll_barrier(g);
    return status == COLL_OK ? ok() : tell(since, status);
}

static int run_absent(long ms)
{
    const char *own = getenv("RANK");
    long since;
    coll_status_t status;

    rank = own == NULL ? -1 : atoi(own);
    if (rank == 1)
        pause_ms(ms);
    since = now_ms();
    status = coll_init(NULL);
    size = coll_world_size(NULL);
    return status == COLL_OK ? ok() : tell(since, status);
}

/* --- huge ----------------------------------------------------------------- */

#define PIECE ((size_t)4 << 20)

/*
 * A buffer of which only the first, the middle and the last piece have memory
 * of their own; all others share one. So results can be looked at where they
 * matter, and the machine needs no memory to speak of.
 */
static unsigned char *map_huge(size_t bytes)
{
    size_t pieces = (bytes + PIECE - 1) / PIECE;
    int fd = memfd_create("huge", MFD_CLOEXEC);
    unsigned char *at = mmap(NULL, pieces * PIECE, PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (fd < 0 || at == MAP_FAILED || ftruncate(fd, 4 * (off_t)PIECE) != 0)
        return NULL;
    for (size_t p = 0; p < pieces; p++) {
        size_t which = p == 0            ? 1
                       : p == pieces / 2 ? 2
                       : p == pieces - 1 ? 3
                                         : 0;

        if (mmap(at + p * PIECE, PIECE, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_FIXED, fd,
                (off_t)(which * PIECE)) == MAP_FAILED)
            return NULL;
    }
    close(fd);
    return at;
}

static int run_huge(void)
{
    const size_t n = ((size_t)1 << 31) + 8;
    unsigned char *x = map_huge(n);
    unsigned char *y = map_huge(2 * n);
    coll_work_t *work;

    CHECK(join(NULL) == 0);
    CHECK(size == 2 && x != NULL && y != NULL);
    x[0] = (unsigned char)(10 + rank);
    x[n - 1] = (unsigned char)(20 + rank);
    OK(coll_all_gather(x, y, n, COLL_UINT8, NULL));
    CHECK(y[0] == 10 && y[n - 1] == 20);
    CHECK(y[n] == 11 && y[2 * n - 1] == 21);
    y[n] = y[2 * n - 1] = 0;
    OK(coll_isend(x, n, COLL_UINT8, 1 - rank, 0, NULL, &work));
    OK(coll_recv(y + n, n, COLL_UINT8, 1 - rank, 0, NULL, NULL));
    CHECK(y[n] == 11 - rank && y[2 * n - 1] == 21 - rank);
    OK(coll_work_wait(work, 0));
    coll_work_free(work);
    OK(coll_destroy());
    munmap(x, n);
    munmap(y, 2 * n);
    return ok();
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    long n = argc > 2 ? atol(argv[2]) : 0;

    if (strcmp(what, "all") == 0)
        return run_all();
    if (strcmp(what, "early") == 0)
        return run_early(n);
    if (strcmp(what, "cycles") == 0)
        return run_cycles(n);
    if (strcmp(what, "late") == 0)
        return run_late(n, false);
    if (strcmp(what, "group-late") == 0)
        return run_late(n, true);
    if (strcmp(what, "absent") == 0)
        return run_absent(n);
    if (strcmp(what, "huge") == 0)
        return run_huge();
    fprintf(stderr, "coll_cases: what?\n");
    return 2;
}
