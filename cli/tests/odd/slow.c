/* Makes fork, fsync and fdatasync slow and the wall clock late, by the milliseconds of the environment. For the odd tests; the lab's
   shim is another. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long fork_ms, fsync_ms, late_ms;

/* Servers overwrite their environment for the process title, so it is read before they begin. */
__attribute__((constructor)) static void begin(void) {
    const char *forks = getenv("ODD_FORK_MS"), *syncs = getenv("ODD_FSYNC_MS");
    const char *late = getenv("ODD_LATE_MS");
    fork_ms = forks ? atol(forks) : 0;
    fsync_ms = syncs ? atol(syncs) : 0;
    late_ms = late ? atol(late) : 0;
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

/* Whole seconds only: the parts of a second stay as they are. */
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    int (*next)(struct timeval *, void *) = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
    int result = next(at, zone);
    if (!result) at->tv_sec -= late_ms / 1000;
    return result;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int (*next)(clockid_t, struct timespec *) = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = next(clock, at);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec -= late_ms / 1000;
    return result;
}

time_t time(time_t *at) {
    time_t (*next)(time_t *) = (time_t (*)(time_t *))dlsym(RTLD_NEXT, "time");
    time_t now = next(0) - late_ms / 1000;
    if (at) *at = now;
    return now;
}
