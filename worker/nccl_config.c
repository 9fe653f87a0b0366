/*
 * What differs between versions of NCCL without a function being there or not:
 * how versions are counted, and how much of the configuration one knows.
 */
#include <stdio.h>
#include <string.h>

#include "worker/nccl_api.h"

const char *nccl_version_text(int version, char out[COLL_NCCL_VERSION_TEXT])
{
    /* Until 2.8 the minor version had one digit less. */
    int major = version >= 10000 ? version / 10000 : version / 1000;
    int minor = version >= 10000 ? version % 10000 / 100 : version % 1000 / 100;

    snprintf(
        out, COLL_NCCL_VERSION_TEXT, "%d.%d.%d", major, minor, version % 100);
    return out;
}

void nccl_config_init(nccl_config_t *config, int version)
{
    size_t end = 0;

    if (version > COLL_NCCL_VERSION_KNOWN)
        version = COLL_NCCL_VERSION_KNOWN;
    memset(config, 0, sizeof(*config));
    config->magic = COLL_NCCL_CONFIG_MAGIC;
    config->version = (unsigned int)version;
#define SET(type, field, since, unset)                                         \
    config->field = unset;                                                     \
    if (version >= (since))                                                    \
        end = offsetof(nccl_config_t, field) + sizeof(config->field);
    COLL_NCCL_CONFIG_MAP(SET)
#undef SET
    /* As sizeof() of that version's structure, which holds pointers. */
    config->size = (end + sizeof(void *) - 1) / sizeof(void *) * sizeof(void *);
}
