/* The library as a whole: version, errors, and structs of another version. A program
 * compiled against one header may load a newer or older library. Its structs carry their
 * size: fields beyond that size are taken as zero, the default of every field. If the
 * struct is larger than the library's, the rest must be zero. Results are truncated to
 * the size of the user's struct. */
#include "lib/lib_internal.h"

#include <math.h>
#include <string.h>

_Static_assert((int)KEDGE_EINVAL == (int)KG_EINVAL && (int)KEDGE_ENOMEM == KG_ENOMEM &&
                   (int)KEDGE_ESHAPE == KG_ESHAPE && (int)KEDGE_EDTYPE == KG_EDTYPE &&
                   (int)KEDGE_ENOTFOUND == KG_ENOTFOUND &&
                   (int)KEDGE_EUNSUPPORTED == KG_EUNSUPPORTED &&
                   (int)KEDGE_ENONFINITE == KG_ENONFINITE,
               "the public codes are the codes of base/");
_Static_assert(sizeof((struct kedge_err *)0)->message == KG_ERR_MESSAGE_BYTES,
               "a message fits");

const char *kedge_version(void) { return KG_VERSION; }

const char *kedge_status_name(int status) { return kg_status_name((kg_status)status); }

int kedge_has_bf16(void) { return 1; }

int kg_lib_report(kg_status status, const struct kg_err *mine, struct kedge_err *err)
{
    if (status == KG_OK || !err)
        return (int)status;
    err->code = (int)status;
    memcpy(err->message, mine->message, sizeof err->message);
    return (int)status;
}

kg_status kg_lib_given(const void *pointer, const char *name, struct kg_err *err)
{
    return pointer ? KG_OK
                   : kg_fail(err, KG_EINVAL, "%s: expected a pointer, found NULL", name);
}

/* Every public struct begins with its size. */
kg_status kg_lib_take(void *own, size_t own_bytes, const void *theirs, const char *name,
                      struct kg_err *err)
{
    size_t size;
    const unsigned char *bytes = theirs;

    KG_TRY(kg_lib_given(theirs, name, err));
    memcpy(&size, theirs, sizeof size);
    if (size < 2 * sizeof size || size > 4096)
        return kg_fail(err, KG_EINVAL,
                       "%s: expected sizeof of the struct in size (%zu "
                       "bytes here), found %zu",
                       name, own_bytes, size);
    for (size_t i = own_bytes; i < size; i++)
        if (bytes[i] != 0)
            return kg_fail(
                err, KG_EINVAL,
                "%s: the field at byte %zu is set, but libkedge %s does not know it",
                name, i, KG_VERSION);
    memset(own, 0, own_bytes);
    memcpy(own, theirs, size < own_bytes ? size : own_bytes);
    return KG_OK;
}

void kg_lib_give(void *theirs, const void *own, size_t own_bytes)
{
    size_t size;

    memcpy(&size, theirs, sizeof size);
    memcpy(theirs, own, size < own_bytes ? size : own_bytes);
}

kg_status kg_lib_check_begin(const int64_t *begin, int64_t n_seqs, int64_t n,
                             const char *n_name, const char *name, struct kg_err *err)
{
    KG_TRY(kg_lib_given(begin, name, err));
    if (n_seqs < 0)
        return kg_fail(err, KG_EINVAL, "n_seqs: expected 0 or more, found %lld",
                       (long long)n_seqs);
    if (begin[0] != 0)
        return kg_fail(err, KG_EINVAL, "%s[0]: expected 0, found %lld", name,
                       (long long)begin[0]);
    for (int64_t i = 0; i < n_seqs; i++)
        if (begin[i + 1] < begin[i])
            return kg_fail(err, KG_EINVAL, "%s[%lld]: expected %lld or more, found %lld",
                           name, (long long)i + 1, (long long)begin[i],
                           (long long)begin[i + 1]);
    if (n >= 0 && begin[n_seqs] != n)
        return kg_fail(err, KG_EINVAL, "%s[%lld]: expected %lld (%s), found %lld", name,
                       (long long)n_seqs, (long long)n, n_name, (long long)begin[n_seqs]);
    return KG_OK;
}

kg_status kg_lib_check_logp(const double *x, int64_t n, const char *name,
                            struct kg_err *err)
{
    static const double most = 1;

    for (int64_t i = 0; x && i < n; i++)
        if (x[i] > most && isfinite(x[i]))
            return kg_fail(err, KG_EINVAL,
                           "%s[%lld]: expected a log-prob of at most 0, found %g", name,
                           (long long)i, x[i]);
    return KG_OK;
}
