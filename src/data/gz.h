/* Writes one gzip member without name and time, so that the same text gives the same
 * bytes. Only gz.c and unpack.c use zlib. */
#ifndef KG_DATA_GZ_H
#define KG_DATA_GZ_H

#include "base/status.h"

#include <stddef.h>

struct kg_gz_writer; /* opaque */

/* errors: those of kg_file_writer_open */
kg_status kg_gz_open(struct kg_gz_writer **w, const char *path,
                     struct kg_err *err) KG_MUST_CHECK;
kg_status kg_gz_put(struct kg_gz_writer *w, const void *bytes, size_t n,
                    struct kg_err *err) KG_MUST_CHECK;
/* Ends the member, closes the file and frees w; on failure the file is removed. */
kg_status kg_gz_close(struct kg_gz_writer *w, struct kg_err *err) KG_MUST_CHECK;
/* Aborts: frees w and removes the file. NULL is allowed. */
void kg_gz_abort(struct kg_gz_writer *w);

#endif
