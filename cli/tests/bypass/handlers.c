/* handlers WAY PORT: connects to a server that sends back what it gets, says "good", waits for a line, and then does to the
   connection what its way says. It says "done" when all of it went well. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int fd, port;
static char block[256 << 10], room[256 << 10];
static volatile sig_atomic_t armed;
static volatile long ran, by_handler;
static sigjmp_buf back;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static void echo(const char *word) {
    char got[6];
    if (send(fd, word, 6, MSG_NOSIGNAL) != 6) fail("send");
    if (recv(fd, got, 6, MSG_WAITALL) != 6 || memcmp(got, word, 6)) fail("another word came back");
}

static void reach(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) fail("connect");
    echo("hello\n");
}

static void every(int signal_us, void (*handler)(int), int again) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval time = {.it_value.tv_usec = signal_us, .it_interval.tv_usec = again ? signal_us : 0};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &time, NULL);
}

/* Sends a byte and looks at what came, whatever the interrupted code is doing. */
static void uses(int number) {
    int before = errno;
    char seen[64], one = 'h';
    (void)number;
    if (send(fd, &one, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) by_handler++;
    recv(fd, seen, sizeof seen, MSG_DONTWAIT | MSG_PEEK);
    ran++;
    errno = before;
}

static void jumps(int number) {
    (void)number;
    if (armed) {
        armed = 0;
        siglongjmp(back, 1);
    }
}

static int may_come_again(void) { return errno == EAGAIN || errno == EINTR; }

/* Sends and receives what there is place for; -1 when the connection is broken. */
static int carry(size_t most, long *sent, long *got) {
    ssize_t out = send(fd, block, most, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (out < 0 && !may_come_again()) return -1;
    ssize_t in = recv(fd, room, sizeof room, MSG_DONTWAIT);
    if (in == 0 || (in < 0 && !may_come_again())) return -1;
    if (out > 0) *sent += out;
    if (in > 0) *got += in;
    if (out < 0 && in < 0) {
        struct pollfd ready = {.fd = fd, .events = POLLIN | POLLOUT};
        poll(&ready, 1, 10);
    }
    return 0;
}

static void handler(void) {
    long sent = 0, got = 0;
    every(200, uses, 1);
    while (ran < 3000)
        if (carry(64 << 10, &sent, &got)) fail("the connection broke");
    every(0, uses, 0);
    shutdown(fd, SHUT_WR);
    for (;;) {
        ssize_t in = recv(fd, room, sizeof room, 0);
        if (in < 0) fail("recv");
        if (in == 0) break;
        got += in;
    }
    if (got != sent + by_handler) {
        fprintf(stderr, "%ld bytes of %ld and %ld of the handler's came back\n", got, sent, by_handler);
        exit(1);
    }
}

static void jump(void) {
    static volatile int jumped, lost;
    every(500, jumps, 1);
    while (jumped < 200) {
        if (sigsetjmp(back, 1)) {
            jumped++;
            continue;
        }
        armed = 1;
        for (;;) {
            long sent = 0, got = 0;
            if (carry(sizeof block, &sent, &got)) break;
        }
        armed = 0;
        /* A copy that was left in the middle ends the connection at the latest after a thousand tries. */
        lost++;
        close(fd);
        reach();
    }
    every(0, jumps, 0);
    close(fd);
    reach();
    echo("again\n");
}

static void alarmed(void) {
    for (volatile int i = 0; i < 50; i++) {
        if (!sigsetjmp(back, 1)) {
            char one;
            armed = 1;
            every(2000, jumps, 0);
            recv(fd, &one, 1, 0);
            fail("a byte came from nowhere");
        }
        if (i % 10 == 0) echo("again\n");
    }
}

static void *waits(void *nothing) {
    char one;
    recv(fd, &one, 1, 0);
    return nothing;
}

static void cancel(void) {
    for (int i = 0; i < 5; i++) {
        pthread_t thread;
        void *result;
        struct timespec some = {.tv_nsec = 20 * 1000 * 1000};
        if (pthread_create(&thread, NULL, waits, NULL)) fail("pthread_create");
        /* Most often it waits by then; if not, it is cancelled when it begins to. */
        nanosleep(&some, NULL);
        pthread_cancel(thread);
        if (pthread_join(thread, &result)) fail("pthread_join");
        if (result != PTHREAD_CANCELED) fail("it was not cancelled");
        echo("again\n");
    }
}

static int both[2];

static void *splices(void *nothing) {
    for (;;) {
        if (write(both[1], block, 4096) != 4096) fail("write");
        if (splice(both[0], NULL, fd, NULL, 4096, 0) < 0) fail("splice");
    }
    return nothing;
}

static int descriptors(void) {
    int open = 0;
    for (int i = 0; i < 1024; i++) open += fcntl(i, F_GETFD) >= 0;
    return open;
}

/* A thread that is cancelled in a splice for which the connection has no space. What comes back is not read. */
static void spliced(void) {
    int before = 0;
    for (int i = 0; i < 5; i++) {
        pthread_t thread;
        void *result;
        struct timespec some = {.tv_nsec = 200 * 1000 * 1000};
        if (pipe(both)) fail("pipe");
        if (pthread_create(&thread, NULL, splices, NULL)) fail("pthread_create");
        /* Most often it waits by then. */
        nanosleep(&some, NULL);
        pthread_cancel(thread);
        if (pthread_join(thread, &result)) fail("pthread_join");
        if (result != PTHREAD_CANCELED) fail("it was not cancelled");
        close(both[0]);
        close(both[1]);
        if (i == 0) before = descriptors();
    }
    /* The doorbell of the first thread that waited is kept for the next one. */
    if (descriptors() > before + 1) {
        fprintf(stderr, "%d descriptors, and %d before\n", descriptors(), before);
        exit(1);
    }
}

int main(int count, char **words) {
    char line[100];
    if (count != 3) return 2;
    port = atoi(words[2]);
    memset(block, 'm', sizeof block);
    reach();
    puts("good");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 2;
    if (!strcmp(words[1], "handler")) handler();
    else if (!strcmp(words[1], "jump")) jump();
    else if (!strcmp(words[1], "alarm")) alarmed();
    else if (!strcmp(words[1], "cancel")) cancel();
    else if (!strcmp(words[1], "splice")) spliced();
    else return 2;
    puts("done");
    return 0;
}
