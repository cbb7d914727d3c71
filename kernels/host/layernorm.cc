// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/layernorm.h"

#include "kernels/host/simd/kernels.h"
#include "sim/core/units.h"

namespace shardwright::kernels::host {

template <class T>
void layernorm_forward(Parallel& parallel, const Rows& rows, const T* x, const T* weight,
                       const T* bias, double eps, T* y, const LayerNormStatistics& statistics) {
  const auto& kernels = parallel.kernels().of<T>();
  const LayerNormRows<T> args{.x = x,
                              .weight = weight,
                              .bias = bias,
                              .eps = static_cast<float>(eps),
                              .y = y,
                              .rstd = statistics.rstd,
                              .mean = statistics.mean,
                              .rows = rows};
  parallel.for_ranges(rows.count(), ceil_div(16384, rows.cols),
                      [&](std::int64_t begin, std::int64_t end, Scratch&) {
                        kernels.layernorm_forward(args, begin, end);
                      });
}

template <class T, class G>
void layernorm_backward(Parallel& parallel, const Rows& rows, const T* x, const T* weight,
                        const LayerNormStatistics& statistics, const T* d_y, const T* d_residual,
                        T* d_x, G* d_weight, float* workspace, Store mode) {
  const auto& kernels = parallel.kernels().of<T>();
  parallel.run(kRowBlocks, [&](std::int64_t block, Scratch&) {
    const NormGradientRows<T> args{.x = x,
                                   .weight = weight,
                                   .rstd = statistics.rstd,
                                   .d_y = d_y,
                                   .d_residual = d_residual,
                                   .d_x = d_x,
                                   .d_weight = workspace + block * rows.cols,
                                   .rows = rows,
                                   .x_rows = rows,
                                   .offset = 0,
                                   .mean = statistics.mean};
    kernels.layernorm_backward(args, row_block_begin(rows.count(), block),
                               row_block_begin(rows.count(), block + 1));
  });
  sum_row_blocks(parallel, workspace, rows.cols, d_weight, mode);
}

#define SHARDWRIGHT_INSTANTIATE(T)                                                                 \
  template void layernorm_forward<T>(Parallel&, const Rows&, const T*, const T*, const T*, double, \
                                     T*, const LayerNormStatistics&);
SHARDWRIGHT_INSTANTIATE(float)
SHARDWRIGHT_INSTANTIATE(BFloat16)
#undef SHARDWRIGHT_INSTANTIATE
#define SHARDWRIGHT_INSTANTIATE(T, G)                                                            \
  template void layernorm_backward<T, G>(Parallel&, const Rows&, const T*, const T*,             \
                                         const LayerNormStatistics&, const T*, const T*, T*, G*, \
                                         float*, Store);
SHARDWRIGHT_INSTANTIATE(float, float)
SHARDWRIGHT_INSTANTIATE(float, BFloat16)
SHARDWRIGHT_INSTANTIATE(BFloat16, float)
SHARDWRIGHT_INSTANTIATE(BFloat16, BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::host
