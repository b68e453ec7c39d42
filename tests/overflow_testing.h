/* Finite weights with which a step is not finite. */
#ifndef KG_TESTS_OVERFLOW_TESTING_H
#define KG_TESTS_OVERFLOW_TESTING_H

#include "model/model.h"

/* Makes the logits NaN or infinite. */
static void overflow_logits(struct kg_model *m)
{
    for (int64_t i = 0; i < m->head->rows * m->head->cols; i++)
        m->head->master[i] = i % 2 ? 3e38f : -3e38f;
}

/* The logits are 0, but the backward overflows: the head's rows are near the largest
 * float, and the norm's gradient is their difference times the normed values. */
static void overflow_gradients(struct kg_model *m)
{
    for (int64_t v = 0; v < m->head->rows; v++)
        for (int64_t d = 0; d < m->head->cols; d++)
            m->head->master[v * m->head->cols + d] = v % 2 ? 3e38f : -3e38f;
    for (int64_t d = 0; d < m->norm->cols; d++)
        m->norm->master[d] = 0;
}

#endif
