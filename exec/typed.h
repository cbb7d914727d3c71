// SPDX-License-Identifier: Apache-2.0
// From element types at run time to those of the kernels' templates.
#pragma once

#include <cstddef>
#include <span>

#include "exec/array.h"
#include "kernels/bf16.h"
#include "kernels/host/layernorm.h"
#include "kernels/host/matrix.h"
#include "kernels/host/rows.h"

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

/// LayerNorm's part of what is kept of the norms of `rows`: 1 / deviation of all rows, then means.
/// Backward passes only read them.
inline kernels::host::LayerNormStatistics layer_statistics(const float* statistics,
                                                           const Heads& rows) {
  auto* rstd = const_cast<float*>(statistics);
  return {rstd, rstd + rows.tokens * rows.heads};
}

}  // namespace shardwright::exec
