/* Additional interface of the tests' fake CUDA runtime (runtime_fake.c). */
#ifndef KG_EMU_RUNTIME_FAKE_H
#define KG_EMU_RUNTIME_FAKE_H

/* Two devices; the first has no kernels for its architecture. */
enum { KG_FAKE_DEVICES = 2, KG_FAKE_REFUSED = 0, KG_FAKE_GOOD = 1 };

/* From now on allocations fail (2), or the device is lost and every call returns this
 * error; 0: neither. */
void kg_fake_runtime_fail(int error);

/* The first violated rule, or NULL. */
const char *kg_fake_runtime_fault(void);

#endif
