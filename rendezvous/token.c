/* See token.h. The file, the library and the bytes that are hashed; what is
 * sent when is for the agents' protocol. */
#include "rendezvous/token.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rendezvous/base/log.h"

#define KEY_LEN 32
#define HASH_LEN 32

_Static_assert(HASH_LEN == TOKEN_PROOF_LEN, "a proof is a hash");

/* Versions of the library in which the functions below are the same. */
static const char *const libraries[] = {"libsodium.so.23", "libsodium.so.26"};

struct token {
    void *library;
    int (*init)(void);
    int (*hash)(unsigned char *out, size_t out_len, const unsigned char *in,
        unsigned long long in_len, const unsigned char *key, size_t key_len);
    int (*compare)(const void *a, const void *b, size_t len);
    void (*wipe)(void *at, size_t len);
    uint8_t key[KEY_LEN]; /* hash of the secret */
};

/* What a proof is the hash of. Everything has a fixed length, so that no two
 * connections make the same bytes. */
struct statement {
    char side[16]; /* its name, then zeros */
    uint8_t agent_nonce[TOKEN_NONCE_LEN];
    uint8_t coordinator_nonce[TOKEN_NONCE_LEN];
    uint8_t run_id[HASH_LEN]; /* hash of it */
};

_Static_assert(sizeof(struct statement) == 112, "there is no padding");

static const char *const side_names[] = {
    [TOKEN_AGENT] = "agent",
    [TOKEN_COORDINATOR] = "coordinator",
};

/* --- The library -------------------------------------------------------- */

static int load_library(struct token *t, struct err *e)
{
    struct {
        const char *name;
        void **function;
    } symbols[] = {
        {"sodium_init", (void **)&t->init},
        {"crypto_generichash", (void **)&t->hash},
        {"sodium_memcmp", (void **)&t->compare},
        {"sodium_memzero", (void **)&t->wipe},
    };

    for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
        t->library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
        if (t->library != NULL)
            break;
    }
    if (t->library == NULL)
        return err_set(e, -ENOENT,
            "a secret needs libsodium: %s; on Debian and Ubuntu it is in the "
            "package libsodium23",
            dlerror());
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        *symbols[i].function = dlsym(t->library, symbols[i].name);
        if (*symbols[i].function == NULL)
            return err_set(e, -ENOENT, "a secret needs libsodium: it has no %s",
                symbols[i].name);
    }
    if (t->init() < 0)
        return err_set(e, -EIO, "libsodium cannot be initialised");
    return 0;
}

/* Without a key if that is NULL. */
static void hash(const struct token *t, const void *bytes, size_t len,
    const uint8_t *key, uint8_t out[HASH_LEN])
{
    int rc = t->hash(out, HASH_LEN, bytes, len, key, key != NULL ? KEY_LEN : 0);

    assert(rc == 0); /* it refuses lengths only */
    (void)rc;
}

/* --- The file ----------------------------------------------------------- */

static int open_file(const char *path, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;

    if (fd < 0)
        return err_set(
            e, -errno, "the secret's file %s: %s", path, strerror(errno));
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return err_set(
            e, -EINVAL, "the secret's file %s is no regular file", path);
    }
    if (st.st_mode & (S_IRGRP | S_IWGRP | S_IROTH | S_IWOTH))
        log_warn("token",
            "others than its owner may read or write the secret's file %s; "
            "chmod 600 changes that",
            path);
    return fd;
}

/* Returns how many bytes there are, up to size, or a negative errno. */
static ssize_t read_up_to(int fd, char *bytes, size_t size)
{
    size_t len = 0;

    while (len < size) {
        ssize_t n = read(fd, bytes + len, size - len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        len += (size_t)n;
    }
    return (ssize_t)len;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r'); /* whatever the locale */
}

static int read_key(struct token *t, const char *path, struct err *e)
{
    char bytes[TOKEN_FILE_MAX + 1];
    const char *secret = bytes;
    int fd = open_file(path, e);
    ssize_t len;
    int rc = 0;

    if (fd < 0)
        return fd;
    len = read_up_to(fd, bytes, sizeof(bytes));
    close(fd);
    if (len < 0) {
        rc = err_set(
            e, (int)len, "the secret's file %s: %s", path, strerror((int)-len));
        goto out;
    }
    if (len > TOKEN_FILE_MAX) {
        rc = err_set(e, -EINVAL,
            "the secret's file %s is longer than %d bytes; it holds the "
            "secret and nothing else",
            path, TOKEN_FILE_MAX);
        goto out;
    }
    while (len > 0 && is_space(secret[len - 1]))
        len--;
    while (len > 0 && is_space(*secret)) {
        secret++;
        len--;
    }
    if (len == 0) {
        rc = err_set(e, -EINVAL,
            "the secret's file %s holds no secret; every node's holds the "
            "same random text",
            path);
        goto out;
    }
    hash(t, secret, (size_t)len, NULL, t->key);
out:
    t->wipe(bytes, sizeof(bytes));
    return rc;
}

int token_load(struct token **out, const char *path, struct err *e)
{
    struct token *t = calloc(1, sizeof(*t));
    int rc;

    if (t == NULL)
        return err_set(e, -ENOMEM, "out of memory");
    rc = load_library(t, e);
    if (rc == 0)
        rc = read_key(t, path, e);
    if (rc < 0) {
        token_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

void token_free(struct token *t)
{
    if (t == NULL)
        return;
    if (t->wipe != NULL)
        t->wipe(t->key, sizeof(t->key));
    if (t->library != NULL)
        dlclose(t->library);
    free(t);
}

/* --- Proofs ------------------------------------------------------------- */

void token_prove(const struct token *t, enum token_side side,
    const uint8_t agent_nonce[TOKEN_NONCE_LEN],
    const uint8_t coordinator_nonce[TOKEN_NONCE_LEN], const char *run_id,
    uint8_t proof[TOKEN_PROOF_LEN])
{
    struct statement s = {0};

    memcpy(s.side, side_names[side], strlen(side_names[side]));
    memcpy(s.agent_nonce, agent_nonce, sizeof(s.agent_nonce));
    memcpy(s.coordinator_nonce, coordinator_nonce, sizeof(s.coordinator_nonce));
    hash(t, run_id, strlen(run_id), NULL, s.run_id);
    hash(t, &s, sizeof(s), t->key, proof);
}

bool token_check(const struct token *t, enum token_side side,
    const uint8_t agent_nonce[TOKEN_NONCE_LEN],
    const uint8_t coordinator_nonce[TOKEN_NONCE_LEN], const char *run_id,
    const uint8_t proof[TOKEN_PROOF_LEN])
{
    uint8_t expected[TOKEN_PROOF_LEN];
    bool is_right;

    token_prove(t, side, agent_nonce, coordinator_nonce, run_id, expected);
    is_right = t->compare(expected, proof, sizeof(expected)) == 0;
    t->wipe(expected, sizeof(expected));
    return is_right;
}
