// What a Redis server answers through calls that few programs make. rare_calls PORT PART: "good" when the connection is made;
// "right", or the first wrong line, after a line of input.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(that)                                                                      \
    do {                                                                                 \
        errno = 0;                                                                       \
        if (!(that)) {                                                                   \
            printf("line %d: %s (%s)\n", __LINE__, #that, strerror(errno));              \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)
#define FAILS(call, with) CHECK((call) == -1 && errno == (with))

#define PING "PING\r\n"
#define PONG "+PONG\r\n"
#define LARGE (1 << 20)

static int s;
static char large[LARGE];

static void read_all(int fd, void *to, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t got = read(fd, (char *)to + done, n - done);
        CHECK(got > 0);
        done += got;
    }
}

static void expect(int fd, const char *wanted) {
    char got[100] = {0};
    read_all(fd, got, strlen(wanted));
    CHECK(strcmp(got, wanted) == 0);
}

static void ping(void) {
    CHECK(write(s, PING, 6) == 6);
    expect(s, PONG);
}

static void messages(void) {
    struct iovec parts[] = {{"PI", 2}, {"NG\r\n", 4}};
    struct mmsghdr out[3] = {0};
    for (int i = 0; i < 3; i++) {
        out[i].msg_hdr.msg_iov = parts;
        out[i].msg_hdr.msg_iovlen = 2;
    }
    CHECK(sendmmsg(s, out, 3, 0) == 3);
    CHECK(out[0].msg_len == 6 && out[2].msg_len == 6);
    char got[64] = {0};
    size_t done = 0;
    while (done < 21) {
        char room[4][3];
        struct iovec rooms[4];
        struct mmsghdr in[4] = {0};
        for (int i = 0; i < 4; i++) {
            rooms[i] = (struct iovec){room[i], 3};
            in[i].msg_hdr.msg_iov = &rooms[i];
            in[i].msg_hdr.msg_iovlen = 1;
        }
        int n = recvmmsg(s, in, 4, MSG_WAITFORONE, NULL);
        CHECK(n > 0 && n <= 4);
        for (int i = 0; i < n; i++) {
            CHECK(in[i].msg_len > 0 && in[i].msg_len <= 3);
            memcpy(got + done, room[i], in[i].msg_len);
            done += in[i].msg_len;
        }
    }
    CHECK(done == 21 && strcmp(got, PONG PONG PONG) == 0);
    struct mmsghdr none = {0};
    none.msg_hdr.msg_iov = parts;
    none.msg_hdr.msg_iovlen = 1;
    FAILS(recvmmsg(s, &none, 1, MSG_DONTWAIT, NULL), EAGAIN);
    CHECK(sendmmsg(s, out, 0, 0) == 0);
}

// A value that fits into no pipe: there, and back.
static void large_value(int *p) {
    char head[100];
    sprintf(head, "*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n$%d\r\n", LARGE);
    CHECK(write(s, head, strlen(head)) == strlen(head));
    for (int i = 0; i < LARGE; i++) large[i] = 'a' + i % 23;
    for (size_t done = 0; done < LARGE;) {
        size_t part = LARGE - done < 10000 ? LARGE - done : 10000;
        CHECK(write(p[1], large + done, part) == part);
        for (size_t moved = 0; moved < part;) {
            ssize_t n = splice(p[0], NULL, s, NULL, part - moved, 0);
            CHECK(n > 0);
            moved += n;
        }
        done += part;
    }
    CHECK(write(s, "\r\n", 2) == 2);
    expect(s, "+OK\r\n");
    CHECK(write(s, "GET large\r\n", 11) == 11);
    sprintf(head, "$%d\r\n", LARGE);
    expect(s, head);
    for (size_t done = 0; done < LARGE;) {
        char back[20000];
        size_t want = LARGE - done < sizeof back ? LARGE - done : sizeof back;
        ssize_t n = splice(s, NULL, p[1], NULL, want, 0);
        CHECK(n > 0 && n <= want);
        read_all(p[0], back, n);
        CHECK(memcmp(back, large + done, n) == 0);
        done += n;
    }
    expect(s, "\r\n");
}

static void pipes(void) {
    int p[2];
    CHECK(pipe(p) == 0);
    CHECK(write(p[1], PING PING, 12) == 12);
    CHECK(splice(p[0], NULL, s, NULL, 12, 0) == 12);
    for (size_t done = 0; done < 14;) {
        ssize_t n = splice(s, NULL, p[1], NULL, 14 - done, 0);
        CHECK(n > 0);
        done += n;
    }
    expect(p[0], PONG PONG);
    large_value(p);
    FAILS(splice(p[0], NULL, s, NULL, 12, SPLICE_F_NONBLOCK), EAGAIN);
    int flags = fcntl(s, F_GETFL);
    fcntl(s, F_SETFL, flags | O_NONBLOCK);
    FAILS(splice(s, NULL, p[1], NULL, 12, SPLICE_F_NONBLOCK), EAGAIN);
    fcntl(s, F_SETFL, flags);
    loff_t at = 0;
    FAILS(splice(s, NULL, p[1], &at, 12, 0), ESPIPE);
    FAILS(splice(p[0], &at, s, NULL, 12, 0), ESPIPE);
    FAILS(splice(s, &at, p[1], NULL, 12, 0), EINVAL);
    FAILS(splice(p[0], NULL, s, &at, 12, 0), EINVAL);

    FILE *file = tmpfile();
    CHECK(file != NULL);
    int fd = fileno(file);
    CHECK(write(fd, "XX" PING PING, 14) == 14);
    FAILS(splice(s, NULL, fd, NULL, 12, 0), EINVAL);
    off_t from = 8;
    CHECK(sendfile(s, fd, &from, 100) == 6 && from == 14);
    expect(s, PONG);
    CHECK(lseek(fd, 2, SEEK_SET) == 2);
    CHECK(sendfile(s, fd, NULL, 6) == 6 && lseek(fd, 0, SEEK_CUR) == 8);
    expect(s, PONG);
    FAILS(sendfile(fd, s, NULL, 6), EINVAL);
}

static void places(void) {
    char got[8] = {0};
    struct iovec out = {PING, 6}, in = {got, 7};
    CHECK(pwritev2(s, &out, 1, -1, 0) == 6);
    CHECK(recv(s, got, 1, MSG_PEEK) == 1);
    for (size_t done = 0; done < 7;) {
        in = (struct iovec){got + done, 7 - done};
        ssize_t n = preadv2(s, &in, 1, -1, 0);
        CHECK(n > 0);
        done += n;
    }
    CHECK(strcmp(got, PONG) == 0);
    FAILS(preadv(s, &in, 1, 0), ESPIPE);
    FAILS(pwritev(s, &out, 1, 0), ESPIPE);
}

static void limits(void) {
    static struct iovec parts[1025];
    char room[8];
    for (int i = 0; i < 1025; i++) parts[i] = (struct iovec){room, 0};
    FAILS(writev(s, parts, 1025), EINVAL);
    FAILS(readv(s, parts, 1025), EINVAL);
    FAILS(writev(s, parts, -1), EINVAL);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 1025};
    FAILS(sendmsg(s, &message, 0), EMSGSIZE);
    FAILS(recvmsg(s, &message, MSG_DONTWAIT), EMSGSIZE);
    parts[1023] = (struct iovec){PING, 6};
    CHECK(writev(s, parts, 1024) == 6);
    expect(s, PONG);

    char *volatile null = NULL, *volatile beyond = (char *)-4096;
    // Something to read, so that a read gets as far as its pointer.
    CHECK(write(s, PING, 6) == 6);
    CHECK(recv(s, room, 1, MSG_PEEK) == 1);
    FAILS(read(s, null, 5), EFAULT);
    FAILS(recv(s, beyond, 5, 0), EFAULT);
    FAILS(write(s, null, 5), EFAULT);
    FAILS(send(s, beyond, 5, 0), EFAULT);
    FAILS(writev(s, (struct iovec *)null, 1), EFAULT);
    struct iovec bad = {beyond, 5};
    FAILS(writev(s, &bad, 1), EFAULT);
    FAILS(readv(s, &bad, 1), EFAULT);
    CHECK(write(s, null, 0) == 0);
    expect(s, PONG);
    FAILS(recv(s, room, 1, MSG_OOB), EINVAL);
    ping();
}

static int set;

static void change(int op, int fd, int events, int data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    CHECK(epoll_ctl(set, op, fd, &event) == 0);
}

// Which of 1 and 2 are told in one turn.
static int told(int timeout) {
    struct epoll_event events[8];
    int n = epoll_wait(set, events, 8, timeout), all = 0;
    CHECK(n >= 0);
    for (int i = 0; i < n; i++) {
        CHECK(!(all & events[i].data.u64));
        all |= events[i].data.u64;
    }
    return all;
}

static void names(void) {
    int other = dup(s);
    struct epoll_event event = {.events = EPOLLIN};
    set = epoll_create1(0);
    change(EPOLL_CTL_ADD, s, EPOLLIN, 1);
    FAILS(epoll_ctl(set, EPOLL_CTL_MOD, other, &event), ENOENT);
    change(EPOLL_CTL_ADD, other, EPOLLOUT, 2);
    FAILS(epoll_ctl(set, EPOLL_CTL_ADD, other, &event), EEXIST);
    FAILS(epoll_ctl(set, EPOLL_CTL_ADD, s, &event), EEXIST);
    CHECK(told(-1) == 2);
    CHECK(write(s, PING, 6) == 6);
    while (told(-1) != 3) {}
    expect(other, PONG);
    CHECK(told(-1) == 2);
    change(EPOLL_CTL_MOD, other, EPOLLIN, 2);
    CHECK(told(0) == 0);
    CHECK(write(other, PING, 6) == 6);
    while (told(-1) != 3) {}
    expect(s, PONG);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, s, NULL) == 0);
    CHECK(write(s, PING, 6) == 6);
    CHECK(told(-1) == 2);
    expect(s, PONG);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, other, NULL) == 0);
    FAILS(epoll_ctl(set, EPOLL_CTL_DEL, other, NULL), ENOENT);
    CHECK(told(0) == 0);
    close(other);
    ping();
}

static int told_in(int which, int timeout) {
    set = which;
    return told(timeout);
}

static void change_in(int which, int op, int fd, int events, int data) {
    set = which;
    change(op, fd, events, data);
}

static void *waits(void *which) {
    struct epoll_event event;
    while (epoll_wait(*(int *)which, &event, 1, -1) != 1 || event.data.u64 != 9) {}
    return NULL;
}

static void quit(int fd) {
    CHECK(write(fd, "QUIT\r\n", 6) == 6);
    expect(fd, "+OK\r\n");
}

// One connection in two sets: each is told, by its own events, whoever waits in the other one.
static void two_sets(int s) {
    int a = epoll_create1(0), b = epoll_create1(0), other = dup(s);
    struct epoll_event event = {.events = EPOLLIN};
    FAILS(epoll_ctl(a, EPOLL_CTL_DEL, s, NULL), ENOENT);
    FAILS(epoll_ctl(a, EPOLL_CTL_MOD, s, &event), ENOENT);
    FAILS(epoll_ctl(a, EPOLL_CTL_MOD, s, NULL), EFAULT);
    FAILS(epoll_ctl(a, EPOLL_CTL_ADD, s, NULL), EFAULT);
    FAILS(epoll_ctl(a, 9, s, &event), EINVAL);
    change_in(a, EPOLL_CTL_ADD, s, EPOLLIN, 1);
    FAILS(epoll_ctl(b, EPOLL_CTL_MOD, s, &event), ENOENT);
    FAILS(epoll_ctl(b, EPOLL_CTL_DEL, s, NULL), ENOENT);
    change_in(b, EPOLL_CTL_ADD, s, EPOLLIN, 2);
    FAILS(epoll_ctl(b, EPOLL_CTL_ADD, s, &event), EEXIST);
    CHECK(told_in(a, 0) == 0 && told_in(b, 0) == 0);
    // Nobody waits in the first one, then somebody does.
    for (int i = 0; i < 2; i++) {
        CHECK(write(s, "BLPOP none 0.1\r\n", 16) == 16);
        CHECK(told_in(b, -1) == 2 && told_in(b, 0) == 2 && told_in(a, -1) == 1);
        expect(s, "*-1\r\n");
        CHECK(told_in(a, 0) == 0 && told_in(b, 0) == 0);
    }
    pthread_t thread;
    int stop[2];
    CHECK(pipe(stop) == 0);
    change_in(a, EPOLL_CTL_ADD, stop[0], EPOLLIN, 9);
    change_in(a, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLET, 1);
    CHECK(pthread_create(&thread, NULL, waits, &a) == 0);
    for (int i = 0; i < 100; i++) {
        CHECK(write(s, PING, 6) == 6);
        CHECK(told_in(b, -1) == 2);
        expect(s, PONG);
    }
    CHECK(write(stop[1], "x", 1) == 1 && pthread_join(thread, NULL) == 0);
    change_in(a, EPOLL_CTL_DEL, stop[0], 0, 0);
    change_in(a, EPOLL_CTL_MOD, s, EPOLLIN, 1);

    // Edges, one shot, and what can always be written to.
    change_in(b, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLET, 2);
    for (int i = 0; i < 2; i++) {
        CHECK(write(s, PING, 6) == 6);
        CHECK(told_in(b, -1) == 2 && told_in(b, 50) == 0 && told_in(a, -1) == 1);
        expect(s, PONG);
    }
    change_in(b, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLONESHOT, 2);
    CHECK(write(s, PING, 6) == 6);
    CHECK(told_in(b, -1) == 2 && told_in(b, 50) == 0);
    change_in(b, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLONESHOT, 2);
    CHECK(told_in(b, 0) == 2 && told_in(b, 0) == 0);
    expect(s, PONG);
    change_in(b, EPOLL_CTL_MOD, s, EPOLLIN | EPOLLOUT, 2);
    CHECK(told_in(b, 0) == 2 && told_in(a, 0) == 0);
    change_in(b, EPOLL_CTL_ADD, other, EPOLLOUT, 1);
    CHECK(told_in(b, 0) == 3);
    change_in(b, EPOLL_CTL_DEL, other, 0, 0);
    CHECK(told_in(b, 0) == 2);
    change_in(b, EPOLL_CTL_MOD, s, EPOLLIN, 2);

    // Taken out of the first, put back, and the second one closed.
    CHECK(epoll_ctl(a, EPOLL_CTL_DEL, s, NULL) == 0);
    FAILS(epoll_ctl(a, EPOLL_CTL_DEL, s, NULL), ENOENT);
    CHECK(write(s, PING, 6) == 6);
    CHECK(told_in(b, -1) == 2 && told_in(a, 50) == 0);
    change_in(a, EPOLL_CTL_ADD, s, EPOLLIN, 1);
    CHECK(told_in(a, 0) == 1 && told_in(b, 0) == 2);
    expect(s, PONG);
    close(b);
    CHECK(write(s, PING, 6) == 6);
    CHECK(told_in(a, -1) == 1);
    expect(s, PONG);

    // A thread that sleeps in an empty set already.
    b = epoll_create1(0);
    CHECK(pthread_create(&thread, NULL, waits, &b) == 0);
    usleep(50000);
    change_in(b, EPOLL_CTL_ADD, s, EPOLLIN, 9);
    CHECK(write(s, PING, 6) == 6);
    CHECK(pthread_join(thread, NULL) == 0);
    expect(s, PONG);

    // Another name in the second set, which stays when the connection is taken out of the first.
    change_in(b, EPOLL_CTL_MOD, s, EPOLLIN, 2);
    change_in(b, EPOLL_CTL_ADD, other, EPOLLIN, 1);
    change_in(a, EPOLL_CTL_DEL, s, 0, 0);
    CHECK(write(s, PING, 6) == 6);
    while (told_in(b, -1) != 3) {}
    expect(s, PONG);
    change_in(b, EPOLL_CTL_DEL, s, 0, 0);
    CHECK(write(s, PING, 6) == 6);
    CHECK(told_in(b, -1) == 1);
    expect(s, PONG);
    close(b);
    change_in(a, EPOLL_CTL_ADD, s, EPOLLIN, 1);

    // The end is told in both, when the first is closed too.
    b = epoll_create1(0);
    int c = epoll_create1(0);
    change_in(b, EPOLL_CTL_ADD, s, EPOLLIN | EPOLLRDHUP, 2);
    change_in(c, EPOLL_CTL_ADD, other, EPOLLIN | EPOLLET, 1);
    close(a);
    CHECK(write(s, PING, 6) == 6);
    CHECK(told_in(b, -1) == 2 && told_in(c, -1) == 1 && told_in(c, 0) == 0);
    expect(s, PONG);
    quit(s);
    while (told_in(b, -1) != 2 || recv(s, large, 1, MSG_PEEK) != 0) {}
    CHECK(told_in(c, -1) == 1);
    close(other);
    close(s);
    CHECK(told_in(b, 50) == 0 && told_in(c, 0) == 0);
    close(b), close(c);
}

// Edges of a second set tell of the end of what the other side says, whatever they were asked for.
static void no_more_to_read(int s) {
    int a = epoll_create1(0), b = epoll_create1(0);
    change_in(a, EPOLL_CTL_ADD, s, EPOLLIN, 1);
    change_in(b, EPOLL_CTL_ADD, s, EPOLLIN | EPOLLET, 2);
    CHECK(write(s, PING, 6) == 6);
    CHECK(told_in(b, -1) == 2);
    expect(s, PONG);
    CHECK(told_in(b, 50) == 0);
    CHECK(shutdown(s, SHUT_RD) == 0);
    CHECK(told_in(b, -1) == 2 && told_in(b, 50) == 0);
    close(s), close(a), close(b);
}

static int connected(struct sockaddr_in *to) {
    int s = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(s, (struct sockaddr *)to, sizeof *to) == 0);
    return s;
}

static void sets(void) {
    struct sockaddr_in to;
    socklen_t size = sizeof to;
    CHECK(getpeername(s, (struct sockaddr *)&to, &size) == 0);
    two_sets(s);
    // One that has said nothing yet when it comes into both.
    two_sets(connected(&to));
    s = connected(&to);
    ping();
    no_more_to_read(s);
}

#define SETS 3
#define MANY 16

static int many[MANY], in[SETS];
static atomic_int taken[MANY], unread[MANY], pongs;

// The next answer of a connection, if no other thread reads it just now, and the next question.
static void answer(int i) {
    char got[64];
    if (atomic_exchange(&taken[i], 1)) return;
    ssize_t n = recv(many[i], got, sizeof got, MSG_DONTWAIT);
    int why = errno;
    CHECK(n > 0 || (n < 0 && why == EAGAIN));
    for (int all = n < 0 ? 0 : atomic_fetch_add(&unread[i], n) + n; all >= 7; all -= 7) {
        atomic_fetch_sub(&unread[i], 7);
        pongs++;
        CHECK(write(many[i], PING, 6) == 6);
    }
    atomic_store(&taken[i], 0);
}

// Reads what is told in one set, while connections are taken out of it, put into it and changed.
static void *crowd(void *number) {
    int own = (long)number;
    unsigned random = own * 77 + 1;
    while (pongs < 20000) {
        struct epoll_event events[8];
        int n = epoll_wait(in[own], events, 8, rand_r(&random) % 3 ? 20 : 0);
        CHECK(n >= 0);
        for (int i = 0; i < n; i++) {
            CHECK(events[i].data.u32 >> 8 == own);
            answer(events[i].data.u32 & 255);
        }
        if (rand_r(&random) % 8) continue;
        int i = rand_r(&random) % MANY, ops[] = {EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL};
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = own << 8 | i};
        if (rand_r(&random) % 2) event.events |= EPOLLONESHOT;
        int done = epoll_ctl(in[own], ops[rand_r(&random) % 3], many[i], &event), why = errno;
        CHECK(done == 0 || why == EEXIST || why == ENOENT);
    }
    return NULL;
}

// Three threads, each with a set of its own that has all connections in it, or not.
static void crowds(void) {
    struct sockaddr_in to;
    socklen_t size = sizeof to;
    CHECK(getpeername(s, (struct sockaddr *)&to, &size) == 0);
    for (int i = 0; i < SETS; i++) in[i] = epoll_create1(0);
    for (int i = 0; i < MANY; i++) {
        many[i] = connected(&to);
        CHECK(write(many[i], PING, 6) == 6);
        expect(many[i], PONG);
        for (int own = 0; own < SETS; own++) change_in(in[own], EPOLL_CTL_ADD, many[i], EPOLLIN, own << 8 | i);
        CHECK(write(many[i], PING, 6) == 6);
    }
    pthread_t threads[SETS];
    for (long own = 0; own < SETS; own++) CHECK(pthread_create(&threads[own], NULL, crowd, (void *)own) == 0);
    for (int own = 0; own < SETS; own++) CHECK(pthread_join(threads[own], NULL) == 0);
    // Alone in one set again, each is told of there, and nothing in the others.
    for (int i = 0; i < MANY; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        int is_there = epoll_ctl(in[0], EPOLL_CTL_ADD, many[i], &event);
        CHECK(is_there == 0 || epoll_ctl(in[0], EPOLL_CTL_MOD, many[i], &event) == 0);
        for (int own = 1; own < SETS; own++) epoll_ctl(in[own], EPOLL_CTL_DEL, many[i], NULL);
    }
    for (int all = 0; all != (1 << MANY) - 1;) {
        struct epoll_event events[8];
        int n = epoll_wait(in[0], events, 8, -1);
        for (int i = 0; i < n; i++) {
            all |= 1 << events[i].data.u32;
            answer(events[i].data.u32);
        }
    }
    for (int own = 1; own < SETS; own++) CHECK(told_in(in[own], 20) == 0);
}

// The doorbell of what was written waits for the end of the turn, and is not the child's to ring.
static void forks(void) {
    set = epoll_create1(0);
    change(EPOLL_CTL_ADD, s, EPOLLIN, 1);
    CHECK(told(0) == 0);
    for (int i = 0; i < 10; i++) {
        usleep(20000); // Most often the server sleeps by then, and has to be rung.
        CHECK(write(s, PING, 6) == 6);
        pid_t pid = _Fork();
        if (pid == 0) {
            usleep(1);
            _exit(0);
        }
        int status;
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
        CHECK(status == 0);
        while (told(-1) != 1) {}
        expect(s, PONG);
    }
}

static volatile ssize_t wrote;

static void writes(int number) {
    struct iovec parts[] = {{"PI", 2}, {"NG\r\n", 4}};
    wrote = writev(s, parts, 2);
}

// A handler on a stack of its own, with 12 KB beside what the kernel puts there, and nothing below it.
static void stack(void) {
    size_t page = sysconf(_SC_PAGESIZE), room = getauxval(AT_MINSIGSTKSZ);
    room = (room + 12 * 1024 + page - 1) / page * page;
    char *low = mmap(NULL, page + room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(low != MAP_FAILED && mprotect(low, page, PROT_NONE) == 0);
    stack_t own = {.ss_sp = low + page, .ss_size = room};
    CHECK(sigaltstack(&own, NULL) == 0);
    struct sigaction action = {.sa_handler = writes, .sa_flags = SA_ONSTACK};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && raise(SIGUSR1) == 0);
    CHECK(wrote == 6);
    expect(s, PONG);
}

int main(int count, char **words) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    s = connected(&to);
    ping();
    puts("good");
    fflush(stdout);
    if (getchar() == EOF) return 0;
    char *part = words[2];
    if (!strcmp(part, "messages")) messages();
    else if (!strcmp(part, "pipes")) pipes();
    else if (!strcmp(part, "places")) places();
    else if (!strcmp(part, "limits")) limits();
    else if (!strcmp(part, "names")) names();
    else if (!strcmp(part, "sets")) sets();
    else if (!strcmp(part, "crowds")) crowds();
    else if (!strcmp(part, "forks")) forks();
    else if (!strcmp(part, "stack")) stack();
    else return 2;
    puts("right");
    return 0;
}
