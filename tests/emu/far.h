/* The backend "far", for tests: the CPU's operations on memory that the host cannot
 * access, as on a device. */
#ifndef KG_EMU_FAR_H
#define KG_EMU_FAR_H

#include "tensor/backend.h"

/* Uses the current table of "cpu".   errors: those of kg_backend_open */
kg_status kg_far_open(const struct kg_backend **be, struct kg_err *err) KG_MUST_CHECK;

#endif
