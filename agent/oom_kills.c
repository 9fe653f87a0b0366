/*
 * See oom_kills.h. Version 2 of cgroups has the count in memory.events; in
 * memory.events.local (Linux 5.2) it is that of the cgroup alone. A cgroup
 * without the memory controller belongs, for memory, to the nearest one above
 * that has it. In version 1 the count is in memory.oom_control (Linux 4.13).
 *
 * In a container the path may be one of the host's while the files are at the
 * mount's root: there the search ends.
 */
#include "agent/oom_kills.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/report.h"

#define COUNT_KEY "oom_kill "

/* The file as a string, cut to size; "" if it cannot be read. */
static void read_small(const char *path, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : read(fd, out, size - 1);

    out[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
}

/* The number behind the key in a file of lines "key number"; -1: none. */
static int64_t read_count(
    const char *mount, const char *folder, const char *name)
{
    char path[2 * PATH_MAX], text[1024];
    const char *line = text;

    snprintf(path, sizeof(path), "%s%s/%s", mount, folder, name);
    read_small(path, text, sizeof(text));
    while (line != NULL && strncmp(line, COUNT_KEY, strlen(COUNT_KEY)) != 0) {
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return line != NULL ? strtoll(line + strlen(COUNT_KEY), NULL, 10) : -1;
}

/* Tries folder and those above it, of which the last is "". */
static int64_t search(
    const char *mount, const char *folder, const char *const *names)
{
    char at[PATH_MAX];
    int64_t count = -1;

    snprintf(at, sizeof(at), "%s", folder);
    for (;;) {
        char *slash = strrchr(at, '/');

        for (size_t i = 0; names[i] != NULL && count < 0; i++)
            count = read_count(mount, at, names[i]);
        if (count >= 0 || slash == NULL)
            return count;
        *slash = '\0';
    }
}

static int64_t search_v2(const char *root, const char *folder)
{
    static const char *const names[] = {
        "memory.events.local", "memory.events", NULL};
    char mount[PATH_MAX];
    int64_t count = search(root, folder, names);

    if (count >= 0)
        return count;
    /* Beside hierarchies of version 1. */
    snprintf(mount, sizeof(mount), "%s/unified", root);
    return search(mount, folder, names);
}

static int64_t search_v1(const char *root, const char *folder)
{
    static const char *const names[] = {"memory.oom_control", NULL};
    char mount[PATH_MAX];

    snprintf(mount, sizeof(mount), "%s/memory", root);
    return search(mount, folder, names);
}

/* "ID:CONTROLLERS:FOLDER"; version 2 has no controllers. */
static int64_t search_line(char *line, const char *root)
{
    char *controllers = strchr(line, ':');
    char *folder = controllers != NULL ? strchr(controllers + 1, ':') : NULL;

    if (folder == NULL)
        return -1;
    *folder++ = '\0';
    if (controllers[1] == '\0')
        return search_v2(root, folder);
    return strcmp(controllers + 1, "memory") == 0 ? search_v1(root, folder)
                                                  : -1;
}

int64_t oom_kills_read(const char *cgroups, const char *root)
{
    char text[16 * 1024];
    char *line = text;
    int64_t count = -1;

    read_small(cgroups, text, sizeof(text));
    while (line != NULL && count < 0) {
        char *end = strchr(line, '\n');

        if (end != NULL)
            *end++ = '\0';
        count = search_line(line, root);
        line = end;
    }
    return count;
}

int64_t report_count_oom_kills(void)
{
    return oom_kills_read("/proc/self/cgroup", "/sys/fs/cgroup");
}
