/* Incremental SHA-1 and SHA-256, the digests by which the hub identifies files. Use them
 * to detect corruption; SHA-1 does not protect against deliberate collisions.
 * source: FIPS 180-4 */
#ifndef KG_BASE_DIGEST_H
#define KG_BASE_DIGEST_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum kg_digest_kind { KG_SHA1, KG_SHA256 };

struct kg_digest {
    enum kg_digest_kind kind;
    uint32_t h[8];
    unsigned char block[64];
    uint64_t bytes; /* so far */
};
enum { KG_DIGEST_TEXT = 65 };

void kg_digest_begin(struct kg_digest *d, enum kg_digest_kind kind);
void kg_digest_put(struct kg_digest *d, const void *bytes, size_t n);
/* Writes 40 or 64 hexadecimal digits. d must not be used again. */
void kg_digest_end(char text[KG_DIGEST_TEXT], struct kg_digest *d);

#endif
