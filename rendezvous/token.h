/*
 * The secret of a job: agents and the coordinator prove to each other that
 * they know it, and none of them shows it. Who listens to them, or answers in
 * the place of one, learns nothing that opens another connection.
 *
 * A proof is a hash, keyed with the secret, of who proves, of a random number
 * from each end and of the run id; so it fits one side of one connection of
 * one job. The hash is libsodium's BLAKE2b. The library is loaded when a
 * secret is, and no program needs it without one.
 */
#ifndef CRUN_RENDEZVOUS_TOKEN_H
#define CRUN_RENDEZVOUS_TOKEN_H

#include <stdbool.h>
#include <stdint.h>

#include "rendezvous/base/err.h"

#define TOKEN_NONCE_LEN 32
#define TOKEN_PROOF_LEN 32

/* Of a file with a secret. */
#define TOKEN_FILE_MAX 1024

struct token;

enum token_side { TOKEN_AGENT, TOKEN_COORDINATOR };

/*
 * Reads a secret: the bytes of a regular file without the white space at both
 * ends, at least one. It logs a warning if others than the owner may read or
 * write the file. On failure e names the file, or the library that cannot be
 * loaded, and what helps.
 */
int token_load(struct token **out, const char *path, struct err *e);

/* Leaves nothing of the secret in memory; takes NULL. */
void token_free(struct token *t);

/* What this side says to prove that it knows the secret. Each nonce is a
 * number that the side of its name made for this connection (random.h). */
void token_prove(const struct token *t, enum token_side side,
    const uint8_t agent_nonce[TOKEN_NONCE_LEN],
    const uint8_t coordinator_nonce[TOKEN_NONCE_LEN], const char *run_id,
    uint8_t proof[TOKEN_PROOF_LEN]);

/* Whether that is what the side says; takes the same time for every wrong
 * proof. */
bool token_check(const struct token *t, enum token_side side,
    const uint8_t agent_nonce[TOKEN_NONCE_LEN],
    const uint8_t coordinator_nonce[TOKEN_NONCE_LEN], const char *run_id,
    const uint8_t proof[TOKEN_PROOF_LEN]);

#endif
