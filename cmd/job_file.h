/*
 * A job in a file, in YAML:
 *
 *     nproc_per_node: 4          # every option by its long name
 *     tee: 3
 *     standalone: true           # flags: true or false
 *     program: train.py
 *     args: [--epochs, 10]
 *     env:
 *       OMP_NUM_THREADS: 4       # a variable of the workers
 *       "CUDA_*":                # what they inherit; see job_env.h
 *
 * Only what this needs is read: no anchors, aliases, tags, nested values,
 * further documents. Texts are taken as they are written, so `role: no` is
 * the role "no". What is wrong is told as FILE:LINE:COLUMN: sentence.
 */
#ifndef CRUN_CMD_JOB_FILE_H
#define CRUN_CMD_JOB_FILE_H

#include "cmd/job_env.h"
#include "cmd/option_table.h"
#include "rendezvous/base/err.h"

/* More is no job file. */
#define JOB_FILE_SIZE_MAX (1 << 20)

struct job_file {
    char **program; /* owned: program, args, NULL; NULL if there is none */
    struct job_env env; /* owned */
    char **strings; /* owned: what options borrow */
    size_t nstrings;
};

/* Reads the file at path (borrowed, with the origins of options) and sets
 * the options that it names. */
int job_file_load(struct job_file **out, const char *path,
    const struct option_table *t, const struct option_target *to,
    struct err *e);

/* The same with the text of a file; path is what messages call it. */
int job_file_parse(struct job_file **out, const char *path, const char *text,
    size_t len, const struct option_table *t, const struct option_target *to,
    struct err *e);

/* Takes NULL. */
void job_file_destroy(struct job_file *f);

#endif
