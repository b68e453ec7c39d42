/* For tests of the server: runs it in a thread of this process until `stop`. */
#ifndef KG_SERVE_SERVE_TESTING_H
#define KG_SERVE_SERVE_TESTING_H

#include "base/need_testing.h"
#include "serve/serve.h"

#include <pthread.h>
#include <stdatomic.h>

static struct kg_serve *server;
static atomic_bool stop;

static bool asked(void *user)
{
    (void)user;
    return atomic_load(&stop);
}

static void *serve_main(void *user)
{
    struct kg_err err;
    (void)user;
    if (kg_serve_run(server, asked, NULL, &err) != KG_OK)
        fail_msg("%s", err.message);
    return NULL;
}

#endif
