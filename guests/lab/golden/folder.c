/* Checks every case of a folder: files by name, cases in order, with a verdict for each.
 *
 * Failures do not stop the check, because the list of wrong cases shows where to look.
 * An unreadable file counts as a failure; a case of an unknown family is skipped and
 * reported. The order is by name, so two reports can be compared line by line.
 */
#include "lab/golden/golden_internal.h"

#include "base/file.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

static const uint64_t MAX_FILE_BYTES = (uint64_t)4 << 30;

typedef kg_status family_fn(struct kg_golden_case *g, struct kg_err *err);

static const struct family {
    const char *name;
    family_fn *run;
} families[] = {
    {"kl_sampled", kg_golden_kl_sampled},     {"kl_topk", kg_golden_kl_topk},
    {"kl_full", kg_golden_kl_full},           {"advantages", kg_golden_advantages},
    {"agg_loss", kg_golden_agg_loss},         {"policy_losses", kg_golden_policy_losses},
    {"ema_actor_loss", kg_golden_actor_loss}, {"dppo_loss", kg_golden_dppo_loss},
    {"rpg_loss", kg_golden_rpg_loss},         {"misc", kg_golden_misc},
    {"ema_update", kg_golden_ema_update},     {"corrections", kg_golden_corrections},
};

struct walk {
    struct kg_golden_report *report;
    const struct kg_golden_options *options;
    struct kg_golden_tolerance tolerance;
    const char *file;
};

/* ---- one case ---- */

static kg_status run_family(const char *name, struct kg_golden_case *g,
                            struct kg_err *err)
{
    size_t i;

    if (kg_json_type(g->json) != KG_JSON_OBJECT)
        return kg_fail(err, KG_EFORMAT, "expected an object, found %s",
                       kg_json_type_name(g->json));
    KG_TRY(kg_str_pick(&i, KG_EUNSUPPORTED, "family", name, families, KG_COUNT(families),
                       sizeof *families, err));
    return families[i].run(g, err);
}

static void judge(struct kg_golden_result *r, const struct kg_golden_case *g,
                  kg_status status, const struct kg_err *err)
{
    r->excepted = g->excepted;
    r->worst = g->worst;
    r->compared = g->compared;
    r->why = "";
    if (status != KG_OK) {
        r->outcome = status == KG_EUNSUPPORTED ? KG_GOLDEN_SKIPPED : KG_GOLDEN_FAILED;
        r->why = err->message;
    } else if (g->bad.code != KG_OK) {
        r->outcome = KG_GOLDEN_FAILED;
        r->why = g->bad.message;
    } else if (g->compared == 0) {
        r->outcome = KG_GOLDEN_FAILED;
        r->why = "nothing in it that can be compared";
    }
}

static kg_status count(struct walk *w, const struct kg_golden_result *r,
                       struct kg_err *err)
{
    struct kg_golden_report *t = w->report;
    double *worst = r->excepted ? &t->worst_excepted : &t->worst;

    t->passed += r->outcome == KG_GOLDEN_PASSED;
    t->failed += r->outcome == KG_GOLDEN_FAILED;
    t->skipped += r->outcome == KG_GOLDEN_SKIPPED;
    t->excepted += r->excepted && r->outcome != KG_GOLDEN_SKIPPED;
    t->compared += r->compared;
    *worst = fmax(*worst, r->worst);
    return w->options->seen ? w->options->seen(r, w->options->context, err) : KG_OK;
}

static kg_status check_case(struct walk *w, const char *family,
                            const struct kg_json *json, struct kg_err *err)
{
    const struct kg_golden_head *head = w->options->head;
    struct kg_golden_case g = {.json = json,
                               .head = head ? head : &kg_golden_plain_head,
                               .tolerance = w->tolerance};
    const char *name = kg_json_text(kg_json_get(json, "name"), NULL);
    struct kg_golden_result r = {.file = w->file, .name = name ? name : "(no name)"};
    struct kg_err why;
    kg_status status = run_family(family, &g, &why);

    for (size_t i = 0; i < g.n_blocks; i++)
        kg_mem_free(g.blocks[i]);
    kg_mem_free(g.blocks);
    if (status == KG_ENOMEM) {
        *err = why;
        return kg_err_prefix(err, "%s: %s", w->file, r.name);
    }
    judge(&r, &g, status, &why);
    return count(w, &r, err);
}

/* ---- files ---- */

/* A file that cannot be read counts as one failure. */
static kg_status bad_file(struct walk *w, const struct kg_err *why, struct kg_err *err)
{
    struct kg_golden_result r = {
        .file = w->file, .name = "", .outcome = KG_GOLDEN_FAILED, .why = why->message};

    if (why->code == KG_ENOMEM) {
        *err = *why;
        return err->code;
    }
    return count(w, &r, err);
}

static kg_status check_file(struct walk *w, const char *path, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    const struct kg_json *cases;
    struct kg_err why;
    const char *family;
    kg_status status = kg_json_read(&doc, path, MAX_FILE_BYTES, &why);

    if (status == KG_OK)
        status = kg_json_need_text(&family, &doc, doc.root, "family", &why);
    if (status == KG_OK)
        status = kg_json_need(&cases, &doc, doc.root, "cases", KG_JSON_ARRAY, &why);
    if (status != KG_OK)
        status = bad_file(w, &why, err);
    else
        for (size_t i = 0; i < kg_json_size(cases) && status == KG_OK; i++)
            status = check_case(w, family, kg_json_at(cases, i), err);
    w->report->files++;
    kg_json_release(&doc);
    return status;
}

static bool is_json(const char *name)
{
    size_t n = strlen(name);

    return n > 5 && strcmp(name + n - 5, ".json") == 0;
}

static kg_status check_names(struct walk *w, char **names, size_t n, const char *folder,
                             struct kg_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (!is_json(names[i]))
            continue;
        w->file = names[i];
        KG_TRY(check_file(w, kg_path_in(folder, names[i]).text, err));
    }
    if (w->report->files == 0)
        return kg_fail(err, KG_ENOTFOUND,
                       "%s: expected *.json files of cases, found none", folder);
    return KG_OK;
}

kg_status kg_golden_check(struct kg_golden_report *report, const char *folder,
                          const struct kg_golden_options *options, struct kg_err *err)
{
    struct walk w = {report, options, options->tolerance, ""};
    char **names;
    size_t n;

    *report = (struct kg_golden_report){0};
    if (w.tolerance.rel == 0 && w.tolerance.abs == 0)
        w.tolerance = (struct kg_golden_tolerance){1e-10, 1e-12, w.tolerance.single};
    KG_TRY(kg_file_list(&names, &n, folder, err));
    kg_status status = check_names(&w, names, n, folder, err);
    kg_file_names_free(names, n);
    return status;
}
