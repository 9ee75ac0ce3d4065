// Optimizers' rules in one pass over memory. See guard.h for how errors come back.
#pragma once

#include <ATen/core/Tensor.h>

extern "C" {

// One step of stochastic gradient descent, in place; with momentum if `buffer` is not null, which the first step fills. The
// tensors are as `shim_fused_adam` wants them.
char* shim_fused_sgd(
    const at::Tensor* param,
    const at::Tensor* gradient,
    const at::Tensor* buffer,
    double lr,
    double momentum,
    double dampening,
    double weight_decay,
    bool nesterov,
    bool first);

// One step of Adam, or of AdamW if `decoupled`, in place; AMSGrad if `max_square` is not null. All tensors have the shape
// and dtype of `param` and are contiguous, which is for the caller to see to: the kernels go by their memory.
char* shim_fused_adam(
    const at::Tensor* param,
    const at::Tensor* gradient,
    const at::Tensor* mean,
    const at::Tensor* square,
    const at::Tensor* max_square,
    double step,
    double lr,
    double beta1,
    double beta2,
    double eps,
    double weight_decay,
    bool decoupled);
}
