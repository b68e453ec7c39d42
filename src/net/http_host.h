/* Names of machines as HTTP writes them: "host", "host:port", "[::1]:port".
 *
 * A browser lets every page ask servers of this machine, and a name that a stranger owns
 * may lead to 127.0.0.1. What gives both away is what the browser says of itself: the
 * name that it asked for (Host), and the page that asks (Origin).
 */
#ifndef KG_NET_HTTP_HOST_H
#define KG_NET_HTTP_HOST_H

#include "base/str.h"

#include <stdbool.h>

/* localhost, a name below it, 127.0.0.0/8 or ::1, with a port or without. */
bool kg_http_host_is_local(const char *host);
/* Whether a host is one of `names`, separated by commas, whatever its port; "*": any.
 * NULL is none. */
bool kg_http_host_is_among(const char *host, const char *names);
/* The host of an Origin, "http://host:port"; NULL when it has none, as "null". */
const char *kg_http_origin_host(const char *origin);
/* Append an address as it stands in a URL: [::1] for ::1. */
kg_status kg_http_put_host(struct kg_str *out, const char *address,
                           struct kg_err *err) KG_MUST_CHECK;

#endif
