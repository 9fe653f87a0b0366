/* Descriptors 0, 1 and 2. */
#ifndef CRUN_CMD_STANDARD_FDS_H
#define CRUN_CMD_STANDARD_FDS_H

/* Opens those that are closed on /dev/null, or the next thing opened would
 * become one of them and output would go there. 0 or a negative errno. */
int standard_fds_open(void);

#endif
