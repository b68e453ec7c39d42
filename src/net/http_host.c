/* Which names mean this machine.
 *
 * The list is of what is local, and it is short: localhost with all below it, and the
 * addresses that lead back. Any other name, though it may resolve to 127.0.0.1, belongs
 * to somebody who decides where it leads, so nothing is looked up here. A name is
 * compared without its port, its brackets and its case; what is none is never local.
 */
#include "net/http_host.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

enum { MAX_HOST = 255 };

/* The host without its port and brackets.   returns false when it is none */
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
