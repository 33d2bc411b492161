/* Preloaded into Python: the n-th operation on files of a folder fails. Python and the C++ library both call these. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[4096];
static long left;   /* operations until the first failure; 0: none is planned */
static int on, failed; /* on: all after it fail too */

void t2r_plan(const char *inside, long first, int all) {
    snprintf(folder, sizeof folder, "%s/", inside);
    left = first, on = all, failed = 0;
}

/* 0: nothing has failed; 1; 2: an open, which a caller may try again in another mode */
int t2r_done(void) { return left = 0, failed; }

static int is_inside(const char *path) { return strncmp(path, folder, strlen(folder)) == 0; }

static int is_of(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    const ssize_t size = readlink(link, path, sizeof path - 1);
    return size > 0 && (path[size] = 0, is_inside(path));
}

/* Whether the operation fails; `ours` is evaluated only if one is planned. */
#define FAILS(ours, code) (left != 0 && (ours) && fails(code))

static int fails(int code) {
    if (left > 1) return left--, 0;
    left = on;
    errno = code;
    return failed = 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OPENED(name)                                                                                   \
    int name(const char *path, int flags, ...) {                                                       \
        va_list rest;                                                                                  \
        va_start(rest, flags);                                                                         \
        const mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;                \
        va_end(rest);                                                                                  \
        if (FAILS((flags & (O_WRONLY | O_RDWR | O_CREAT)) && is_inside(path), ENOSPC))                 \
            return failed = 2, -1;                                                                     \
        return NEXT(name)(path, flags, mode);                                                          \
    }
#define CALLED(result, name, parameters, arguments, ours, code)     \
    result name parameters {                                        \
        if (FAILS(ours, code)) return -1;                           \
        return NEXT(name) arguments;                                \
    }

OPENED(open)
OPENED(open64)
CALLED(ssize_t, write, (int file, const void *from, size_t size), (file, from, size), is_of(file), ENOSPC)
CALLED(ssize_t, writev, (int file, const struct iovec *from, int count), (file, from, count), is_of(file), ENOSPC)
CALLED(ssize_t, pwrite64, (int file, const void *from, size_t size, off64_t at), (file, from, size, at), is_of(file), ENOSPC)
CALLED(int, fsync, (int file), (file), is_of(file), EIO)
CALLED(int, ftruncate64, (int file, off64_t size), (file, size), is_of(file), EIO)
CALLED(int, chmod, (const char *path, mode_t mode), (path, mode), is_inside(path), EIO)
CALLED(int, mkdir, (const char *path, mode_t mode), (path, mode), is_inside(path), ENOSPC)
CALLED(int, rename, (const char *from, const char *to), (from, to), is_inside(to), ENOSPC)
CALLED(int, link, (const char *from, const char *to), (from, to), is_inside(to), ENOSPC)
