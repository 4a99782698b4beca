/* Lets one file operation of a process fail, or ends the process there. Loaded with LD_PRELOAD; Linux with glibc.
 *
 * All file operations below one folder are counted: those of Python, of C and of C++ alike, since all of them call libc.
 * Reads are left alone. `faults_arm` says which one fails, and how:
 *
 *   FAIL   it returns -1 with the given errno. A write first takes a part, as a disk that is nearly full does: it
 *          returns that it wrote half, and the next write to this file fails.
 *   FULL   as FAIL, and so does from then on everything that needs room.
 *   DIE    the process ends, without any cleaning up. Of a write, the first half has been done.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FAIL, FULL, DIE };
enum { MOST_FILES = 4096, EXIT_CODE = 77 };

static char folder[PATH_MAX];
static size_t folder_length;
static atomic_long operations;
static long failing = -1;
static int mode, error_number, log_file = -1;
static char *names[MOST_FILES];      /* of the files below the folder that are open, by descriptor */
static atomic_char refuses[MOST_FILES]; /* the next write of this descriptor fails */

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void faults_arm(const char *below, long number, int how, int error, int log)
{
    snprintf(folder, sizeof folder, "%s", below);
    folder_length = strlen(folder);
    failing = number;
    mode = how;
    error_number = error;
    log_file = log;
    atomic_store(&operations, 0);
}

long faults_count(void) { return atomic_load(&operations); }

/* Write the absolute path into `full` and return whether it is below the folder. */
static int is_below(int at, const char *path, char *full)
{
    if (!folder_length || !path)
        return 0;
    if (path[0] == '/') {
        snprintf(full, PATH_MAX, "%s", path);
    } else {
        char base[PATH_MAX], link[64];
        if (at == AT_FDCWD) {
            if (syscall(SYS_getcwd, base, sizeof base) < 0)
                return 0;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
            ssize_t length = readlink(link, base, sizeof base - 1);
            if (length < 0)
                return 0;
            base[length] = 0;
        }
        if (snprintf(full, PATH_MAX, "%s/%s", base, path) >= PATH_MAX)
            return 0;
    }
    return !strncmp(full, folder, folder_length) && (full[folder_length] == '/' || !full[folder_length]);
}

static void note(long number, const char *operation, const char *path, const char *what)
{
    char line[PATH_MAX + 100];
    int length = snprintf(line, sizeof line, "%ld\t%s\t%s\t%s\n", number, operation, path + folder_length, what);
    if (log_file >= 0 && syscall(SYS_write, log_file, line, (size_t)length) < 0)
        _exit(99);
}

/* Count an operation and return whether it fails. `takes_room`: a full disk refuses it. */
static int fails(const char *operation, const char *path, int takes_room)
{
    long number = atomic_fetch_add(&operations, 1);
    int now = number == failing || (mode == FULL && takes_room && failing >= 0 && number > failing);
    note(number, operation, path, now ? "FAILS" : "");
    if (now && mode == DIE)
        syscall(SYS_exit_group, EXIT_CODE);
    if (now)
        errno = error_number;
    return now;
}

static const char *name_of(int file) { return file >= 0 && file < MOST_FILES ? names[file] : NULL; }

static void remember(int file, const char *full)
{
    if (file < 0 || file >= MOST_FILES)
        return;
    free(names[file]);
    names[file] = full ? strdup(full) : NULL;
    refuses[file] = 0;
}

static int open_at(int at, const char *path, int flags, mode_t rights)
{
    char full[PATH_MAX];
    int below = is_below(at, path, full);
    int writes = (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC);
    if (below && writes && fails("open", full, flags & O_CREAT))
        return -1;
    int file = (int)syscall(SYS_openat, at, path, flags, rights);
    if (file >= 0)
        remember(file, below ? full : NULL);
    return file;
}

static mode_t rights_of(int flags, va_list arguments)
{
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
}

#define OPEN(name)                                                \
    int name(const char *path, int flags, ...)                    \
    {                                                             \
        va_list arguments;                                        \
        va_start(arguments, flags);                               \
        mode_t rights = rights_of(flags, arguments);              \
        va_end(arguments);                                        \
        return open_at(AT_FDCWD, path, flags, rights);            \
    }
#define OPENAT(name)                                              \
    int name(int at, const char *path, int flags, ...)            \
    {                                                             \
        va_list arguments;                                        \
        va_start(arguments, flags);                               \
        mode_t rights = rights_of(flags, arguments);              \
        va_end(arguments);                                        \
        return open_at(at, path, flags, rights);                  \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int creat(const char *path, mode_t rights) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, rights); }
int creat64(const char *path, mode_t rights) { return creat(path, rights); }

#define FOPEN(name)                                               \
    FILE *name(const char *path, const char *how)                 \
    {                                                             \
        char full[PATH_MAX];                                      \
        int below = is_below(AT_FDCWD, path, full);               \
        if (below && strpbrk(how, "wa+") && fails("open", full, 1)) \
            return NULL;                                          \
        FILE *stream = REAL(name)(path, how);                     \
        if (stream)                                               \
            remember(fileno(stream), below ? full : NULL);        \
        return stream;                                            \
    }
FOPEN(fopen)
FOPEN(fopen64)

int fclose(FILE *stream)
{
    remember(fileno(stream), NULL);
    return REAL(fclose)(stream);
}

int close(int file)
{
    remember(file, NULL);
    return (int)syscall(SYS_close, file);
}

/* Return how many of `size` bytes a write may take: fewer where it fails; -1 if none, with errno. `copies`: it is
 * from another file, whose end may come before. */
static ssize_t allowed(int file, size_t size, int copies)
{
    const char *path = name_of(file);
    if (!path)
        return (ssize_t)size;
    if (atomic_exchange(&refuses[file], 0)) {
        note(-1, "write", path, "FAILS");
        errno = error_number;
        return -1;
    }
    long number = atomic_fetch_add(&operations, 1);
    int now = number == failing || (mode == FULL && failing >= 0 && number > failing);
    note(number, "write", path, now ? "FAILS" : "");
    if (!now)
        return (ssize_t)size;
    if (size < 2 || error_number != ENOSPC || copies) {
        if (mode == DIE)
            syscall(SYS_exit_group, EXIT_CODE);
        errno = error_number;
        return -1;
    }
    refuses[file] = 1;
    return (ssize_t)(size / 2);
}

static void die_after_half(size_t wanted, ssize_t size)
{
    if (size >= 0 && (size_t)size < wanted && mode == DIE)
        syscall(SYS_exit_group, EXIT_CODE);
}

#define WRITE(name, copies, number, declared, given, wanted)            \
    ssize_t name declared                                         \
    {                                                             \
        ssize_t size = allowed(file, wanted, copies);             \
        if (size < 0)                                             \
            return -1;                                            \
        ssize_t done = syscall(number, file, given);              \
        die_after_half(wanted, size);                             \
        return done;                                              \
    }
#define COMMA ,
WRITE(write, 0, SYS_write, (int file, const void *data, size_t count), data COMMA(size_t) size, count)
WRITE(pwrite, 0, SYS_pwrite64, (int file, const void *data, size_t count, off_t at), data COMMA(size_t) size COMMA at, count)
WRITE(pwrite64, 0, SYS_pwrite64, (int file, const void *data, size_t count, off64_t at), data COMMA(size_t) size COMMA at, count)
WRITE(sendfile, 1, SYS_sendfile, (int file, int from, off_t *at, size_t count), from COMMA at COMMA(size_t) size, count)
WRITE(sendfile64, 1, SYS_sendfile, (int file, int from, off64_t *at, size_t count), from COMMA at COMMA(size_t) size, count)

/* Several buffers: the first alone where it fails. */
ssize_t writev(int file, const struct iovec *data, int count)
{
    size_t wanted = 0;
    for (int each = 0; each < count; each++)
        wanted += data[each].iov_len;
    ssize_t size = allowed(file, wanted, 0);
    if (size < 0)
        return -1;
    if ((size_t)size == wanted)
        return syscall(SYS_writev, file, data, count);
    ssize_t done = syscall(SYS_write, file, data[0].iov_base, data[0].iov_len / 2);
    die_after_half(wanted, size);
    return done;
}

ssize_t copy_file_range(int from, off64_t *at, int file, off64_t *to, size_t count, unsigned flags)
{
    ssize_t size = allowed(file, count, 1);
    if (size < 0)
        return -1;
    ssize_t done = syscall(SYS_copy_file_range, from, at, file, to, (size_t)size, flags);
    die_after_half(count, size);
    return done;
}

#define OF_FILE(name, operation, number, declared, given)         \
    int name declared                                             \
    {                                                             \
        const char *path = name_of(file);                         \
        if (path && fails(operation, path, 0))                    \
            return -1;                                            \
        return (int)syscall(number, file given);                  \
    }
OF_FILE(fsync, "fsync", SYS_fsync, (int file), )
OF_FILE(fdatasync, "fsync", SYS_fdatasync, (int file), )
OF_FILE(ftruncate, "truncate", SYS_ftruncate, (int file, off_t size), COMMA size)
OF_FILE(ftruncate64, "truncate", SYS_ftruncate, (int file, off64_t size), COMMA size)

#define OF_PATH(name, operation, room, declared, at, path, call)  \
    int name declared                                             \
    {                                                             \
        char full[PATH_MAX];                                      \
        if (is_below(at, path, full) && fails(operation, full, room)) \
            return -1;                                            \
        return (int)(call);                                       \
    }
OF_PATH(rename, "rename", 0, (const char *from, const char *to), AT_FDCWD, to,
        syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0))
OF_PATH(renameat, "rename", 0, (int at, const char *from, int there, const char *to), there, to,
        syscall(SYS_renameat2, at, from, there, to, 0))
OF_PATH(link, "link", 1, (const char *from, const char *to), AT_FDCWD, to,
        syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0))
OF_PATH(linkat, "link", 1, (int at, const char *from, int there, const char *to, int flags), there, to,
        syscall(SYS_linkat, at, from, there, to, flags))
OF_PATH(unlink, "unlink", 0, (const char *path), AT_FDCWD, path, syscall(SYS_unlinkat, AT_FDCWD, path, 0))
OF_PATH(unlinkat, "unlink", 0, (int at, const char *path, int flags), at, path, syscall(SYS_unlinkat, at, path, flags))
OF_PATH(rmdir, "unlink", 0, (const char *path), AT_FDCWD, path, syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR))
OF_PATH(truncate, "truncate", 0, (const char *path, off_t size), AT_FDCWD, path, syscall(SYS_truncate, path, size))
OF_PATH(truncate64, "truncate", 0, (const char *path, off64_t size), AT_FDCWD, path, syscall(SYS_truncate, path, size))

/* To make a folder that is there is no operation. */
int mkdir(const char *path, mode_t rights)
{
    char full[PATH_MAX];
    if (is_below(AT_FDCWD, path, full) && syscall(SYS_faccessat, AT_FDCWD, path, F_OK) && fails("mkdir", full, 1))
        return -1;
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, rights);
}
