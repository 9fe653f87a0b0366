/*
 * Loads the CUDA driver: looks up every function of COLL_CUDA_MAP, or says
 * which file was tried and what is wrong with it.
 *
 * RTLD_NOW, so that a library that lacks something is refused here and not in
 * the middle of a program; RTLD_LOCAL, so that nobody else's names are
 * resolved by what libcollective has loaded: a program may have, or load
 * later, libraries that bring their own.
 */
#include "worker/cuda_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "worker/backend.h"

#define LIBRARY "libcuda.so.1"

static coll_status_t look_up(struct cuda_api *api, const char *file)
{
    static const struct {
        const char *symbol;
        size_t offset;
        bool is_required;
    } wanted[] = {
#define ROW(member, symbol, required, args)                                    \
    {#symbol, offsetof(struct cuda_api, member), required},
        COLL_CUDA_MAP(ROW)
#undef ROW
    };

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *function = dlsym(api->handle, wanted[i].symbol);

        if (function == NULL && wanted[i].is_required)
            return coll_fail(COLL_ERR_UNSUPPORTED,
                "the CUDA driver %s has no function %s: it is older than "
                "CUDA %d.%d, or no CUDA driver; install a newer NVIDIA driver",
                file, wanted[i].symbol, COLL_CUDA_VERSION_MIN / 1000,
                COLL_CUDA_VERSION_MIN % 1000 / 10);
        memcpy((char *)api + wanted[i].offset, &function, sizeof(function));
    }
    return COLL_OK;
}

static coll_status_t check_version(struct cuda_api *api, const char *file)
{
    cu_result_t rc = api->driver_get_version(&api->version);
    char text[128];

    /* What toolkits have in their folder "stubs" is for linking alone. */
    if (rc == COLL_CUDA_STUB_LIBRARY)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "%s is the stub that is made for linking, not the CUDA driver: "
            "take its folder out of LD_LIBRARY_PATH",
            file);
    if (rc != COLL_CUDA_SUCCESS)
        return coll_fail(COLL_ERR_SYSTEM,
            "the CUDA driver %s does not tell its version: %s", file,
            cuda_api_error(api, rc, text, sizeof(text)));
    if (api->version < COLL_CUDA_VERSION_MIN)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "the CUDA driver %s is of CUDA %d.%d, and %d.%d or later is "
            "needed; install a newer NVIDIA driver",
            file, api->version / 1000, api->version % 1000 / 10,
            COLL_CUDA_VERSION_MIN / 1000, COLL_CUDA_VERSION_MIN % 1000 / 10);
    return COLL_OK;
}

coll_status_t cuda_api_open(struct cuda_api *api, const char *file)
{
    coll_status_t status;

    memset(api, 0, sizeof(*api));
    api->handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (api->handle == NULL)
        return coll_fail(COLL_ERR_UNSUPPORTED,
            "the CUDA driver cannot be loaded (%s): on a machine with an "
            "NVIDIA GPU install its driver, in a container have the driver's "
            "libraries mounted",
            dlerror());
    status = look_up(api, file);
    if (status == COLL_OK)
        status = check_version(api, file);
    if (status != COLL_OK)
        cuda_api_close(api);
    return status;
}

void cuda_api_close(struct cuda_api *api)
{
    if (api->handle != NULL)
        dlclose(api->handle);
    memset(api, 0, sizeof(*api));
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct cuda_api the_api;
static coll_status_t the_status;
static char the_sentence[512];

static void load_once(void)
{
    the_status = cuda_api_open(&the_api, LIBRARY);
    if (the_status != COLL_OK)
        snprintf(the_sentence, sizeof(the_sentence), "%s", coll_last_error());
}

coll_status_t cuda_api_get(const struct cuda_api **out)
{
    pthread_once(&once, load_once);
    if (the_status != COLL_OK)
        return coll_fail(the_status, "%s", the_sentence);
    *out = &the_api;
    return COLL_OK;
}

const char *cuda_api_error(
    const struct cuda_api *api, cu_result_t error, char *out, size_t size)
{
    const char *name = NULL, *text = NULL;

    if (api->get_error_name(error, &name) != COLL_CUDA_SUCCESS || name == NULL)
        snprintf(out, size, "CUDA error %u", error);
    else if (api->get_error_string(error, &text) != COLL_CUDA_SUCCESS ||
             text == NULL)
        snprintf(out, size, "%s", name);
    else
        snprintf(out, size, "%s (%s)", name, text);
    return out;
}
