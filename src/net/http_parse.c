/* The bytes of HTTP/1.1, in place and in one pass. Source: RFC 9110 and RFC 9112. Ends of
 * lines and names become NULs and fields point into the buffer, so a head costs no
 * allocation. A chunked body is a state machine, so its bytes may be split anywhere.
 * Fields with a meaning (length, coding, host, connection) are collected and checked
 * together at the end, because attackers use contradictions between them. */
#include "net/http_parse.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

static int refuse(const char **why, int status, const char *reason)
{
    *why = reason;
    return status;
}

/* ---- the head ---- */

/* The head ends at a line feed that another follows, with or without a carriage return
 * between. A malformed head ends there too; kg_http_head_parse refuses it. */
size_t kg_http_head_length(const char *data, size_t n, size_t *seen)
{
    for (size_t i = *seen; i < n; i++) {
        size_t next = i + 1;
        if (data[i] != '\n')
            continue;
        if (next < n && data[next] == '\r')
            next++;
        if (next < n && data[next] == '\n')
            return next + 1;
    }
    *seen = n > 2 ? n - 2 : 0;
    return 0;
}

static bool is_token(const char *text)
{
    static const char other[] = "!#$%&'*+-.^_`|~";
    if (*text == '\0')
        return false;
    for (; *text; text++) {
        char c = *text;
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && !kg_char_in(other, c))
            return false;
    }
    return true;
}

/* Tabs are the only control characters that a value may hold. */
static bool is_field_text(const char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return false;
    }
    return true;
}

/* Cuts off the next line, and replaces its CR LF by a NUL.   returns NULL if it ends
 * otherwise */
static char *next_line(char **at, char *end)
{
    char *line = *at;
    char *lf = memchr(line, '\n', (size_t)(end - line));
    if (lf == NULL || lf == line || lf[-1] != '\r')
        return NULL;
    lf[-1] = '\0';
    *at = lf + 1;
    return strlen(line) == (size_t)(lf - 1 - line) ? line : NULL; /* a NUL inside */
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool decode_path(char *path)
{
    char *out = path;
    for (const char *in = path; *in; in++) {
        char c = *in;
        if (c == '%') {
            int high = hex_digit(in[1]);
            int low = high < 0 ? -1 : hex_digit(in[2]);
            if (low < 0 || (high == 0 && low == 0))
                return false;
            c = (char)(high * 16 + low);
            in += 2;
        }
        *out++ = c;
    }
    *out = '\0';
    return true;
}

static size_t scheme_length(const char *target)
{
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (strncasecmp(target, schemes[i], strlen(schemes[i])) == 0)
            return strlen(schemes[i]);
    return 0;
}

/* "http://host:port/path", the form for proxies: moves the host down by one byte to make
 * room for its NUL.   returns the rest, or NULL */
static char *cut_host(struct kg_http_head *h, char *target, size_t scheme_n)
{
    char *host = target + scheme_n - 1;
    size_t n = strcspn(host + 1, "/?");
    if (n == 0 || memchr(host + 1, '@', n))
        return NULL;
    memmove(host, host + 1, n);
    host[n] = '\0';
    h->host = host;
    return host + 1 + n;
}

static int parse_target(struct kg_http_head *h, char *target, const char **why)
{
    size_t scheme_n = scheme_length(target);
    for (const char *c = target; *c; c++)
        if ((unsigned char)*c <= 0x20 || *c == 0x7f)
            return refuse(why, 400, "control character in the path");
    if (scheme_n > 0)
        target = cut_host(h, target, scheme_n);
    if (target == NULL || (target[0] != '/' && scheme_n == 0))
        return refuse(why, 400, "expected a path that begins with '/', or http://HOST/");
    char *mark = strchr(target, '?');
    h->query = "";
    if (mark) {
        *mark = '\0';
        h->query = mark + 1;
    }
    if (!decode_path(target))
        return refuse(why, 400, "expected two hexadecimal digits after % in the path");
    h->path = *target ? target : "/";
    return 0;
}

static int parse_request_line(struct kg_http_head *h, char *line, const char **why)
{
    char *target = line ? strchr(line, ' ') : NULL;
    char *version = target ? strchr(target + 1, ' ') : NULL;
    if (version == NULL)
        return refuse(why, 400,
                      "expected a request line 'METHOD /path HTTP/1.1' ended by CR LF");
    *target++ = '\0';
    *version++ = '\0';
    h->method = line;
    if (!is_token(line))
        return refuse(why, 400, "the method is not a word");
    if (strncmp(version, "HTTP/", 5) != 0)
        return refuse(why, 400, "expected a request line that ends in HTTP/1.1");
    h->old = strcmp(version, "HTTP/1.0") == 0;
    if (!h->old && strcmp(version, "HTTP/1.1") != 0)
        return refuse(why, 505, "expected HTTP/1.1 or HTTP/1.0");
    h->keep_alive = !h->old;
    return parse_target(h, target, why);
}

static int parse_field(struct kg_http_head *h, char *line, const char **why)
{
    char *colon = line ? strchr(line, ':') : NULL;
    if (colon == NULL)
        return refuse(why, 400, "expected header lines 'Name: value' ended by CR LF");
    if (h->n_fields == KG_HTTP_MAX_FIELDS)
        return refuse(why, 431, "more than 100 header fields");
    *colon = '\0';
    char *value = colon + 1;
    value += strspn(value, " \t");
    size_t n = strlen(value);
    while (n > 0 && (value[n - 1] == ' ' || value[n - 1] == '\t'))
        value[--n] = '\0';
    if (!is_token(line))
        return refuse(why, 400, "the name of a header field is not a word");
    if (!is_field_text(value))
        return refuse(why, 400, "control character in a header field");
    h->fields[h->n_fields++] = (struct kg_http_field){line, value};
    return 0;
}

/* Whether a comma-separated list contains the word, in any case. */
static bool list_has(const char *list, const char *word)
{
    size_t n = strlen(word);
    while (*list) {
        list += strspn(list, ", \t");
        size_t len = strcspn(list, ", \t");
        if (len == n && strncasecmp(list, word, n) == 0)
            return true;
        list += len;
    }
    return false;
}

static bool parse_length(uint64_t *length, const char *text)
{
    *length = 0;
    if (*text == '\0')
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || *length > UINT64_MAX / 10 - 1)
            return false;
        *length = *length * 10 + (uint64_t)(*text - '0');
    }
    return true;
}

struct known_fields {
    int lengths, codings, hosts;
};

static int take_known(struct kg_http_head *h, struct known_fields *known,
                      const struct kg_http_field *f, const char **why)
{
    if (strcasecmp(f->name, "content-length") == 0) {
        known->lengths++;
        if (!parse_length(&h->length, f->value))
            return refuse(why, 400, "Content-Length: expected digits");
    } else if (strcasecmp(f->name, "transfer-encoding") == 0) {
        known->codings++;
        h->chunked = true;
        if (strcasecmp(f->value, "chunked") != 0)
            return refuse(why, 501, "Transfer-Encoding: expected chunked");
    } else if (strcasecmp(f->name, "host") == 0) {
        known->hosts++;
        h->host = h->host ? h->host : f->value; /* the target's host has precedence */
    } else if (strcasecmp(f->name, "connection") == 0) {
        if (list_has(f->value, "close"))
            h->keep_alive = false;
    } else if (strcasecmp(f->name, "expect") == 0) {
        if (strcasecmp(f->value, "100-continue") != 0)
            return refuse(why, 417, "Expect: expected 100-continue");
        h->expects_continue = !h->old;
    }
    return 0;
}

int kg_http_head_parse(struct kg_http_head *h, char *data, size_t n, const char **why)
{
    struct known_fields known = {0};
    char *at = data;
    char *end = data + n;
    memset(h, 0, sizeof *h);
    int status = parse_request_line(h, next_line(&at, end), why);
    while (status == 0) {
        char *line = next_line(&at, end);
        if (line && *line == '\0') {
            if (known.lengths + known.codings > 1)
                return refuse(why, 400,
                              "more than one Content-Length or Transfer-Encoding");
            if (h->old && known.codings > 0)
                return refuse(why, 400, "HTTP/1.0 has no Transfer-Encoding");
            if (known.hosts > 1 || (known.hosts == 0 && !h->old))
                return refuse(why, 400, "expected one Host field");
            return 0;
        }
        status = parse_field(h, line, why);
        if (status == 0)
            status = take_known(h, &known, &h->fields[h->n_fields - 1], why);
    }
    return status;
}

const char *kg_http_head_field(const struct kg_http_head *h, const char *name)
{
    for (int i = 0; i < h->n_fields; i++)
        if (strcasecmp(h->fields[i].name, name) == 0)
            return h->fields[i].value;
    return NULL;
}

/* ---- chunks ---- */

static const char bad_chunk[] =
    "chunked body: expected a size in hexadecimal digits, CR LF, that many bytes, CR LF";

static int feed_size(struct kg_http_chunks *c, char byte, const char **why)
{
    int digit = hex_digit(byte);
    if (digit >= 0) {
        if (c->left >> 56)
            return refuse(why, 413, "chunked body: the size of a chunk is too large");
        c->left = c->left * 16 + (uint64_t)digit;
        c->state = KG_HTTP_CHUNK_DIGITS;
        return 0;
    }
    if (c->state == KG_HTTP_CHUNK_SIZE)
        return refuse(why, 400, bad_chunk);
    if (byte == ';' || byte == ' ' || byte == '\t')
        c->state = KG_HTTP_CHUNK_EXTENSION;
    else if (byte == '\r')
        c->state = KG_HTTP_CHUNK_SIZE_LF;
    else
        return refuse(why, 400, bad_chunk);
    return 0;
}

/* Requires the byte `expected`, then enters the state `next`. */
static int feed_fixed(struct kg_http_chunks *c, char byte, char expected,
                      enum kg_http_chunk_state next, const char **why)
{
    if (byte != expected)
        return refuse(why, 400, bad_chunk);
    c->state = next;
    return 0;
}

static int feed_extra(struct kg_http_chunks *c, char byte, enum kg_http_chunk_state stay,
                      enum kg_http_chunk_state next, const char **why)
{
    if (++c->extras > KG_HTTP_MAX_CHUNK_EXTRAS)
        return refuse(why, 431, "chunked body: more than 8 KiB of extensions");
    if (byte == '\n' || byte == '\0')
        return refuse(why, 400, bad_chunk);
    c->state = byte == '\r' ? next : stay;
    return 0;
}

static int feed_byte(struct kg_http_chunks *c, char byte, const char **why)
{
    switch (c->state) {
    case KG_HTTP_CHUNK_SIZE:
    case KG_HTTP_CHUNK_DIGITS:
        return feed_size(c, byte, why);
    case KG_HTTP_CHUNK_EXTENSION:
        return feed_extra(c, byte, KG_HTTP_CHUNK_EXTENSION, KG_HTTP_CHUNK_SIZE_LF, why);
    case KG_HTTP_CHUNK_SIZE_LF:
        return feed_fixed(c, byte, '\n',
                          c->left > 0 ? KG_HTTP_CHUNK_DATA : KG_HTTP_CHUNK_LINE, why);
    case KG_HTTP_CHUNK_DATA_CR:
        return feed_fixed(c, byte, '\r', KG_HTTP_CHUNK_DATA_LF, why);
    case KG_HTTP_CHUNK_DATA_LF:
        return feed_fixed(c, byte, '\n', KG_HTTP_CHUNK_SIZE, why);
    case KG_HTTP_CHUNK_LINE:
        return feed_extra(c, byte, KG_HTTP_CHUNK_TRAILER, KG_HTTP_CHUNK_LAST_LF, why);
    case KG_HTTP_CHUNK_TRAILER:
        return feed_extra(c, byte, KG_HTTP_CHUNK_TRAILER, KG_HTTP_CHUNK_TRAILER_LF, why);
    case KG_HTTP_CHUNK_TRAILER_LF:
        return feed_fixed(c, byte, '\n', KG_HTTP_CHUNK_LINE, why);
    case KG_HTTP_CHUNK_LAST_LF:
        return feed_fixed(c, byte, '\n', KG_HTTP_CHUNK_DONE, why);
    case KG_HTTP_CHUNK_DATA:
    case KG_HTTP_CHUNK_DONE:
        break;
    }
    return 0;
}

static int feed_data(struct kg_http_chunks *c, struct kg_str *body, size_t max,
                     const char *data, size_t n, size_t *used, const char **why)
{
    struct kg_err err;
    size_t take = c->left < n ? (size_t)c->left : n;
    if (take > max - body->len)
        return refuse(why, 413, "the body is larger than this server allows");
    if (kg_str_append(body, data, take, &err) != KG_OK)
        return refuse(why, 503, "out of memory");
    c->left -= take;
    if (c->left == 0)
        c->state = KG_HTTP_CHUNK_DATA_CR;
    *used += take;
    return 0;
}

int kg_http_chunks_feed(struct kg_http_chunks *c, struct kg_str *body, size_t max,
                        const char *data, size_t n, size_t *used, const char **why)
{
    int status = 0;
    *used = 0;
    while (status == 0 && *used < n && c->state != KG_HTTP_CHUNK_DONE) {
        if (c->state == KG_HTTP_CHUNK_DATA)
            status = feed_data(c, body, max, data + *used, n - *used, used, why);
        else
            status = feed_byte(c, data[(*used)++], why);
    }
    return status;
}

/* Which host names mean this machine.
 *
 * Only localhost, names that end in .localhost and loopback addresses do. Any other name
 * may resolve to 127.0.0.1, but its owner decides where it leads, so names are never
 * resolved here. Names are compared without port, brackets and case. A malformed name is
 * never local.
 */

enum { MAX_HOST = 255 };

/* Copies the host without its port and brackets.   returns false if it is malformed */
static bool bare(char name[MAX_HOST + 1], const char *host)
{
    const char *end = host[0] == '[' ? strchr(host, ']') : host + strcspn(host, ":");
    size_t n = end ? (size_t)(end - host) : 0;
    if (host[0] == '[') {
        host++;
        n = n > 0 ? n - 1 : 0;
        end = end ? end + 1 : NULL;
    }
    if (n == 0 || n > MAX_HOST || (*end != '\0' && *end != ':'))
        return false;
    memcpy(name, host, n);
    name[n] = '\0';
    return true;
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name);
    size_t end_n = strlen(end);
    return n > end_n && strcasecmp(name + n - end_n, end) == 0;
}

bool kg_http_host_is_local(const char *host)
{
    char name[MAX_HOST + 1];
    struct in_addr four;
    struct in6_addr six;
    if (!bare(name, host))
        return false;
    if (host[0] == '[')
        return inet_pton(AF_INET6, name, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
    if (inet_pton(AF_INET, name, &four) == 1)
        return ntohl(four.s_addr) >> 24 == IN_LOOPBACKNET;
    return strcasecmp(name, "localhost") == 0 || ends_in(name, ".localhost");
}

bool kg_http_host_is_among(const char *host, const char *names)
{
    char name[MAX_HOST + 1];
    if (names == NULL || !bare(name, host))
        return names && strcmp(names, "*") == 0;
    while (*names) {
        names += strspn(names, ", ");
        size_t n = strcspn(names, ", ");
        if ((n == 1 && *names == '*') ||
            (n > 0 && n == strlen(name) && strncasecmp(names, name, n) == 0))
            return true;
        names += n;
    }
    return false;
}

const char *kg_http_origin_host(const char *origin)
{
    const char *mark = strstr(origin, "://");
    return mark ? mark + 3 : NULL;
}

kg_status kg_http_put_host(struct kg_str *out, const char *address, struct kg_err *err)
{
    bool six = strchr(address, ':') && address[0] != '[';
    return kg_str_printf(out, err, six ? "[%s]" : "%s", address);
}
