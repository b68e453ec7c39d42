/* A command that is a filter: lines of JSON on stdin, an answer to each on stdout.
 *
 * An answer leaves before the next line is read, so a program may talk to the command
 * line by line and need not know of buffers. A line that cannot be read ends it with
 * its number; lines before it have their answers. No line at all is an error: a pipe
 * that broke upstream should not look like success.
 */
#include "cli/cli.h"

#include "data/jsonl.h"

#include <stdio.h>

static kg_status answer_lines(struct kg_jsonl *in, kg_cli_line_fn *answer, void *context,
                              struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_str out = {0};
    bool more = true;
    size_t n = 0;
    kg_status status = KG_OK;

    for (;; n++) {
        KG_TRY_GOTO(out, kg_jsonl_next(in, &doc, &more, err));
        if (!more)
            break;
        KG_TRY_GOTO(out, answer(&out, &doc, context, err));
        KG_TRY_GOTO(out, kg_cli_put(&out, err));
    }
    if (n == 0)
        status = kg_fail(err, KG_EFORMAT,
                         "stdin: expected at least one line, found none");
out:
    kg_json_release(&doc);
    kg_str_release(&out);
    return status;
}

kg_status kg_cli_filter(kg_cli_line_fn *answer, void *context, struct kg_err *err)
{
    struct kg_jsonl *in;
    kg_status status;

    KG_TRY(kg_jsonl_open_stream(&in, stdin, "stdin", err));
    status = answer_lines(in, answer, context, err);
    kg_jsonl_close(in);
    return status;
}
