/* Hashes of bytes: 64 bits to detect changed files, the CRC of foreign formats, and SHA
 * digests.
 *
 * The 64-bit hash is not cryptographic: collisions can be made on purpose. A change of
 * one 8-byte word always changes the hash; other changes are missed with probability
 * about 2^-64.
 */
#ifndef KG_BASE_HASH_H
#define KG_BASE_HASH_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

uint64_t kg_hash_bytes(const void *bytes, size_t n);

/* Hashes a file through a map; *n_bytes out: its length.   errors: ENOTFOUND, EIO */
kg_status kg_hash_file(uint64_t *hash, uint64_t *n_bytes, const char *path,
                       struct kg_err *err) KG_MUST_CHECK;

/* CRC-32C: reflected polynomial 0x82f63b78, initial value and final xor all ones.
 * source: Castagnoli et al. 1993; RFC 3720 appendix B.4 has test vectors */
uint32_t kg_hash_crc32c(const void *bytes, size_t n);

/* Incremental SHA-1 and SHA-256, the digests by which the hub identifies files. Use them
 * to detect corruption; SHA-1 does not protect against deliberate collisions.
 * source: FIPS 180-4 */
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
