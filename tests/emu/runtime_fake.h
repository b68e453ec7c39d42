/* What the CUDA runtime of tests has beside NVIDIA's names (runtime_fake.c). */
#ifndef KG_EMU_RUNTIME_FAKE_H
#define KG_EMU_RUNTIME_FAKE_H

/* Two devices, of which the first has no kernels for its architecture. */
enum { KG_FAKE_DEVICES = 2, KG_FAKE_REFUSED = 0, KG_FAKE_GOOD = 1 };

/* From here on memory is not to be had (2), or the device is lost to an error: every call
 * returns it; 0: neither. */
void kg_fake_runtime_fail(int error);

/* The first rule that was broken, or NULL. */
const char *kg_fake_runtime_fault(void);

#endif
