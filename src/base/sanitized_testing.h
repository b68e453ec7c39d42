/* Whether tests run ten times slower or more: with the address sanitizer, or on an
 * emulated processor (tools/aarch64).
 *
 * Included by *_test.c only.
 */
#ifndef KG_BASE_SANITIZED_TESTING_H
#define KG_BASE_SANITIZED_TESTING_H

#if defined(__SANITIZE_ADDRESS__) || defined(KG_EMULATED_PROCESSOR)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

#endif
