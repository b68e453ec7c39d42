/* A 64-bit hash of bytes: tells whether two files are the same. And the CRC that file
 * formats of others ask for.
 *
 * Not for secrets: who wants two files with one hash can make them. A change of one
 * 8-byte word, wherever it is, always changes the hash; other changes go unseen once in
 * 2^64.
 */
#ifndef KG_BASE_HASH_H
#define KG_BASE_HASH_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

uint64_t kg_hash_bytes(const void *bytes, size_t n);

/* Every byte of a file, by a map; *n_bytes out: its length.   errors: NOTFOUND, EIO */
kg_status kg_hash_file(uint64_t *hash, uint64_t *n_bytes, const char *path,
                       struct kg_err *err) KG_MUST_CHECK;

/* CRC-32C: reflected polynomial 0x82f63b78, all ones before and inverted after.
 * source: Castagnoli et al. 1993; RFC 3720 appendix B.4 has its test vectors */
uint32_t kg_hash_crc32c(const void *bytes, size_t n);

#endif
