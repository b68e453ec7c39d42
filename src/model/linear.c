/* Linear layers: the one place where forward and backward meet the weights of products.
 *
 * forward.c and backward.c say which weight and which buffers; what is made of them is
 * said here, so that whatever stands beside a weight is known nowhere else.
 */
#include "model/acts_internal.h"

kg_status kg_linear(const struct kg_walk *p, struct kg_mat y, struct kg_mat x,
                    const struct kg_param *w, bool accumulate, struct kg_err *err)
{
    return kg_op_matmul(p->m->backend, y, x, w->compute, KG_MATMUL_NT, accumulate, err);
}

kg_status kg_linear_bwd(const struct kg_walk *p, float *grads, const struct kg_param *w,
                        struct kg_mat dy, struct kg_mat x, struct kg_mat dx,
                        bool accumulate, struct kg_err *err)
{
    const struct kg_backend *be = p->m->backend;

    KG_TRY(kg_op_matmul(be, kg_grad_mat(grads, w), dy, x, KG_MATMUL_TN, true, err));
    return kg_op_matmul(be, dx, dy, w->compute, KG_MATMUL_NN, accumulate, err);
}
