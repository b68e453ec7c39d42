/* The keys that let clients into a server: one, or one for each user.
 *
 * A file of keys has a line for each user, NAME KEY; empty lines and lines that begin
 * with # are skipped. A reader of the file can act as any user, so a file that anyone but
 * its owner can read is refused, as ssh refuses such keys. No message shows a key.
 */
#ifndef KG_NET_HTTP_KEYS_H
#define KG_NET_HTTP_KEYS_H

#include "base/status.h"
#include "base/str.h"

#include <stddef.h>

enum { KG_HTTP_USERS = 256, KG_HTTP_NAME_BYTES = 32, KG_HTTP_LEAST_KEY_BYTES = 16 };

struct kg_http_key {
    const char *name; /* letters, digits, - and _; NULL: a single user without a name */
    const char *key;
};
/* Borrowed by servers. */
struct kg_http_keys {
    struct kg_http_key list[KG_HTTP_USERS];
    size_t n;
    struct kg_str text; /* owned: names and keys */
};

/* No two users may have the same name or key.   errors: EFORMAT (path and line), those of
 * kg_file_read_secret */
kg_status kg_http_keys_read(struct kg_http_keys *keys, const char *path,
                            struct kg_err *err) KG_MUST_CHECK;
/* Clears the keys from memory.   {0} allowed */
void kg_http_keys_release(struct kg_http_keys *keys);

/* The index of the key, or -1. The running time reveals only the number of keys and their
 * lengths. */
int kg_http_keys_find(const struct kg_http_key *list, size_t n, const char *found);

#endif
