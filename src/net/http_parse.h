/* The bytes of HTTP/1.1: the head of a request, and the chunked coding of its body.
 *
 * Pure functions of bytes, without sockets or clocks, so that a fuzzer reaches all of
 * them. The parser refuses input that two parsers could read differently, where RFC 9112
 * lets a server be strict: bare line feeds, folded fields, a length with a transfer
 * coding, spaces before the colon. A refusal is an HTTP status and a reason in words.
 */
#ifndef KG_NET_HTTP_PARSE_H
#define KG_NET_HTTP_PARSE_H

#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KG_HTTP_MAX_FIELDS = 100, KG_HTTP_MAX_CHUNK_EXTRAS = 8192 };

struct kg_http_field {
    const char *name; /* name as written; compared without case */
    const char *value;
};

/* All text points into the parsed bytes. */
struct kg_http_head {
    const char *method;
    const char *path;  /* %XX decoded, without the query */
    const char *query; /* "" for none */
    const char *host;  /* host in the target, else in the Host field; NULL: none */
    struct kg_http_field fields[KG_HTTP_MAX_FIELDS];
    int n_fields;
    bool keep_alive;       /* depends on the version and the Connection field */
    bool chunked;          /* the body comes in chunks */
    uint64_t length;       /* length of a body that is not chunked */
    bool expects_continue; /* the client sends the body only after 100 Continue */
    bool old;              /* HTTP/1.0: no chunks */
};

/* Bytes of the head at the start of data, including the empty line; 0 if incomplete.
 * *seen: bytes already searched, kept between calls, 0 at first */
size_t kg_http_head_length(const char *data, size_t n, size_t *seen);

/* Parses a complete head in place: data is split into strings.
 * returns 0, or the HTTP status of the refusal and *why (static text) */
int kg_http_head_parse(struct kg_http_head *h, char *data, size_t n, const char **why);

const char *kg_http_head_field(const struct kg_http_head *h, const char *name);

enum kg_http_chunk_state {
    KG_HTTP_CHUNK_SIZE, /* {0}: before the first digit of a size */
    KG_HTTP_CHUNK_DIGITS,
    KG_HTTP_CHUNK_EXTENSION,
    KG_HTTP_CHUNK_SIZE_LF,
    KG_HTTP_CHUNK_DATA,
    KG_HTTP_CHUNK_DATA_CR,
    KG_HTTP_CHUNK_DATA_LF,
    KG_HTTP_CHUNK_LINE, /* at the start of a line of the trailer */
    KG_HTTP_CHUNK_TRAILER,
    KG_HTTP_CHUNK_TRAILER_LF,
    KG_HTTP_CHUNK_LAST_LF,
    KG_HTTP_CHUNK_DONE
};

struct kg_http_chunks {
    enum kg_http_chunk_state state;
    uint64_t left; /* bytes left in this chunk */
    size_t extras; /* bytes of extensions and trailers so far */
};

/* Consumes *used of n bytes of a chunked body. Appends the data to body, which may have
 * at most max bytes.   returns 0 (the body is complete in state DONE), or the HTTP status
 * of the refusal and *why */
int kg_http_chunks_feed(struct kg_http_chunks *c, struct kg_str *body, size_t max,
                        const char *data, size_t n, size_t *used, const char **why);

/* Host names as HTTP writes them: "host", "host:port", "[::1]:port".
 *
 * Browsers let any web page send requests to local servers, and a stranger's domain name
 * may resolve to 127.0.0.1 (DNS rebinding). Two headers of the browser reveal both: Host,
 * the name that was requested, and Origin, the page that sent the request.
 */

/* localhost, a subdomain of it, 127.0.0.0/8 or ::1, with or without a port. */
bool kg_http_host_is_local(const char *host);
/* Whether host, without its port, is in the comma-separated list `names`; "*" matches
 * any. NULL: no names. */
bool kg_http_host_is_among(const char *host, const char *names);
/* The host of an Origin, "http://host:port"; NULL if there is none, as in "null". */
const char *kg_http_origin_host(const char *origin);
/* Appends an address as in a URL: [::1] for ::1. */
kg_status kg_http_put_host(struct kg_str *out, const char *address,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
