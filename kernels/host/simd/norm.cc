// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/host/simd/ops.h"
#include "kernels/host/simd/row_offset.h"
#include "kernels/host/simd/vec.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {
namespace {

/// The squares of a centred norm (LayerNorm) are summed of differences from the mean: their own sum
/// would lose what a large mean has in common.
template <bool kCentred, class T>
void forward_rows(const NormForward<T>& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t cols = a.rows.cols;
  const auto count = static_cast<float>(cols);
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row_offset(a.rows, row);
    const T* x = a.x + at;
    float mean = 0.0f;
    if constexpr (kCentred) {
      mean = sum(cols, [&](Vec partial, std::int64_t i,
                           auto lanes) { return partial + load(x + i, lanes); }) /
             count;
      a.mean[row] = mean;
    }
    const float squares = sum(cols, [&](Vec partial, std::int64_t i, auto lanes) {
      Vec v = load(x + i, lanes);
      if constexpr (kCentred) {
        // Lanes that are not in use must not add the square of the mean.
        float held[kWidth];
        store(held, v - splat(mean), lanes);
        v = load(held, lanes);
      }
      return madd(v, v, partial);
    });
    const float rstd = 1.0f / std::sqrt(squares / count + a.eps);
    a.rstd[row] = rstd;
    for_vectors(cols, [&](std::int64_t i, auto lanes) {
      const Vec v = load(x + i, lanes), weight = load(a.weight + i, lanes);
      if constexpr (kCentred) {
        const Vec bias = a.bias != nullptr ? load(a.bias + i, lanes) : splat(0.0f);
        store(a.y + at + i, madd((v - splat(mean)) * splat(rstd), weight, bias), lanes);
      } else {
        store(a.y + at + i, v * splat(rstd) * (weight + splat(a.offset)), lanes);
      }
    });
  }
}

/// With n = (x - mean) rstd and g = dy w: dx = rstd (g - mean(g) - n mean(g n)) and dw = sum over
/// rows of dy n; without centring mean and mean(g) are 0.
template <bool kCentred, class T>
void backward_rows(const NormBackward<T>& a, float* d_weight, std::int64_t begin,
                   std::int64_t end) {
  const std::int64_t cols = a.rows.cols;
  const auto count = static_cast<float>(cols);
  for (std::int64_t i = 0; i < cols; ++i) d_weight[i] = 0.0f;
  const auto weight = [&](std::int64_t i, auto lanes) {
    const Vec w = load(a.weight + i, lanes);
    return kCentred ? w : w + splat(a.offset);
  };
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t at = row_offset(a.rows, row);
    const T* x = a.x + row_offset(a.x_rows, row);
    const T* d_y = a.d_y + at;
    const float rstd = a.rstd[row], mean = kCentred ? a.mean[row] : 0.0f;
    const auto normal = [&](std::int64_t i, auto lanes) {
      const Vec v = load(x + i, lanes);
      return (kCentred ? v - splat(mean) : v) * splat(rstd);
    };
    float gradients = 0.0f, products = 0.0f;
    if constexpr (kCentred) {
      gradients = sum(cols, [&](Vec partial, std::int64_t i, auto lanes) {
        return madd(load(d_y + i, lanes), weight(i, lanes), partial);
      });
      // Lanes that are not in use have no gradient, so that their difference adds nothing.
      products = sum(cols, [&](Vec partial, std::int64_t i, auto lanes) {
        return madd(load(d_y + i, lanes) * weight(i, lanes), normal(i, lanes), partial);
      });
    } else {
      products =
          rstd * sum(cols, [&](Vec partial, std::int64_t i, auto lanes) {
            return madd(load(d_y + i, lanes) * weight(i, lanes), load(x + i, lanes), partial);
          });
    }
    gradients /= count;
    products /= count;
    for_vectors(cols, [&](std::int64_t i, auto lanes) {
      const Vec d = load(d_y + i, lanes), n = normal(i, lanes);
      Vec d_normal = d * weight(i, lanes);
      if constexpr (kCentred) d_normal = d_normal - splat(gradients);
      Vec d_x = madd(n, splat(-products), d_normal) * splat(rstd);
      if (a.d_residual != nullptr) d_x = d_x + load(a.d_residual + at + i, lanes);
      store(d_weight + i, madd(d, n, load(d_weight + i, lanes)), lanes);
      store(a.d_x + at + i, d_x, lanes);
    });
  }
}

}  // namespace

template <class T>
void norm_forward(const NormForward<T>& a, std::int64_t begin, std::int64_t end) {
  if (a.mean != nullptr) return forward_rows<true>(a, begin, end);
  forward_rows<false>(a, begin, end);
}

template <class T>
void norm_backward(const NormBackward<T>& a, float* d_weight, std::int64_t begin,
                   std::int64_t end) {
  if (a.mean != nullptr) return backward_rows<true>(a, d_weight, begin, end);
  backward_rows<false>(a, d_weight, begin, end);
}

#define SHARDWRIGHT_INSTANTIATE(T)                                                  \
  template void norm_forward<T>(const NormForward<T>&, std::int64_t, std::int64_t); \
  template void norm_backward<T>(const NormBackward<T>&, float*, std::int64_t, std::int64_t);
SHARDWRIGHT_INSTANTIATE(float)
SHARDWRIGHT_INSTANTIATE(BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
