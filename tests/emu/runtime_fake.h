/* Additional interface of the tests' fake CUDA runtime (runtime_fake.c). */
#ifndef KG_EMU_RUNTIME_FAKE_H
#define KG_EMU_RUNTIME_FAKE_H

/* The fake has two devices. KG_FAKE_REFUSED has an architecture without kernels. */
enum { KG_FAKE_DEVICES = 2, KG_FAKE_REFUSED = 0, KG_FAKE_GOOD = 1 };

/* Sets the failure from now on. 2: allocations fail; 0: none; otherwise the device is
 * lost and every call returns `error`. */
void kg_fake_runtime_fail(int error);

/* The first violated rule, or NULL. */
const char *kg_fake_runtime_fault(void);

#endif
