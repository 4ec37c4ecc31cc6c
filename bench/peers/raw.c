/* The loop of raw_server.py on epoll and send(): what the kernel leaves of a core.

   cc -O2 -o raw raw.c && ./raw
   Prints `listening on PORT and PORT`: clients, and what to write (length, client number, both
   int32 in network order, -1 for every client; then the bytes). */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 65536           /* descriptors */
#define BACKLOG (4 << 20)    /* bytes that wait for one client before no more are taken in */
#define PIECE (256 << 10)

static const char SSE[] =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-store\r\n"
    "transfer-encoding: chunked\r\n\r\n";
static const char WS[] =
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

struct client {
    char *waiting; /* what the socket did not take */
    size_t from, size, room;
    int place; /* in `open`, or -1 */
    int number;
};

static struct client clients[MOST];
static int open_fds[MOST], opened, numbered[MOST], poller, full;

static void check(int failed, const char *what) {
    if (failed) {
        perror(what);
        exit(1);
    }
}

static void watch(int fd, uint32_t events, int how) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    check(epoll_ctl(poller, how, fd, &event) < 0, "epoll_ctl");
}

static int listening(int *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    check(fd < 0 || bind(fd, (void *)&at, size) < 0 || listen(fd, 2048) < 0, "listen");
    getsockname(fd, (void *)&at, &size);
    *port = ntohs(at.sin_port);
    watch(fd, EPOLLIN, EPOLL_CTL_ADD);
    return fd;
}

static void forget(int fd) {
    struct client *c = &clients[fd];
    if (c->place >= 0) {
        int last = open_fds[--opened];
        open_fds[c->place] = last;
        clients[last].place = c->place;
        numbered[c->number] = 0;
    }
    if (c->size > BACKLOG) full--;
    free(c->waiting);
    memset(c, 0, sizeof *c);
    c->place = -1;
    close(fd);
}

static void later(int fd, const char *data, size_t size) {
    struct client *c = &clients[fd];
    if (c->from + c->size + size > c->room) {
        memmove(c->waiting, c->waiting + c->from, c->size);
        c->from = 0;
        if (c->size + size > c->room)
            c->waiting = realloc(c->waiting, c->room = 2 * (c->size + size));
    }
    if (!c->size) watch(fd, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
    memcpy(c->waiting + c->from + c->size, data, size);
    if (c->size <= BACKLOG && c->size + size > BACKLOG) full++;
    c->size += size;
}

static void put(int fd, const char *data, size_t size) {
    ssize_t taken = 0;
    if (!clients[fd].size) {
        taken = send(fd, data, size, MSG_NOSIGNAL);
        if (taken < 0 && errno != EAGAIN) return; /* epoll tells of its end */
        if (taken < 0) taken = 0;
    }
    if ((size_t)taken < size) later(fd, data + taken, size - taken);
}

static void drain(int fd) {
    struct client *c = &clients[fd];
    ssize_t taken = send(fd, c->waiting + c->from, c->size, MSG_NOSIGNAL);
    if (taken <= 0) return;
    if (c->size > BACKLOG && c->size - taken <= BACKLOG) full--;
    c->from += taken;
    c->size -= taken;
    if (!c->size) {
        c->from = 0;
        watch(fd, EPOLLIN, EPOLL_CTL_MOD);
    }
}

static void answer(int fd) {
    static char request[65536];
    ssize_t size = recv(fd, request, sizeof request - 1, 0);
    if (size == 0 || (size < 0 && errno != EAGAIN)) {
        forget(fd);
        return;
    }
    struct client *c = &clients[fd];
    if (size < 5 || c->place >= 0 || memcmp(request, "GET /", 5)) return;
    request[size] = 0;
    c->number = atoi(request + 5) % MOST;
    c->place = opened;
    open_fds[opened++] = fd;
    numbered[c->number] = fd;
    if (strstr(request, "Upgrade"))
        put(fd, WS, sizeof WS - 1);
    else
        put(fd, SSE, sizeof SSE - 1);
}

static char *told;
static size_t told_size, told_room;

static int tell(int fd) { /* 0 when it has ended */
    if (told_room < told_size + PIECE) told = realloc(told, told_room = 2 * (told_size + PIECE));
    ssize_t more = recv(fd, told + told_size, PIECE, 0);
    if (more < 0) return 1;
    told_size += more;
    size_t at = 0;
    while (told_size - at >= 8) {
        int32_t head[2];
        memcpy(head, told + at, 8);
        size_t size = ntohl(head[0]);
        int client = (int32_t)ntohl(head[1]);
        if (told_size - at < 8 + size) break;
        if (client < 0)
            for (int n = 0; n < opened; n++) put(open_fds[n], told + at + 8, size);
        else if (client < MOST && numbered[client])
            put(numbered[client], told + at + 8, size);
        at += 8 + size;
    }
    memmove(told, told + at, told_size -= at);
    return more > 0;
}

int main(void) {
    int port, control_port, one = 1, control = -1, waits = 0;
    poller = epoll_create1(0);
    int serving = listening(&port), telling = listening(&control_port);
    for (int n = 0; n < MOST; n++) clients[n].place = -1;
    printf("listening on %d and %d\n", port, control_port);
    fflush(stdout);
    for (;;) {
        struct epoll_event events[512];
        int count = epoll_wait(poller, events, 512, -1);
        for (int n = 0; n < count; n++) {
            int fd = events[n].data.fd;
            if (fd == serving || fd == telling) {
                int client = accept4(fd, NULL, NULL, SOCK_NONBLOCK);
                if (client < 0) continue;
                check(client >= MOST, "too many clients");
                setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                watch(client, EPOLLIN, EPOLL_CTL_ADD);
                if (fd == telling) control = client;
            } else if (fd == control) {
                if (!tell(fd)) {
                    close(fd);
                    control = -1;
                }
            } else {
                if (events[n].events & EPOLLOUT && clients[fd].size) drain(fd);
                if (events[n].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) answer(fd);
            }
        }
        /* As a transport would: no more is taken in while a client is far behind. */
        if (control >= 0 && !!full != waits) {
            waits = !!full;
            watch(control, waits ? 0 : EPOLLIN, EPOLL_CTL_MOD);
        }
    }
}
