/* See program.h. */
#include "agent/program.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum program_kind { PROGRAM_ELF, PROGRAM_SCRIPT, PROGRAM_OTHER };

static bool is_regular_file(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/*
 * The first regular executable called name in the folders of PATH; NULL
 * when there is none. *denied is set when one was passed over because it
 * may not be executed. The caller frees the result.
 */
static char *find_on_path(const char *name, bool *denied)
{
    const char *path = getenv("PATH");
    const char *end;
    char *file;

    if (path == NULL)
        path = "/usr/local/bin:/usr/bin:/bin"; /* as execvp without PATH */
    for (;; path = end + 1) {
        end = strchrnul(path, ':');
        /* An empty element means the working directory. */
        if (asprintf(&file, "%.*s%s%s", (int)(end - path), path,
                end > path ? "/" : "./", name) < 0)
            return NULL;
        if (is_regular_file(file)) {
            if (access(file, X_OK) == 0)
                return file;
            *denied = true;
        }
        free(file);
        if (*end == '\0')
            return NULL;
    }
}

static int find_python(char **out, const char *why, struct err *e)
{
    const char *chosen = getenv("PYTHON_EXEC");
    bool denied = false;

    if (chosen != NULL && chosen[0] != '\0') {
        *out = strchr(chosen, '/') != NULL ? strdup(chosen)
                                           : find_on_path(chosen, &denied);
        if (*out == NULL || !is_regular_file(*out) || access(*out, X_OK) < 0) {
            free(*out);
            *out = NULL;
            return err_set(e, -ENOENT,
                "PYTHON_EXEC='%s' is not an executable file (exit code %d); "
                "correct or unset it",
                chosen, PROGRAM_EXIT_NOT_FOUND);
        }
        return 0;
    }
    *out = find_on_path("python3", &denied);
    if (*out == NULL)
        *out = find_on_path("python", &denied);
    if (*out == NULL)
        return err_set(e, -ENOENT,
            "%s needs Python, but there is no python3 on PATH (exit code "
            "%d); activate the environment that has it or set PYTHON_EXEC",
            why, PROGRAM_EXIT_NOT_FOUND);
    return 0;
}

static int use_python(
    struct program *p, char **args, bool is_module, struct err *e)
{
    size_t n = 0;
    size_t i = 0;
    int rc;

    rc = find_python(&p->path, args[0], e);
    if (rc < 0)
        return rc;
    while (args[n] != NULL)
        n++;
    p->argv = calloc(n + 4, sizeof(*p->argv));
    if (p->argv == NULL)
        return err_set(e, -ENOMEM, "out of memory");
    p->argv[i++] = p->path;
    p->argv[i++] = "-u";
    if (is_module)
        p->argv[i++] = "-m";
    memcpy(p->argv + i, args, (n + 1) * sizeof(*args));
    return 0;
}

static int use_directly(
    struct program *p, char **args, char *path, struct err *e)
{
    size_t n = 0;

    while (args[n] != NULL)
        n++;
    p->path = path;
    p->argv = calloc(n + 1, sizeof(*p->argv));
    if (p->argv == NULL)
        return err_set(e, -ENOMEM, "out of memory");
    memcpy(p->argv, args, (n + 1) * sizeof(*args));
    return 0;
}

/* Reads the first line into line; what it starts with decides. Returns an
 * enum program_kind or a negative errno. */
static int look_into(const char *path, char *line, size_t size, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum program_kind kind;
    ssize_t n;

    if (fd < 0 && errno == EACCES && access(path, X_OK) == 0) {
        line[0] = '\0';
        return PROGRAM_ELF; /* may be run though not read */
    }
    if (fd < 0)
        return err_set(e, -errno, "%s: cannot be read: %s (exit code %d)", path,
            strerror(errno), PROGRAM_EXIT_NOT_EXECUTABLE);
    n = read(fd, line, size - 1);
    if (n < 0) {
        int rc = -errno;

        close(fd);
        return err_set(e, rc, "%s: cannot be read: %s (exit code %d)", path,
            strerror(-rc), PROGRAM_EXIT_NOT_EXECUTABLE);
    }
    close(fd);
    line[n] = '\0';
    kind = n >= 4 && memcmp(line, "\177ELF", 4) == 0 ? PROGRAM_ELF
           : line[0] == '#' && line[1] == '!'        ? PROGRAM_SCRIPT
                                                     : PROGRAM_OTHER;
    line[strcspn(line, "\n")] = '\0';
    return (int)kind;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text);
    size_t m = strlen(end);

    return n >= m && strcmp(text + n - m, end) == 0;
}

static int not_executable(const char *path, struct err *e)
{
    return err_set(e, -EACCES,
        "%s: not executable (exit code %d); run chmod +x on it", path,
        PROGRAM_EXIT_NOT_EXECUTABLE);
}

/* Where the program is; *out is the caller's. */
static int find_program(
    const char *name, bool is_no_python, char **out, struct err *e)
{
    bool has_slash = strchr(name, '/') != NULL;
    bool is_script = !is_no_python && ends_with(name, ".py");
    bool denied = false;
    struct stat st;

    *out = NULL;
    if (name[0] == '\0')
        return err_set(e, -ENOENT, "the program's name is empty");
    if (!has_slash && !is_script)
        *out = find_on_path(name, &denied);
    if (*out != NULL)
        return 0;
    if (stat(name, &st) < 0) {
        int rc = -errno;

        if (denied)
            return not_executable(name, e);
        if (rc == -ENOENT)
            return err_set(e, rc, "%s: no such program%s (exit code %d)", name,
                has_slash   ? ""
                : is_script ? " in this folder"
                            : " on PATH or in this folder",
                PROGRAM_EXIT_NOT_FOUND);
        return err_set(e, rc, "%s: %s (exit code %d)", name, strerror(-rc),
            rc == -ENOTDIR ? PROGRAM_EXIT_NOT_FOUND
                           : PROGRAM_EXIT_NOT_EXECUTABLE);
    }
    if (!S_ISREG(st.st_mode))
        return err_set(e, -EACCES, "%s: is %s, not a program (exit code %d)",
            name, S_ISDIR(st.st_mode) ? "a folder" : "no regular file",
            PROGRAM_EXIT_NOT_EXECUTABLE);
    /* execve takes a name without a slash from the working directory. */
    *out = strdup(name);
    return *out == NULL ? err_set(e, -ENOMEM, "out of memory") : 0;
}

/*
 * The interpreter that an executable's first line names must be there, or
 * exec says only that "no such file" exists. A line that a DOS editor ended
 * names one with a carriage return.
 */
static int check_interpreter(const char *path, char *line, struct err *e)
{
    char *name = line + 2 + strspn(line + 2, " \t");
    char *end = name + strcspn(name, " \t");
    bool has_return = end > name && end[-1] == '\r';

    *end = '\0';
    if (access(name, F_OK) == 0)
        return 0;
    if (has_return)
        end[-1] = '\0';
    return err_set(e, -ENOENT,
        "%s: its interpreter %s%s does not exist (exit code %d)%s", path, name,
        has_return ? "\\r" : "", PROGRAM_EXIT_NOT_FOUND,
        has_return ? "; the file has DOS line ends" : "");
}

/* How to run the file at path, which becomes p's or is freed. */
static int use_file(struct program *p, char **args, char *path,
    bool is_no_python, struct err *e)
{
    bool is_executable = access(path, X_OK) == 0;
    bool is_python = !is_no_python && ends_with(path, ".py");
    int kind = PROGRAM_ELF;
    char line[PATH_MAX];
    int rc = 0;

    if (!is_python && (is_executable || !is_no_python)) {
        kind = rc = look_into(path, line, sizeof(line), e);
        if (rc < 0)
            goto out;
    }
    if (!is_no_python && !is_python)
        is_python = kind == PROGRAM_OTHER ||
                    (kind == PROGRAM_SCRIPT && !is_executable &&
                        strstr(line, "python") != NULL);
    if (is_python)
        rc = use_python(p, args, false, e);
    else if (!is_executable)
        rc = not_executable(path, e);
    else if (kind == PROGRAM_SCRIPT)
        rc = check_interpreter(path, line, e);
    if (rc >= 0 && !is_python)
        return use_directly(p, args, path, e);
out:
    free(path);
    return rc;
}

int program_resolve(struct program *p, char **args, bool is_module,
    bool is_no_python, struct err *e)
{
    char *path;
    int rc;

    memset(p, 0, sizeof(*p));
    p->title = args[0];
    if (is_module && is_no_python)
        return err_set(e, -EINVAL,
            "--module and --no_python exclude each other; give one of them");
    if (is_module) {
        rc = use_python(p, args, true, e);
    } else {
        rc = find_program(args[0], is_no_python, &path, e);
        if (rc == 0)
            rc = use_file(p, args, path, is_no_python, e);
    }
    if (rc < 0)
        program_fini(p);
    return rc;
}

/* --- The command of one worker ------------------------------------------ */

/*
 * The length of the macro at text if it is the local rank's, else 0. A name
 * ends where string.Template ends it, so $local_ranks is another one.
 */
static size_t macro_length(const char *text)
{
    static const char name[] = "local_rank";
    size_t n = sizeof(name) - 1;
    unsigned char after;

    if (strncmp(text, "${", 2) == 0)
        return strncmp(text + 2, name, n) == 0 && text[2 + n] == '}' ? n + 3
                                                                     : 0;
    if (text[0] != '$' || strncmp(text + 1, name, n) != 0)
        return 0;
    after = (unsigned char)text[1 + n];
    return after == '_' || (after < 0x80 && isalnum(after)) ? 0 : n + 1;
}

/* Writes arg with its macros replaced to out, unless that is NULL. Returns
 * the length with the NUL; 0 if there is nothing to replace. */
static size_t expand(const char *arg, const char *rank, char *out)
{
    size_t rank_len = strlen(rank);
    bool has_macro = false;
    size_t len = 0;

    while (*arg != '\0') {
        size_t macro = macro_length(arg);
        /* What follows $$ begins no macro. */
        size_t n = strncmp(arg, "$$", 2) == 0 ? 2 : 1;

        if (out != NULL)
            memcpy(out + len, macro > 0 ? rank : arg, macro > 0 ? rank_len : n);
        has_macro = has_macro || macro > 0;
        len += macro > 0 ? rank_len : n;
        arg += macro > 0 ? macro : n;
    }
    if (out != NULL)
        out[len] = '\0';
    return has_macro ? len + 1 : 0;
}

char **program_argv(const struct program *p, int local_rank)
{
    size_t text_len = 0;
    size_t n = 0;
    char rank[16];
    char **argv;
    char *text;

    snprintf(rank, sizeof(rank), "%d", local_rank);
    for (; p->argv[n] != NULL; n++)
        text_len += n > 0 ? expand(p->argv[n], rank, NULL) : 0;
    /* The pointers first, then the text of what has a macro. */
    argv = malloc((n + 1) * sizeof(*argv) + text_len);
    if (argv == NULL)
        return NULL;
    text = (char *)(argv + n + 1);
    memcpy(argv, p->argv, (n + 1) * sizeof(*argv));
    for (size_t i = 1; i < n; i++) {
        size_t len = expand(p->argv[i], rank, NULL);

        if (len == 0)
            continue;
        argv[i] = text;
        text += expand(p->argv[i], rank, text);
    }
    return argv;
}

void program_fini(struct program *p)
{
    free(p->path);
    free(p->argv);
    p->path = NULL;
    p->argv = NULL;
}

int program_start_code(int error)
{
    switch (error) {
    case EAGAIN:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
        return 1;
    case ENOENT:
        return PROGRAM_EXIT_NOT_FOUND;
    default:
        return PROGRAM_EXIT_NOT_EXECUTABLE;
    }
}
