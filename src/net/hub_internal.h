/* Shared by net/hub_*.c: the hub's address and key, its list of files, and fetching. */
#ifndef KG_NET_HUB_INTERNAL_H
#define KG_NET_HUB_INTERNAL_H

#include "base/hash.h"
#include "net/http_client.h"
#include "net/hub.h"

/* ---- the hub ---- */

struct kg_hub_site {
    char endpoint[512];  /* without a slash at the end */
    struct kg_str token; /* owned; empty: none */
};
/* From the environment.   errors: EINVAL (not an address, a token with a blank or control
 * character, offline), those of the token's file */
kg_status kg_hub_site_open(struct kg_hub_site *site, struct kg_err *err) KG_MUST_CHECK;
void kg_hub_site_close(struct kg_hub_site *site); /* {0} allowed */

/* Appends text percent-encoded for the path of a URL; slashes are kept if `slashes`. */
kg_status kg_hub_put_escaped(struct kg_str *out, const char *text, bool slashes,
                             struct kg_err *err) KG_MUST_CHECK;
/* ENDPOINT/ORG/NAME; for a data set ENDPOINT/datasets/ORG/NAME. */
kg_status kg_hub_put_page(struct kg_str *out, const struct kg_hub_site *site,
                          const struct kg_hub_name *name,
                          struct kg_err *err) KG_MUST_CHECK;

/* Fails with one line about a response that is neither 2xx nor a redirect. what: a file,
 * or the id */
kg_status kg_hub_explain(const struct kg_hub_site *site, const struct kg_hub_name *name,
                         const char *what, const struct kg_http_answer *a,
                         struct kg_err *err);
/* Checks that a redirect leads to an http(s) address, and not from https to http.
 * errors: EFORMAT */
kg_status kg_hub_check_redirect(const char *from, const struct kg_http_answer *a,
                                struct kg_err *err) KG_MUST_CHECK;

/* ---- its list ---- */

struct kg_hub_file {
    char *path; /* owned */
    uint64_t bytes;
    enum kg_digest_kind kind;
    char digest[KG_DIGEST_TEXT]; /* also the name of the blob */
    bool wanted;
};
struct kg_hub_list {
    char commit[41];
    struct kg_hub_file *files; /* (n) owned */
    size_t n, capacity;
};
/* Parses the JSON of the hub's API: {"sha", "siblings": [{"rfilename", "size", "blobId",
 * "lfs": {"sha256", "size"}}, ..]}.   errors: EFORMAT, also for a file name that leads
 * out of the repository */
kg_status kg_hub_list_parse(struct kg_hub_list *list, const char *text, size_t n,
                            const char *where, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_hub_list_get(struct kg_hub_list *list, const struct kg_hub_site *site,
                          const struct kg_hub_pull_opts *opts,
                          struct kg_err *err) KG_MUST_CHECK;
/* Marks the files to fetch.   errors: ENOTFOUND (none), EUNSUPPORTED (no safetensors) */
kg_status kg_hub_list_choose(struct kg_hub_list *list,
                             const struct kg_hub_pull_opts *opts,
                             struct kg_err *err) KG_MUST_CHECK;
void kg_hub_list_release(struct kg_hub_list *list); /* {0} allowed */

/* ---- fetching ---- */

/* Fetches every marked file into `blobs`, named by its digest. *fetched out: bytes
 * received over the network. */
kg_status kg_hub_fetch(uint64_t *fetched, const struct kg_hub_list *list,
                       const struct kg_hub_site *site,
                       const struct kg_hub_pull_opts *opts, const char *blobs,
                       struct kg_err *err) KG_MUST_CHECK;

#endif
