/*
 * Runs a fuzz target over files instead of under libFuzzer, so that what the
 * fuzzer once found stays tested with any compiler. Arguments are files and
 * folders of files; prints how many inputs it ran.
 */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path, size_t size)
{
    /* Exactly as large as the input, so that AddressSanitizer sees a read
     * behind it. */
    uint8_t *data = malloc(size > 0 ? size : 1);
    FILE *file = fopen(path, "re");
    int rc = -1;

    if (data != NULL && file != NULL && fread(data, 1, size, file) == size)
        rc = LLVMFuzzerTestOneInput(data, size);
    else
        fprintf(stderr, "replay: cannot read %s\n", path);
    if (file != NULL)
        fclose(file);
    free(data);
    return rc;
}

static int replay(const char *path, int *count);

static int replay_folder(const char *path, int *count)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    int rc = 0;

    if (dir == NULL) {
        fprintf(stderr, "replay: %s: %s\n", path, strerror(errno));
        return -1;
    }
    while ((entry = readdir(dir)) != NULL) {
        char name[4096];

        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
        if (replay(name, count) < 0)
            rc = -1;
    }
    closedir(dir);
    return rc;
}

static int replay(const char *path, int *count)
{
    struct stat st;

    if (stat(path, &st) < 0) {
        fprintf(stderr, "replay: %s: %s\n", path, strerror(errno));
        return -1;
    }
    if (S_ISDIR(st.st_mode))
        return replay_folder(path, count);
    if (replay_file(path, (size_t)st.st_size) < 0)
        return -1;
    ++*count;
    return 0;
}

int main(int argc, char **argv)
{
    int count = 0, rc = 0;

    for (int i = 1; i < argc; i++)
        if (replay(argv[i], &count) < 0)
            rc = -1;
    printf("replayed %d inputs\n", count);
    return rc == 0 && count > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
