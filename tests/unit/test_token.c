/*
 * The secret of a job: which files hold one, and proofs of it. The known
 * proofs are from Python, which has another BLAKE2b:
 *
 *   def h(data, key=b''):
 *       return hashlib.blake2b(data, key=key, digest_size=32)
 *   said = side.ljust(16, b'\0') + agent_nonce + coordinator_nonce
 *   h(said + h(run_id).digest(), h(secret).digest()).hexdigest()
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rendezvous/base/log.h"
#include "rendezvous/token.h"
#include "tests/unit/unit.h"

#define SECRET "correct horse battery staple"
#define RUN_ID "job-17"

static char folder[64];
static char path[96];
static char log_text[1024];
static struct err e;
static struct token *token;
static uint8_t agent_nonce[TOKEN_NONCE_LEN];
static uint8_t coordinator_nonce[TOKEN_NONCE_LEN];

static void keep_log(const char *line, size_t len, void *arg)
{
    (void)arg;
    snprintf(log_text, sizeof(log_text), "%.*s", (int)len, line);
}

static void set_up(void)
{
    log_set_writer(keep_log, NULL);
    umask(077);
    snprintf(folder, sizeof(folder), "/tmp/test_token.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/secret", folder);
    for (int i = 0; i < TOKEN_NONCE_LEN; i++) {
        agent_nonce[i] = (uint8_t)i;
        coordinator_nonce[i] = (uint8_t)(100 + i);
    }
}

static void tear_down(void)
{
    token_free(token);
    remove(path);
    ck_assert_int_eq(rmdir(folder), 0);
}

static void write_file(const void *bytes, size_t len)
{
    FILE *f = fopen(path, "w");

    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, len, f), len);
    ck_assert_int_eq(fclose(f), 0);
}

static int load(const char *from)
{
    e = (struct err){0};
    token_free(token);
    token = NULL;
    return token_load(&token, from, &e);
}

static void load_secret(const char *secret)
{
    write_file(secret, strlen(secret));
    ck_assert_msg(load(path) == 0, "%s", e.msg);
}

static void expect_failure(const char *from, int rc, const char *text)
{
    ck_assert_int_eq(load(from), rc);
    ck_assert_int_eq(e.rc, rc);
    ck_assert_ptr_null(token);
    ck_assert_msg(strstr(e.msg, from) != NULL, "%s", e.msg);
    ck_assert_msg(strstr(e.msg, text) != NULL, "%s", e.msg);
}

static void prove(enum token_side side, const char *run_id, uint8_t *proof)
{
    token_prove(token, side, agent_nonce, coordinator_nonce, run_id, proof);
}

static bool check(
    enum token_side side, const char *run_id, const uint8_t *proof)
{
    return token_check(
        token, side, agent_nonce, coordinator_nonce, run_id, proof);
}

static void expect_hex(const uint8_t *proof, const char *hex)
{
    char text[2 * TOKEN_PROOF_LEN + 1];

    for (int i = 0; i < TOKEN_PROOF_LEN; i++)
        snprintf(text + 2 * i, 3, "%02x", proof[i]);
    ck_assert_str_eq(text, hex);
}

/* --- Files -------------------------------------------------------------- */

START_TEST(file_that_is_not_there)
{
    expect_failure(path, -ENOENT, "No such file");
}
END_TEST

START_TEST(file_without_a_secret)
{
    write_file("", 0);
    expect_failure(path, -EINVAL, "holds no secret");
    write_file(" \t\r\n\v\f", 6);
    expect_failure(path, -EINVAL, "holds no secret");
}
END_TEST

START_TEST(file_that_is_too_long)
{
    char bytes[2 * TOKEN_FILE_MAX];

    memset(bytes, 'x', sizeof(bytes));
    write_file(bytes, TOKEN_FILE_MAX);
    ck_assert_int_eq(load(path), 0);
    write_file(bytes, TOKEN_FILE_MAX + 1);
    expect_failure(path, -EINVAL, "longer than 1024 bytes");
    write_file(bytes, sizeof(bytes));
    expect_failure(path, -EINVAL, "longer than 1024 bytes");
}
END_TEST

START_TEST(what_is_no_file)
{
    expect_failure(folder, -EINVAL, "no regular file");
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    expect_failure(path, -EINVAL, "no regular file");
}
END_TEST

START_TEST(file_that_others_may_read)
{
    static const mode_t open_modes[] = {0640, 0604, 0620, 0602};

    load_secret(SECRET);
    ck_assert_str_eq(log_text, "");
    for (size_t i = 0; i < sizeof(open_modes) / sizeof(open_modes[0]); i++) {
        log_text[0] = '\0';
        ck_assert_int_eq(chmod(path, open_modes[i]), 0);
        ck_assert_int_eq(load(path), 0);
        ck_assert_ptr_nonnull(strstr(log_text, path));
        ck_assert_ptr_nonnull(strstr(log_text, "chmod 600"));
    }
    ck_assert_ptr_null(strstr(log_text, SECRET));
}
END_TEST

/* With no descriptor left no library can be loaded that is not there yet. */
START_TEST(library_that_cannot_be_loaded)
{
    struct rlimit limit;
    int fd;

    write_file(SECRET, strlen(SECRET));
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    close(fd);
    limit.rlim_cur = (rlim_t)fd;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_int_eq(load(path), -ENOENT);
    ck_assert_msg(strstr(e.msg, "needs libsodium") != NULL, "%s", e.msg);
    ck_assert_msg(strstr(e.msg, "package libsodium23") != NULL, "%s", e.msg);

    limit.rlim_cur = limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_msg(load(path) == 0, "%s", e.msg);
}
END_TEST

/* --- Proofs ------------------------------------------------------------- */

START_TEST(known_proofs)
{
    uint8_t proof[TOKEN_PROOF_LEN];

    load_secret(SECRET "\n");
    prove(TOKEN_AGENT, RUN_ID, proof);
    expect_hex(proof,
        "9ade02217ad989dafda65ed08a586f0c76fa2fd2ffb544dd9604a53723a03639");
    prove(TOKEN_COORDINATOR, RUN_ID, proof);
    expect_hex(proof,
        "55c8cc549fd703d28e7f54dbd660be5e420b719ce275882c28d3606350f6a27b");
}
END_TEST

START_TEST(white_space_around_a_secret_does_not_count)
{
    static const char *const files[] = {
        SECRET, SECRET "\n", SECRET "\r\n", "\n\t " SECRET " \v\f\n\n"};
    uint8_t proof[TOKEN_PROOF_LEN];

    load_secret(SECRET);
    prove(TOKEN_AGENT, RUN_ID, proof);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        load_secret(files[i]);
        ck_assert(check(TOKEN_AGENT, RUN_ID, proof));
    }
    load_secret("correct  horse battery staple");
    ck_assert(!check(TOKEN_AGENT, RUN_ID, proof));
}
END_TEST

/* A secret of any bytes counts to its end. */
START_TEST(secret_of_any_bytes)
{
    uint8_t proof[TOKEN_PROOF_LEN];

    write_file("a\0b", 3);
    ck_assert_int_eq(load(path), 0);
    prove(TOKEN_AGENT, RUN_ID, proof);
    ck_assert(check(TOKEN_AGENT, RUN_ID, proof));
    write_file("a\0c", 3);
    ck_assert_int_eq(load(path), 0);
    ck_assert(!check(TOKEN_AGENT, RUN_ID, proof));
}
END_TEST

START_TEST(proof_is_of_one_side_connection_and_job)
{
    uint8_t proof[TOKEN_PROOF_LEN];

    load_secret(SECRET);
    prove(TOKEN_AGENT, RUN_ID, proof);
    ck_assert(check(TOKEN_AGENT, RUN_ID, proof));
    ck_assert(!check(TOKEN_COORDINATOR, RUN_ID, proof));
    ck_assert(!check(TOKEN_AGENT, "job-18", proof));
    ck_assert(!check(TOKEN_AGENT, "", proof));
    for (int i = 0; i < TOKEN_NONCE_LEN; i++) {
        agent_nonce[i] ^= 1;
        ck_assert(!check(TOKEN_AGENT, RUN_ID, proof));
        agent_nonce[i] ^= 1;
        coordinator_nonce[i] ^= 1;
        ck_assert(!check(TOKEN_AGENT, RUN_ID, proof));
        coordinator_nonce[i] ^= 1;
    }
    ck_assert(!token_check(
        token, TOKEN_AGENT, coordinator_nonce, agent_nonce, RUN_ID, proof));
    ck_assert(check(TOKEN_AGENT, RUN_ID, proof));

    load_secret(SECRET "!");
    ck_assert(!check(TOKEN_AGENT, RUN_ID, proof));
}
END_TEST

/* Bytes of one part do not count as another's. */
START_TEST(parts_do_not_run_together)
{
    uint8_t proof[TOKEN_PROOF_LEN];

    load_secret(SECRET);
    memset(agent_nonce, 'a', sizeof(agent_nonce));
    memset(coordinator_nonce, 'a', sizeof(coordinator_nonce));
    prove(TOKEN_AGENT, "aab", proof);
    ck_assert(!check(TOKEN_AGENT, "ab", proof));
    ck_assert(!check(TOKEN_AGENT, "aaab", proof));
    coordinator_nonce[TOKEN_NONCE_LEN - 1] = 'b';
    prove(TOKEN_AGENT, "c", proof);
    coordinator_nonce[TOKEN_NONCE_LEN - 1] = 'a';
    ck_assert(!check(TOKEN_AGENT, "bc", proof));
    prove(TOKEN_AGENT, "a", proof);
    ck_assert(!check(TOKEN_AGENT, "a ", proof));
}
END_TEST

START_TEST(every_bit_of_a_proof_counts)
{
    uint8_t proof[TOKEN_PROOF_LEN];

    load_secret(SECRET);
    prove(TOKEN_COORDINATOR, RUN_ID, proof);
    for (int bit = 0; bit < 8 * TOKEN_PROOF_LEN; bit++) {
        proof[bit / 8] ^= (uint8_t)(1 << bit % 8);
        ck_assert(!check(TOKEN_COORDINATOR, RUN_ID, proof));
        proof[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    ck_assert(check(TOKEN_COORDINATOR, RUN_ID, proof));
}
END_TEST

START_TEST(long_run_id)
{
    uint8_t proof[TOKEN_PROOF_LEN];
    char run_id[5000];

    load_secret(SECRET);
    memset(run_id, 'r', sizeof(run_id) - 1);
    run_id[sizeof(run_id) - 1] = '\0';
    prove(TOKEN_AGENT, run_id, proof);
    ck_assert(check(TOKEN_AGENT, run_id, proof));
    run_id[sizeof(run_id) - 2] = 's';
    ck_assert(!check(TOKEN_AGENT, run_id, proof));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("token");
    TCase *files = tcase_create("files");
    TCase *proofs = tcase_create("proofs");

    tcase_add_checked_fixture(files, set_up, tear_down);
    tcase_add_test(files, file_that_is_not_there);
    tcase_add_test(files, file_without_a_secret);
    tcase_add_test(files, file_that_is_too_long);
    tcase_add_test(files, what_is_no_file);
    tcase_add_test(files, file_that_others_may_read);
    tcase_add_test(files, library_that_cannot_be_loaded);
    suite_add_tcase(suite, files);

    tcase_add_checked_fixture(proofs, set_up, tear_down);
    tcase_add_test(proofs, known_proofs);
    tcase_add_test(proofs, white_space_around_a_secret_does_not_count);
    tcase_add_test(proofs, secret_of_any_bytes);
    tcase_add_test(proofs, proof_is_of_one_side_connection_and_job);
    tcase_add_test(proofs, parts_do_not_run_together);
    tcase_add_test(proofs, every_bit_of_a_proof_counts);
    tcase_add_test(proofs, long_run_id);
    suite_add_tcase(suite, proofs);
    return unit_run_suite(suite);
}
