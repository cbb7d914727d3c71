// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/norm.h"

#include <algorithm>

#include "kernels/host/simd/kernels.h"
#include "sim/core/units.h"

namespace shardwright::kernels::host {
namespace {

/// out[cols] = what body(first row, end, cols floats) leaves of each block of rows, in order; kAdd:
/// added to what is there.
template <class G, class Body>
void sum_over_rows(Parallel& parallel, std::int64_t rows, std::int64_t cols, float* workspace,
                   G* out, Store mode, Body body) {
  parallel.run(kPartialSums, [&](std::int64_t block, Scratch&) {
    body(rows * block / kPartialSums, rows * (block + 1) / kPartialSums, workspace + block * cols);
  });
  const Kernels& kernels = parallel.kernels();
  parallel.for_ranges(cols, 1024, [&](std::int64_t begin, std::int64_t end, Scratch& scratch) {
    float* total = scratch.floats(end - begin);
    std::copy(workspace + begin, workspace + end, total);
    for (std::int64_t block = 1; block < kPartialSums; ++block) {
      kernels.fp32.accumulate(workspace + block * cols + begin, total, end - begin);
    }
    if (mode == Store::kAdd) kernels.of<G>().accumulate(out + begin, total, end - begin);
    kernels.of<G>().narrow(total, out + begin, end - begin);
  });
}

}  // namespace

template <class T>
void norm_forward(Parallel& parallel, const NormForward<T>& norm) {
  const auto& kernels = parallel.kernels().of<T>();
  parallel.for_ranges(norm.rows.count(), ceil_div(16384, norm.rows.cols),
                      [&](std::int64_t begin, std::int64_t end, Scratch&) {
                        kernels.norm_forward(norm, begin, end);
                      });
}

template <class T, class G>
void norm_backward(Parallel& parallel, const NormBackward<T>& norm, G* d_weight, float* workspace,
                   Store mode) {
  const auto& kernels = parallel.kernels().of<T>();
  sum_over_rows(parallel, norm.rows.count(), norm.rows.cols, workspace, d_weight, mode,
                [&](std::int64_t begin, std::int64_t end, float* partial) {
                  kernels.norm_backward(norm, partial, begin, end);
                });
}

template <class T>
void bias_forward(Parallel& parallel, const T* bias, Matrix<T> y) {
  const auto& kernels = parallel.kernels().of<T>();
  parallel.for_ranges(y.rows, ceil_div(16384, y.cols),
                      [&](std::int64_t begin, std::int64_t end, Scratch&) {
                        for (std::int64_t row = begin; row < end; ++row) {
                          kernels.add(y.row(row), bias, y.row(row), y.cols);
                        }
                      });
}

template <class T, class G>
void bias_gradient(Parallel& parallel, Matrix<const T> d_y, G* d_bias, float* workspace,
                   Store mode) {
  const auto& kernels = parallel.kernels().of<T>();
  sum_over_rows(parallel, d_y.rows, d_y.cols, workspace, d_bias, mode,
                [&](std::int64_t begin, std::int64_t end, float* partial) {
                  std::fill_n(partial, d_y.cols, 0.0f);
                  for (std::int64_t row = begin; row < end; ++row) {
                    kernels.accumulate(d_y.row(row), partial, d_y.cols);
                  }
                });
}

#define SHARDWRIGHT_INSTANTIATE_PAIR(T, G)                                                 \
  template void norm_backward<T, G>(Parallel&, const NormBackward<T>&, G*, float*, Store); \
  template void bias_gradient<T, G>(Parallel&, Matrix<const T>, G*, float*, Store);
#define SHARDWRIGHT_INSTANTIATE(T)                                 \
  template void norm_forward<T>(Parallel&, const NormForward<T>&); \
  template void bias_forward<T>(Parallel&, const T*, Matrix<T>);   \
  SHARDWRIGHT_INSTANTIATE_PAIR(T, float)                           \
  SHARDWRIGHT_INSTANTIATE_PAIR(T, BFloat16)
SHARDWRIGHT_INSTANTIATE(float)
SHARDWRIGHT_INSTANTIATE(BFloat16)
#undef SHARDWRIGHT_INSTANTIATE_PAIR
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::host
