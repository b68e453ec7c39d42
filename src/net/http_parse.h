/* The bytes of HTTP/1.1: the head of a request, and the chunked coding of its body.
 *
 * No socket, no clock: functions of bytes, so that a fuzzer reaches all of them. Strict
 * where RFC 9112 lets a server be strict (bare line feeds, folded fields, a length beside
 * a transfer coding, spaces before the colon): what two readers could read in two ways is
 * refused. A refusal is the HTTP status to answer with and a reason in words.
 */
#ifndef KG_NET_HTTP_PARSE_H
#define KG_NET_HTTP_PARSE_H

#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KG_HTTP_MAX_FIELDS = 100, KG_HTTP_MAX_CHUNK_EXTRAS = 8192 };

struct kg_http_field {
    const char *name; /* as written; compared without case */
    const char *value;
};

/* All text borrowed from the bytes that were parsed. */
struct kg_http_head {
    const char *method;
    const char *path;  /* %XX decoded, without the query */
    const char *query; /* "" for none */
    const char *host; /* whom it is for: of the target, else of the Host field; or NULL */
    struct kg_http_field fields[KG_HTTP_MAX_FIELDS];
    int n_fields;
    bool keep_alive;       /* what the version and the Connection field ask for */
    bool chunked;          /* the body comes in chunks */
    uint64_t length;       /* of a body that is not chunked */
    bool expects_continue; /* the client waits for a word before it sends its body */
    bool old;              /* HTTP/1.0: knows no chunks */
};

/* Bytes of the head at the front of data, the empty line included; 0 when it is not
 * complete. *seen: what was searched in vain, to be kept from call to call, 0 at first */
size_t kg_http_head_length(const char *data, size_t n, size_t *seen);

/* Parse a complete head in place: data is cut into strings.
 * returns 0, or the status to refuse with and *why (static text) */
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
    uint64_t left; /* of the chunk's data */
    size_t extras; /* bytes of extensions and trailers so far */
};

/* Take bytes of a chunked body: *used of n; data goes to body, of at most max bytes.
 * returns 0 (done when c->state says so), or the status to refuse with and *why */
int kg_http_chunks_feed(struct kg_http_chunks *c, struct kg_str *body, size_t max,
                        const char *data, size_t n, size_t *used, const char **why);

#endif
