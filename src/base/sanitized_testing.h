/* Whether the address sanitizer is on, which makes tests ten times slower.
 *
 * Included by *_test.c only.
 */
#ifndef KG_BASE_SANITIZED_TESTING_H
#define KG_BASE_SANITIZED_TESTING_H

#ifdef __SANITIZE_ADDRESS__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

#endif
