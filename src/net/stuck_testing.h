/* A server that never answers a request: a listening socket without accept.
 *
 * Included by *_test.c only.
 */
#ifndef KG_NET_STUCK_TESTING_H
#define KG_NET_STUCK_TESTING_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <cmocka.h>

/* Listens on the loopback; *port gets the port.   returns the descriptor to close */
static inline int open_stuck(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

/* Returns when a client has connected. */
static inline void until_asked(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    assert_int_equal(poll(&p, 1, 60000), 1);
}

#endif
