/* Whether tests are ten times slower or more: the address sanitizer is on, or they are
 * built for a processor that is emulated (tools/aarch64).
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
