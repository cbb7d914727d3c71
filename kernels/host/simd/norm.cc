// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/host/simd/ops.h"
#include "kernels/host/simd/row_offset.h"
#include "kernels/host/simd/vec.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {

template <class T>
void rmsnorm_forward(const RmsNormRows<T>& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t cols = a.rows.cols;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row_offset(a.rows, row);
    const T* x = a.x + at;
    const float squares = sum(cols, [&](Vec partial, std::int64_t i, auto lanes) {
      const Vec v = load(x + i, lanes);
      return madd(v, v, partial);
    });
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(cols) + a.eps);
    a.rstd[row] = rstd;
    for_vectors(cols, [&](std::int64_t i, auto lanes) {
      const Vec normal = load(x + i, lanes) * splat(rstd);
      store(a.y + at + i, normal * (load(a.weight + i, lanes) + splat(a.offset)), lanes);
    });
  }
}

// With n = x rstd and g = dy w: dx = rstd (g - n mean(g n)) and dw = sum over rows of dy n.
template <class T>
void rmsnorm_backward(const NormGradientRows<T>& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t cols = a.rows.cols;
  for (std::int64_t i = 0; i < cols; ++i) a.d_weight[i] = 0.0f;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row_offset(a.rows, row);
    const T* x = a.x + row_offset(a.x_rows, row);
    const T* d_y = a.d_y + at;
    const float rstd = a.rstd[row];
    const float products = sum(cols, [&](Vec partial, std::int64_t i, auto lanes) {
      const Vec weight = load(a.weight + i, lanes) + splat(a.offset);
      return madd(load(d_y + i, lanes) * weight, load(x + i, lanes), partial);
    });
    const float mean = products * rstd / static_cast<float>(cols);
    for_vectors(cols, [&](std::int64_t i, auto lanes) {
      const Vec d = load(d_y + i, lanes);
      const Vec normal = load(x + i, lanes) * splat(rstd);
      const Vec d_normal = d * (load(a.weight + i, lanes) + splat(a.offset));
      Vec d_x = madd(normal, splat(-mean), d_normal) * splat(rstd);
      if (a.d_residual != nullptr) d_x = d_x + load(a.d_residual + at + i, lanes);
      store(a.d_weight + i, madd(d, normal, load(a.d_weight + i, lanes)), lanes);
      store(a.d_x + at + i, d_x, lanes);
    });
  }
}

// y = (x - mean) rstd w + b. The squares are summed of differences from the mean: their own sum
// would lose what a large mean has in common.
template <class T>
void layernorm_forward(const LayerNormRows<T>& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t cols = a.rows.cols;
  const auto count = static_cast<float>(cols);
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row_offset(a.rows, row);
    const T* x = a.x + at;
    const float mean = sum(cols, [&](Vec partial, std::int64_t i,
                                     auto lanes) { return partial + load(x + i, lanes); }) /
                       count;
    const float squares = sum(cols, [&](Vec partial, std::int64_t i, auto lanes) {
      // Lanes that are not in use must not add the square of the mean.
      float held[kWidth];
      store(held, load(x + i, lanes) - splat(mean), lanes);
      const Vec v = load(held, lanes);
      return madd(v, v, partial);
    });
    const float rstd = 1.0f / std::sqrt(squares / count + a.eps);
    a.mean[row] = mean;
    a.rstd[row] = rstd;
    for_vectors(cols, [&](std::int64_t i, auto lanes) {
      const Vec normal = (load(x + i, lanes) - splat(mean)) * splat(rstd);
      const Vec bias = a.bias != nullptr ? load(a.bias + i, lanes) : splat(0.0f);
      store(a.y + at + i, madd(normal, load(a.weight + i, lanes), bias), lanes);
    });
  }
}

// With n = (x - mean) rstd and g = dy w: dx = rstd (g - mean(g) - n mean(g n)), dw as above.
template <class T>
void layernorm_backward(const NormGradientRows<T>& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t cols = a.rows.cols;
  const auto count = static_cast<float>(cols);
  for (std::int64_t i = 0; i < cols; ++i) a.d_weight[i] = 0.0f;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row_offset(a.rows, row);
    const T* x = a.x + row_offset(a.x_rows, row);
    const T* d_y = a.d_y + at;
    const float rstd = a.rstd[row], mean = a.mean[row];
    const float gradients =
        sum(cols,
            [&](Vec partial, std::int64_t i, auto lanes) {
              return madd(load(d_y + i, lanes), load(a.weight + i, lanes), partial);
            }) /
        count;
    // Lanes that are not in use have no gradient, so that their difference adds nothing.
    const float products = sum(cols,
                               [&](Vec partial, std::int64_t i, auto lanes) {
                                 const Vec normal =
                                     (load(x + i, lanes) - splat(mean)) * splat(rstd);
                                 const Vec d = load(d_y + i, lanes) * load(a.weight + i, lanes);
                                 return madd(d, normal, partial);
                               }) /
                           count;
    for_vectors(cols, [&](std::int64_t i, auto lanes) {
      const Vec d = load(d_y + i, lanes);
      const Vec normal = (load(x + i, lanes) - splat(mean)) * splat(rstd);
      const Vec d_normal = d * load(a.weight + i, lanes) - splat(gradients);
      Vec d_x = madd(normal, splat(-products), d_normal) * splat(rstd);
      if (a.d_residual != nullptr) d_x = d_x + load(a.d_residual + at + i, lanes);
      store(a.d_weight + i, madd(d, normal, load(a.d_weight + i, lanes)), lanes);
      store(a.d_x + at + i, d_x, lanes);
    });
  }
}

#define SHARDWRIGHT_INSTANTIATE(T)                                                           \
  template void rmsnorm_forward<T>(const RmsNormRows<T>&, std::int64_t, std::int64_t);       \
  template void rmsnorm_backward<T>(const NormGradientRows<T>&, std::int64_t, std::int64_t); \
  template void layernorm_forward<T>(const LayerNormRows<T>&, std::int64_t, std::int64_t);   \
  template void layernorm_backward<T>(const NormGradientRows<T>&, std::int64_t, std::int64_t);
SHARDWRIGHT_INSTANTIATE(float)
SHARDWRIGHT_INSTANTIATE(BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
