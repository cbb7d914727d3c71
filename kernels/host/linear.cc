// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/linear.h"

#include <algorithm>

#include "sim/core/units.h"

namespace shardwright::kernels::host {

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
  parallel.run(kRowBlocks, [&](std::int64_t block, Scratch&) {
    float* partial = workspace + block * d_y.cols;
    std::fill_n(partial, d_y.cols, 0.0f);
    for (std::int64_t row = row_block_begin(d_y.rows, block);
         row < row_block_begin(d_y.rows, block + 1); ++row) {
      kernels.accumulate(d_y.row(row), partial, d_y.cols);
    }
  });
  sum_row_blocks(parallel, workspace, d_y.cols, d_bias, mode);
}

template <class G>
void sum_row_blocks(Parallel& parallel, const float* partial, std::int64_t cols, G* out,
                    Store mode) {
  const Kernels& kernels = parallel.kernels();
  parallel.for_ranges(cols, 1024, [&](std::int64_t begin, std::int64_t end, Scratch& scratch) {
    float* total = scratch.floats(end - begin);
    std::copy(partial + begin, partial + end, total);
    for (std::int64_t block = 1; block < kRowBlocks; ++block) {
      kernels.fp32.accumulate(partial + block * cols + begin, total, end - begin);
    }
    if (mode == Store::kAdd) kernels.of<G>().accumulate(out + begin, total, end - begin);
    kernels.of<G>().narrow(total, out + begin, end - begin);
  });
}

template void bias_forward<float>(Parallel&, const float*, Matrix<float>);
template void bias_forward<BFloat16>(Parallel&, const BFloat16*, Matrix<BFloat16>);
#define SHARDWRIGHT_INSTANTIATE(T, G) \
  template void bias_gradient<T, G>(Parallel&, Matrix<const T>, G*, float*, Store);
SHARDWRIGHT_INSTANTIATE(float, float)
SHARDWRIGHT_INSTANTIATE(float, BFloat16)
SHARDWRIGHT_INSTANTIATE(BFloat16, float)
SHARDWRIGHT_INSTANTIATE(BFloat16, BFloat16)
#undef SHARDWRIGHT_INSTANTIATE
template void sum_row_blocks<float>(Parallel&, const float*, std::int64_t, float*, Store);
template void sum_row_blocks<BFloat16>(Parallel&, const float*, std::int64_t, BFloat16*, Store);

}  // namespace shardwright::kernels::host
