/* A test double, see nccl_fake.h: what goes wrong by script. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fake_nccl/nccl_fake.h"

/* The number at *at, which goes behind the next ':'; -1 for any. */
static long field(const char **at)
{
    const char *text = *at;
    char *end;
    long number;

    if (*text != ':')
        return -1;
    number = strtol(text + 1, &end, 10);
    if (end == text + 1) {
        number = -1;
        end += *end == '*';
    }
    *at = end;
    return number;
}

bool fake_fault(const char *kind, int rank, uint64_t nth, int *value)
{
    const char *at = getenv("FAKE_NCCL_FAULT");
    size_t len = strlen(kind);

    while (at != NULL) {
        const char *rest = at + len;

        if (strncmp(at, kind, len) == 0 && strchr(":,", *rest) != NULL) {
            long its_rank = field(&rest), its_nth = field(&rest);
            long its_value = field(&rest);

            if ((its_rank < 0 || its_rank == rank) &&
                (its_nth < 0 || (uint64_t)its_nth == nth)) {
                if (value != NULL && its_value >= 0)
                    *value = (int)its_value;
                return true;
            }
        }
        at = strchr(at, ',');
        if (at != NULL)
            at++;
    }
    return false;
}

int fake_setting(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text != NULL ? (int)strtol(text, NULL, 10) : otherwise;
}
