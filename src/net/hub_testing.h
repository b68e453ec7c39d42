/* A hub for tests, and the host of its large files: two servers in this process, each on
 * its own port. They implement what kedge uses: the list of a repository, files by
 * redirection with a signature, ranges; and the faults that a test sets.
 *
 * They handle one connection at a time and close it. Included by *_test.c only.
 */
#ifndef KG_NET_HUB_TESTING_H
#define KG_NET_HUB_TESTING_H

#include "base/hash.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HUB_COMMIT "0123456789abcdef0123456789abcdef01234567"

enum { HUB_HOST, HUB_STORE, HUB_HOSTS, HUB_FILES = 16, HUB_LOG_BYTES = 1 << 16 };

struct hub_file {
    const char *path;
    const char *bytes; /* borrowed */
    size_t n;
    bool lfs;
};

/* Behaviour of the servers; set before a pull. */
struct hub_manners {
    struct hub_file files[HUB_FILES];
    int n;
    const char *commit; /* NULL: HUB_COMMIT */
    bool no_ranges;     /* always 200 and the whole file */
    int cuts;           /* number of file bodies that end early */
    size_t cut_after;   /* bytes of each */
    bool hold;          /* of LFS files, then wait until hub_holds is false */
    bool flip;          /* flip a bit in a file of the store */
    bool refuses;       /* the store: 403 */
    size_t longer;      /* bytes that the list adds */
    const char *list;   /* NULL, or the list's body */
    const char *answer; /* NULL, or status line and header of every answer of the hub */
    const char *page;   /* its body */
    const char *file_answer, *file_page; /* the same for files only */
    const char *location;                /* NULL, or the address given for LFS files */
    bool renamed; /* "tiny" was renamed org/tiny: its old name is redirected */
};
static struct hub_manners hub;
static atomic_bool hub_holds;

static struct {
    int fd, port;
    pthread_t thread;
} hub_hosts[HUB_HOSTS];
static pthread_mutex_t hub_mutex = PTHREAD_MUTEX_INITIALIZER;
static char hub_log[HUB_LOG_BYTES]; /* "HOST PATH range=.. key=..\n" of every request */

static inline void hub_say(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);

        if (sent <= 0)
            return;
        bytes += sent;
        n -= (size_t)sent;
    }
}

static inline void hub_reply(int fd, const char *head, const char *body)
{
    char text[4096];

    snprintf(text, sizeof text,
             "HTTP/1.1 %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", head,
             strlen(body));
    hub_say(fd, text, strlen(text));
    hub_say(fd, body, strlen(body));
}

/* The digest by which the hub identifies the file. */
static inline void hub_digest(char text[KG_DIGEST_TEXT], const struct hub_file *f)
{
    struct kg_digest d;
    char head[40];

    kg_digest_begin(&d, f->lfs ? KG_SHA256 : KG_SHA1);
    snprintf(head, sizeof head, "blob %zu", f->n);
    if (!f->lfs)
        kg_digest_put(&d, head, strlen(head) + 1);
    kg_digest_put(&d, f->bytes, f->n);
    kg_digest_end(text, &d);
}

static inline void hub_reply_list(int fd)
{
    char text[8192], digest[KG_DIGEST_TEXT];
    size_t n = (size_t)snprintf(text, sizeof text,
                                "{\"id\": \"org/tiny\", \"sha\": \"%s\", "
                                "\"siblings\": [",
                                hub.commit ? hub.commit : HUB_COMMIT);

    for (int i = 0; i < hub.n; i++) {
        const struct hub_file *f = &hub.files[i];

        hub_digest(digest, f);
        n += (size_t)snprintf(
            text + n, sizeof text - n,
            "%s{\"rfilename\": \"%s\", \"size\": %zu, \"blobId\": \"%.40s\"",
            i ? ", " : "", f->path, f->n + hub.longer, digest);
        if (f->lfs)
            n += (size_t)snprintf(text + n, sizeof text - n,
                                  ", \"lfs\": {\"sha256\": \"%s\", \"size\": %zu, "
                                  "\"pointerSize\": 134}",
                                  digest, f->n + hub.longer);
        n += (size_t)snprintf(text + n, sizeof text - n, "}");
    }
    snprintf(text + n, sizeof text - n, "]}");
    hub_reply(fd, "200 OK\r\nContent-Type: application/json", text);
}

/* Replies with the bytes from the requested offset on, or with all. */
static inline void hub_reply_bytes(int fd, const struct hub_file *f, const char *range)
{
    size_t first = 0, last = f->n - 1, n, sent;
    char head[256];
    bool part = range && !hub.no_ranges && sscanf(range, "%zu-", &first) == 1;

    if (part && first >= f->n) {
        hub_reply(fd, "416 Range Not Satisfiable", "");
        return;
    }
    n = part ? last - first + 1 : f->n;
    first = part ? first : 0;
    if (part)
        snprintf(head, sizeof head,
                 "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes %zu-%zu/%zu\r\n"
                 "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                 first, last, f->n, n);
    else
        snprintf(head, sizeof head,
                 "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
                 n);
    hub_say(fd, head, strlen(head));
    sent = (hub.cuts > 0 || (hub.hold && hub_holds && f->lfs)) && hub.cut_after < n
               ? hub.cut_after
               : n;
    hub.cuts -= sent < n && hub.cuts > 0;
    if (hub.flip && f->lfs && n > 0) {
        char other = (char)(f->bytes[first] ^ 1);

        hub_say(fd, &other, 1);
        hub_say(fd, f->bytes + first + 1, sent - 1);
    } else {
        hub_say(fd, f->bytes + first, sent);
    }
    while (hub.hold && f->lfs && hub_holds)
        usleep(1000);
}

/* The file with the longest path that ends the request's path (without its query). */
static inline const struct hub_file *hub_find(const char *path)
{
    const struct hub_file *found = NULL;
    size_t n = strcspn(path, "?"), longest = 0;

    for (int i = 0; i < hub.n; i++) {
        size_t m = strlen(hub.files[i].path);

        if (m <= longest || n <= m || path[n - m - 1] != '/' ||
            strncmp(path + n - m, hub.files[i].path, m) != 0)
            continue;
        found = &hub.files[i];
        longest = m;
    }
    return found;
}

/* Address of a file: ROOM/PATH?Signature=sesame. */
static inline void hub_redirect(int fd, const struct hub_file *f)
{
    char head[512];

    if (hub.location)
        snprintf(head, sizeof head, "302 Found\r\nLocation: %s", hub.location);
    else
        snprintf(head, sizeof head,
                 "302 Found\r\nX-Linked-Size: %zu\r\nLocation: "
                 "http://127.0.0.1:%d/store/%s?Signature=sesame",
                 f->n, hub_hosts[HUB_STORE].port, f->path);
    hub_reply(fd, head, "");
}

static inline void hub_reply_file(int fd, int host, const struct hub_file *f,
                                  const char *range)
{
    if (host == HUB_STORE && hub.refuses)
        hub_reply(fd, "403 Forbidden\r\nContent-Type: application/xml",
                  "<Error>Request has expired</Error>");
    else if (host == HUB_HOST && f->lfs)
        hub_redirect(fd, f);
    else
        hub_reply_bytes(fd, f, range);
}

/* Rewrites a request with the old name, NAME, to the new name, ORG/NAME. */
static inline const char *hub_old_name(const char *path)
{
    return hub.renamed && !strstr(path, "/org/") ? strstr(path, "/tiny/") : NULL;
}

static inline void hub_reply_renamed(int fd, const char *path, const char *name)
{
    char head[2200];

    snprintf(head, sizeof head, "307 Temporary Redirect\r\nLocation: %.*s/org%s",
             (int)(name - path), path, name);
    hub_reply(fd, head, "");
}

static inline void hub_answer(int fd, int host, const char *path, const char *range)
{
    const struct hub_file *f = hub_find(path);
    const char *old = host == HUB_HOST ? hub_old_name(path) : NULL;

    if (old)
        hub_reply_renamed(fd, path, old);
    else if (host == HUB_HOST && hub.answer)
        hub_reply(fd, hub.answer, hub.page ? hub.page : "");
    else if (strncmp(path, "/api/", 5) == 0 && hub.list)
        hub_reply(fd, "200 OK\r\nContent-Type: application/json", hub.list);
    else if (strncmp(path, "/api/", 5) == 0)
        hub_reply_list(fd);
    else if (hub.file_answer)
        hub_reply(fd, hub.file_answer, hub.file_page ? hub.file_page : "");
    else if (f)
        hub_reply_file(fd, host, f, range);
    else
        hub_reply(fd, "404 Not Found\r\nX-Error-Code: EntryNotFound",
                  "{\"error\": \"none\"}");
}

/* The value of a header field, terminated in place, or NULL. */
static inline char *hub_field(char *head, const char *name)
{
    char *at = strstr(head, name);

    if (!at)
        return NULL;
    at += strlen(name);
    at[strcspn(at, "\r\n")] = '\0';
    return at;
}

static inline void hub_serve(int fd, int host)
{
    char head[8192], path[2048], copy[8192], *range, *key;
    size_t n = 0, log = strlen(hub_log);

    while (n < sizeof head - 1) {
        ssize_t got = recv(fd, head + n, sizeof head - 1 - n, 0);

        if (got <= 0)
            return;
        n += (size_t)got;
        head[n] = '\0';
        if (strstr(head, "\r\n\r\n"))
            break;
    }
    if (sscanf(head, "GET %2047s", path) != 1)
        return;
    memcpy(copy, head, sizeof copy);
    key = hub_field(copy, "\r\nAuthorization: ");
    range = hub_field(head, "\r\nRange: bytes=");
    snprintf(hub_log + log, sizeof hub_log - log, "%s %s range=%s key=%s\n",
             host == HUB_HOST ? "hub" : "store", path, range ? range : "",
             key ? key : "");
    hub_answer(fd, host, path, range);
}

static inline void *hub_run(void *user)
{
    int host = (int)(intptr_t)user;

    while (true) {
        int fd = accept(hub_hosts[host].fd, NULL, NULL);

        if (fd < 0)
            return NULL;
        pthread_mutex_lock(&hub_mutex);
        hub_serve(fd, host);
        pthread_mutex_unlock(&hub_mutex);
        shutdown(fd, SHUT_WR);
        close(fd);
    }
}

/* returns 0, or 1 if no port is free */
static inline int hub_start(void)
{
    for (int i = 0; i < HUB_HOSTS; i++) {
        struct sockaddr_in a = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t n = sizeof a;

        hub_hosts[i].fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (hub_hosts[i].fd < 0 || bind(hub_hosts[i].fd, (struct sockaddr *)&a, n) != 0 ||
            listen(hub_hosts[i].fd, 64) != 0 ||
            getsockname(hub_hosts[i].fd, (struct sockaddr *)&a, &n) != 0)
            return 1;
        hub_hosts[i].port = ntohs(a.sin_port);
        if (pthread_create(&hub_hosts[i].thread, NULL, hub_run, (void *)(intptr_t)i) != 0)
            return 1;
    }
    return 0;
}

static inline void hub_stop(void)
{
    for (int i = 0; i < HUB_HOSTS; i++) {
        shutdown(hub_hosts[i].fd, SHUT_RDWR);
        pthread_join(hub_hosts[i].thread, NULL);
        close(hub_hosts[i].fd);
    }
}

static inline void hub_add(const char *path, const char *bytes, size_t n, bool lfs)
{
    hub.files[hub.n++] = (struct hub_file){path, bytes, n, lfs};
}

/* Number of times that the log contains the words. */
static inline int hub_count(const char *words)
{
    int n = 0;

    pthread_mutex_lock(&hub_mutex);
    for (const char *p = hub_log; (p = strstr(p, words)); p++)
        n++;
    pthread_mutex_unlock(&hub_mutex);
    return n;
}

/* Number of requests to a host whose key begins with this: "" all, "\n" those without a
 * key. */
static inline int hub_count_keys(const char *host, const char *key)
{
    int n = 0;

    pthread_mutex_lock(&hub_mutex);
    for (const char *p = hub_log; *p; p = strchr(p, '\n') + 1) {
        const char *found = strstr(p, " key=");

        n += strncmp(p, host, strlen(host)) == 0 && p[strlen(host)] == ' ' &&
             strncmp(found + 5, key, strlen(key)) == 0;
    }
    pthread_mutex_unlock(&hub_mutex);
    return n;
}

/* Resets the servers: no faults and an empty log. */
static inline void hub_reset(void)
{
    pthread_mutex_lock(&hub_mutex);
    memset(&hub, 0, sizeof hub);
    hub_log[0] = '\0';
    pthread_mutex_unlock(&hub_mutex);
}

#endif
