/* Where the workers' output goes: decided by the command line. */
#ifndef CRUN_AGENT_LOG_OPTIONS_H
#define CRUN_AGENT_LOG_OPTIONS_H

#include <stdbool.h>

/* torchrun's numbers for streams; a set of them. */
enum log_streams {
    LOG_NONE = 0,
    LOG_STDOUT = 1,
    LOG_STDERR = 2,
    LOG_BOTH = 3,
};

struct log_options {
    /* NULL: a temporary folder, which goes if nothing is in it at the end;
     * the null device: no folder, no files, no error files. */
    const char *dir; /* borrowed */
    unsigned char *redirects; /* [nproc] enum log_streams: to files only */
    unsigned char *tees; /* [nproc] to files and to the console */
    bool *shown; /* [nproc] whose output may reach the console; NULL: all */
    /* A template for what begins each line of the console; NULL: torchrun's
     * "[${role_name}${local_rank}]:". Macros: role_name, rank, local_rank,
     * hostname, time. Others stay as they are. */
    const char *prefix; /* borrowed */
    bool has_timestamps; /* the time in front of the prefix */
    bool is_folded; /* equal lines of several ranks become one */
    /* Lines of tee'd streams that hold one of these (borrowed, ended by NULL,
     * or NULL) are copied to filtered_stdout.log, filtered_stderr.log. */
    const char *const *stdout_needles;
    const char *const *stderr_needles;
};

#endif
