// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/simd/ops.h"
#include "kernels/host/simd/vec.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {

void adamw(const AdamWNumbers& a, const float* gradient, float* parameter, float* m, float* v,
           std::int64_t n) {
  for_vectors(n, [&](std::int64_t i, auto lanes) {
    const Vec g = load(gradient + i, lanes) * splat(a.grad_scale);
    const Vec first = madd(load(m + i, lanes), splat(a.beta1), g * splat(a.beta1_rest));
    const Vec second = madd(load(v + i, lanes), splat(a.beta2), g * g * splat(a.beta2_rest));
    const Vec kept = load(parameter + i, lanes) * splat(a.keep);
    const Vec denominator = madd(square_root(second), splat(a.root_correction), splat(a.eps));
    store(m + i, first, lanes);
    store(v + i, second, lanes);
    store(parameter + i, kept - splat(a.step_size) * first / denominator, lanes);
  });
}

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
