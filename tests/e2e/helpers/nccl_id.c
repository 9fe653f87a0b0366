/*
 * nccl_id LIBRARY
 *
 * Asks NCCL for a unique id, which needs no GPU and lets it print its first
 * lines. Exits with 0 if there is one, else 1.
 */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int (*get_unique_id)(char id[128]);
    char id[128];
    void *library;

    if (argc != 2) {
        fprintf(stderr, "usage: nccl_id LIBRARY\n");
        return 2;
    }
    library = dlopen(argv[1], RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    get_unique_id = (int (*)(char *))dlsym(library, "ncclGetUniqueId");
    return get_unique_id == NULL || get_unique_id(id) != 0;
}
