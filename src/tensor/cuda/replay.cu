/* Records repeated launches once.
 *
 * The first call of a key runs directly, so that plans of its products are chosen and
 * scratch has grown. The second call is recorded, which computes nothing, and then the
 * record is launched; later calls launch it again. A record contains addresses. So code
 * that frees memory first discards all records that may use it, and all keys, because
 * another owner may later have the same key.
 */
#include "tensor/cuda/cuda_internal.h"

enum { RECORDS = 64 };

struct record {
    uint64_t key;
    bool called; /* run once without a record */
    bool never;  /* could not be recorded */
    void *there; /* owned; NULL: none */
};

static struct record records[RECORDS]; /* a ring */
static int n_records;                  /* taken so far */

void kg_cuda_forget(void)
{
    for (int i = 0; i < RECORDS; i++)
        if (records[i].there)
            kg_dev_record_free(records[i].there);
    memset(records, 0, sizeof records);
    n_records = 0;
}

static struct record *record_of(uint64_t key)
{
    struct record *r;

    for (int i = 0; i < RECORDS; i++)
        if (i < n_records && records[i].key == key)
            return &records[i];
    r = &records[n_records++ % RECORDS];
    if (r->there)
        kg_dev_record_free(r->there);
    *r = {key, false, false, NULL};
    return r;
}

/* A device that aborts a recording also refuses later calls in it. So an error of the
 * body counts only after it also fails outside a recording. */
static kg_status make(struct record *r, kg_status (*body)(void *arg, struct kg_err *err),
                      void *arg, struct kg_err *err)
{
    kg_status status;
    void *there;

    kg_dev_record_begin();
    status = body(arg, err);
    there = kg_dev_record_end();
    if (status == KG_OK)
        r->there = there;
    else if (there)
        kg_dev_record_free(there);
    r->never = !there && (status == KG_OK || status == KG_EDEVICE);
    return r->never ? KG_OK : status;
}

kg_status kg_cuda_replay(uint64_t key, kg_status (*body)(void *arg, struct kg_err *err),
                         void *arg, struct kg_err *err)
{
    struct record *r = record_of(key);

    if (!r->called || r->never) {
        KG_TRY(body(arg, err));
        record_of(key)->called = true; /* record_of again: body may have freed memory */
        return KG_OK;
    }
    if (!r->there)
        KG_TRY(make(r, body, arg, err));
    if (r->never)
        return body(arg, err);
    __atomic_fetch_add(&kg_dev_traffic.replays, 1, __ATOMIC_RELAXED);
    kg_dev_record_launch(r->there);
    return kg_dev_done("replay", err);
}
