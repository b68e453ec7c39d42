/* Writes gzip, a buffer at a time, directly into the file; a failed close removes it. The
 * header has no time and no name, so the same text gives the same file. */
#define ZLIB_CONST
#include "data/gz.h"

#include "base/file.h"
#include "base/mem.h"

#include <limits.h>
#include <zlib.h>

enum { OUT_BYTES = 1 << 16, GZIP_WINDOW = 15 + 16, MEMORY_LEVEL = 8 };

struct kg_gz_writer {
    struct kg_file_writer file;
    z_stream z;
    bool z_ready;
    unsigned char out[OUT_BYTES];
};

void kg_gz_abort(struct kg_gz_writer *w)
{
    if (!w)
        return;
    if (w->z_ready)
        deflateEnd(&w->z);
    kg_file_writer_abort(&w->file);
    kg_mem_free(w);
}

kg_status kg_gz_open(struct kg_gz_writer **w, const char *path, struct kg_err *err)
{
    struct kg_gz_writer *fresh = kg_mem_calloc(1, sizeof *fresh, path, err);

    *w = NULL;
    if (!fresh)
        return err->code;
    fresh->z_ready = deflateInit2(&fresh->z, Z_DEFAULT_COMPRESSION, Z_DEFLATED,
                                  GZIP_WINDOW, MEMORY_LEVEL, Z_DEFAULT_STRATEGY) == Z_OK;
    kg_status status = fresh->z_ready ? kg_file_writer_open(&fresh->file, path, err)
                                      : kg_fail(err, KG_ENOMEM,
                                                "%s: no memory for compression", path);
    if (status == KG_OK)
        *w = fresh;
    else
        kg_gz_abort(fresh);
    return status;
}

/* Compresses all input of z into the file; with Z_FINISH also ends the gzip member. */
static kg_status pack(struct kg_gz_writer *w, int how, struct kg_err *err)
{
    do {
        w->z.next_out = w->out;
        w->z.avail_out = OUT_BYTES;
        if (deflate(&w->z, how) == Z_STREAM_ERROR)
            return kg_fail(err, KG_EIO,
                           "%s: cannot compress: zlib reports a broken stream",
                           w->file.path);
        KG_TRY(kg_file_writer_put(&w->file, w->out, OUT_BYTES - w->z.avail_out, err));
    } while (w->z.avail_out == 0);
    return KG_OK;
}

kg_status kg_gz_put(struct kg_gz_writer *w, const void *bytes, size_t n,
                    struct kg_err *err)
{
    const unsigned char *from = bytes;

    while (n > 0) {
        uInt some = n < UINT_MAX ? (uInt)n : UINT_MAX;

        w->z.next_in = from;
        w->z.avail_in = some;
        KG_TRY(pack(w, Z_NO_FLUSH, err));
        from += some;
        n -= some;
    }
    return KG_OK;
}

kg_status kg_gz_close(struct kg_gz_writer *w, struct kg_err *err)
{
    w->z.avail_in = 0;
    kg_status status = pack(w, Z_FINISH, err);
    if (status == KG_OK)
        status = kg_file_writer_close(&w->file, err);
    kg_gz_abort(w); /* if the file is closed this only frees */
    return status;
}
