// SPDX-License-Identifier: Apache-2.0
// From element types at run time to those of the kernels' templates.
#pragma once

#include <cstddef>
#include <span>

#include "exec/device.h"
#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "sim/core/base/check.h"

namespace shardwright::exec {

/// Calls body.operator()<T...>() with float or BFloat16 as the T of each of the types.
template <class... T, std::size_t N, class Body>
void with_types(const DType (&dtypes)[N], Body&& body) {
  if constexpr (sizeof...(T) == N) {
    body.template operator()<T...>();
  } else if (dtypes[sizeof...(T)] == DType::kFp32) {
    with_types<T..., float>(dtypes, body);
  } else {
    with_types<T..., kernels::BFloat16>(dtypes, body);
  }
}

template <class T>
T* pointer(void* data) {
  return static_cast<T*>(data);
}
template <class T>
const T* pointer(const void* data) {
  return static_cast<const T*>(data);
}

template <class T>
std::span<T> span_of(const Array& array) {
  return {static_cast<T*>(array.data), static_cast<std::size_t>(array.size)};
}

template <class T>
kernels::host::Matrix<T> matrix_of(const Matrix& m) {
  return {static_cast<T*>(m.data), m.rows, m.cols, m.stride};
}

inline kernels::host::Rows rows_of(const Heads& h) {
  return {h.tokens, h.heads, h.size, h.stride};
}

/// What is kept of the norms of `rows`: 1 / deviation of all rows, then, of LayerNorm, means.
template <class Number>
Number* means_of(const Norm& norm, Number* statistics, const Heads& rows) {
  return norm.kind == Normalization::kLayerNorm ? statistics + rows.tokens * rows.heads : nullptr;
}

template <class T>
kernels::host::NormForward<T> norm_of(const Heads& x, const Norm& norm, const Heads& y,
                                      float* statistics) {
  SHARDWRIGHT_CHECK(x.stride == y.stride, "norm from stride {} to {}", x.stride, y.stride);
  return {.rows = rows_of(x),
          .x = pointer<T>(x.data),
          .weight = pointer<T>(norm.weight),
          .eps = static_cast<float>(norm.eps),
          .y = pointer<T>(y.data),
          .rstd = statistics,
          .offset = static_cast<float>(norm.offset),
          .bias = pointer<T>(norm.bias),
          .mean = means_of(norm, statistics, x)};
}

template <class T>
kernels::host::NormBackward<T> norm_gradient_of(const Heads& x, const Norm& norm,
                                                const float* statistics, const Heads& d_y,
                                                const void* d_residual, const Heads& d_x) {
  SHARDWRIGHT_CHECK(d_x.stride == d_y.stride, "norm gradient from stride {} to {}", d_y.stride,
                    d_x.stride);
  SHARDWRIGHT_CHECK(norm.kind != Normalization::kLayerNorm || x.stride == d_y.stride,
                    "LayerNorm of stride {} and {}", x.stride, d_y.stride);
  return {.rows = rows_of(d_y),
          .x_rows = rows_of(x),
          .x = pointer<T>(x.data),
          .weight = pointer<T>(norm.weight),
          .rstd = statistics,
          .d_y = pointer<T>(d_y.data),
          .d_residual = pointer<T>(d_residual),
          .d_x = pointer<T>(d_x.data),
          .offset = static_cast<float>(norm.offset),
          .mean = means_of(norm, statistics, x)};
}

}  // namespace shardwright::exec
