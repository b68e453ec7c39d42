/* Host names as HTTP writes them: "host", "host:port", "[::1]:port".
 *
 * Browsers let any web page send requests to local servers, and a stranger's domain name
 * may resolve to 127.0.0.1 (DNS rebinding). Two headers of the browser reveal both: Host,
 * the name that was requested, and Origin, the page that sent the request.
 */
#ifndef KG_NET_HTTP_HOST_H
#define KG_NET_HTTP_HOST_H

#include "base/str.h"

#include <stdbool.h>

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
