/*
 * Loads NCCL: looks up the functions of COLL_NCCL_MAP, or says which file was
 * tried and what is wrong with it. Flags of dlopen() as in cuda_api.c; a
 * program that has loaded its own libnccl.so.2 before (PyTorch does) and we
 * then use the same one, since it is the same name.
 */
#include "worker/nccl_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/backend.h"

#define LIBRARY "libnccl.so.2"
#define VARIABLE "COLL_NCCL_LIBRARY"

static coll_status_t look_up(struct nccl_api *api, const char *file)
{
    static const struct {
        const char *symbol;
        size_t offset;
        bool is_required;
    } wanted[] = {
#define ROW(member, symbol, required, result, args)                            \
    {#symbol, offsetof(struct nccl_api, member), required},
        COLL_NCCL_MAP(ROW)
#undef ROW
    };

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *function = dlsym(api->handle, wanted[i].symbol);
        char version[COLL_NCCL_VERSION_TEXT];

        if (function == NULL && wanted[i].is_required)
            return coll_fail(COLL_ERR_UNSUPPORTED,
                "%s (NCCL %s) has no function %s: its file is not whole, or "
                "not NVIDIA's; install NCCL again or name another file "
                "in " VARIABLE,
                file, nccl_version_text(api->version, version),
                wanted[i].symbol);
        memcpy((char *)api + wanted[i].offset, &function, sizeof(function));
    }
    return COLL_OK;
}

/* Before the other functions: that one is missing is no news of an old one. */
static coll_status_t check_version(struct nccl_api *api, const char *file)
{
    nccl_result_t (*get_version)(int *version);
    void *function = dlsym(api->handle, "ncclGetVersion");
    char found[COLL_NCCL_VERSION_TEXT], wanted[COLL_NCCL_VERSION_TEXT];
    nccl_result_t rc;

    if (function == NULL)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "%s has no function ncclGetVersion: it is not NCCL; name NCCL's "
            "file in " VARIABLE,
            file);
    memcpy(&get_version, &function, sizeof(function));
    rc = get_version(&api->version);
    if (rc != COLL_NCCL_SUCCESS)
        return coll_fail(COLL_ERR_SYSTEM,
            "%s: ncclGetVersion failed with result %u", file, rc);
    if (api->version < COLL_NCCL_VERSION_MIN)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "%s is NCCL %s, and %s or later is needed; install a newer NCCL "
            "or name another file in " VARIABLE,
            file, nccl_version_text(api->version, found),
            nccl_version_text(COLL_NCCL_VERSION_MIN, wanted));
    return COLL_OK;
}

coll_status_t nccl_api_open(struct nccl_api *api, const char *file)
{
    coll_status_t status;

    memset(api, 0, sizeof(*api));
    api->handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (api->handle == NULL)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "NCCL cannot be loaded (%s): install it, add its folder to "
            "LD_LIBRARY_PATH, or name its file in " VARIABLE,
            dlerror());
    status = check_version(api, file);
    if (status == COLL_OK)
        status = look_up(api, file);
    if (status != COLL_OK)
        nccl_api_close(api);
    return status;
}

void nccl_api_close(struct nccl_api *api)
{
    if (api->handle != NULL)
        dlclose(api->handle);
    memset(api, 0, sizeof(*api));
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct nccl_api the_api;
static coll_status_t the_status;
static char the_sentence[512];

static void load_once(void)
{
    const char *file = getenv(VARIABLE);

    the_status = nccl_api_open(
        &the_api, file != NULL && file[0] != '\0' ? file : LIBRARY);
    if (the_status != COLL_OK)
        snprintf(the_sentence, sizeof(the_sentence), "%s", coll_last_error());
}

coll_status_t nccl_api_get(const struct nccl_api **out)
{
    pthread_once(&once, load_once);
    if (the_status != COLL_OK)
        return coll_fail(the_status, "%s", the_sentence);
    *out = &the_api;
    return COLL_OK;
}
