/* Makes fork, fsync and fdatasync slow, by the milliseconds of the environment. For the odd tests; the lab's shim is another. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long fork_ms, fsync_ms;

/* Servers overwrite their environment for the process title, so it is read before they begin. */
__attribute__((constructor)) static void begin(void) {
    const char *forks = getenv("ODD_FORK_MS"), *syncs = getenv("ODD_FSYNC_MS");
    fork_ms = forks ? atol(forks) : 0;
    fsync_ms = syncs ? atol(syncs) : 0;
}

static void pause_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    if (ms) nanosleep(&time, 0);
}

pid_t fork(void) {
    pid_t (*next)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "fork");
    pause_ms(fork_ms);
    return next();
}

int fsync(int fd) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    pause_ms(fsync_ms);
    return next(fd);
}

int fdatasync(int fd) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    pause_ms(fsync_ms);
    return next(fd);
}
