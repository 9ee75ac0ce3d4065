#include "fused.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>

#include <vector>

#include "guard.h"

char* shim_fused_sgd(
    const at::Tensor* param,
    const at::Tensor* gradient,
    const at::Tensor* buffer,
    double lr,
    double momentum,
    double dampening,
    double weight_decay,
    bool nesterov,
    bool first) {
  return guarded([&] {
    at::NoGradGuard no_graph;
    std::vector<at::Tensor> params{*param}, gradients{*gradient}, buffers;
    if (buffer != nullptr) {
      buffers.push_back(*buffer);
    }
    at::_fused_sgd_(
        params, gradients, buffers, weight_decay, momentum, lr, dampening, nesterov, /*maximize=*/false, first,
        std::nullopt, std::nullopt);
  });
}

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
    bool decoupled) {
  return guarded([&] {
    at::NoGradGuard no_graph;
    std::vector<at::Tensor> params{*param}, gradients{*gradient}, means{*mean}, squares{*square}, max_squares;
    if (max_square != nullptr) {
      max_squares.push_back(*max_square);
    }
    std::vector<at::Tensor> steps{at::full({}, step, param->options().dtype(at::kFloat))};
    const bool amsgrad = max_square != nullptr;
    const bool maximize = false;
    auto rule = [&](auto fused) {
      fused(
          params, gradients, means, squares, max_squares, steps, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize,
          std::nullopt, std::nullopt);
    };
    if (decoupled) {
      rule([](auto&&... given) { at::_fused_adamw_(given...); });
    } else {
      rule([](auto&&... given) { at::_fused_adam_(given...); });
    }
  });
}
