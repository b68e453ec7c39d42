/* The entry that libFuzzer calls, for the target named by -DKG_FUZZ=kg_fuzz_NAME. Built
 * by tools/fuzz alone. */
#include <stddef.h>
#include <stdint.h>

int KG_FUZZ(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) { return KG_FUZZ(bytes, n); }
