// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/rmsnorm.h"

#include "sim/core/units.h"

namespace shardwright::kernels::host {

template <class T>
void rmsnorm_forward(Parallel& parallel, const Rows& rows, const T* x, const T* weight, double eps,
                     T* y, float* rstd, double offset) {
  const auto& kernels = parallel.kernels().of<T>();
  const RmsNormRows<T> args{.x = x,
                            .weight = weight,
                            .eps = static_cast<float>(eps),
                            .y = y,
                            .rstd = rstd,
                            .rows = rows,
                            .offset = static_cast<float>(offset)};
  parallel.for_ranges(rows.count(), ceil_div(16384, rows.cols),
                      [&](std::int64_t begin, std::int64_t end, Scratch&) {
                        kernels.rmsnorm_forward(args, begin, end);
                      });
}

template <class T, class G>
void rmsnorm_backward(Parallel& parallel, const Rows& rows, const T* x, const T* weight,
                      const float* rstd, const T* d_y, const T* d_residual, T* d_x, G* d_weight,
                      float* workspace, std::int64_t x_stride, double offset, Store mode) {
  const auto& kernels = parallel.kernels().of<T>();
  Rows x_rows = rows;
  if (x_stride != 0) x_rows.stride = x_stride;
  parallel.run(kRowBlocks, [&](std::int64_t block, Scratch&) {
    const NormGradientRows<T> args{.x = x,
                                   .weight = weight,
                                   .rstd = rstd,
                                   .d_y = d_y,
                                   .d_residual = d_residual,
                                   .d_x = d_x,
                                   .d_weight = workspace + block * rows.cols,
                                   .rows = rows,
                                   .x_rows = x_rows,
                                   .offset = static_cast<float>(offset),
                                   .mean = nullptr};
    kernels.rmsnorm_backward(args, row_block_begin(rows.count(), block),
                             row_block_begin(rows.count(), block + 1));
  });
  sum_row_blocks(parallel, workspace, rows.cols, d_weight, mode);
}

template void rmsnorm_forward<float>(Parallel&, const Rows&, const float*, const float*, double,
                                     float*, float*, double);
template void rmsnorm_forward<BFloat16>(Parallel&, const Rows&, const BFloat16*, const BFloat16*,
                                        double, BFloat16*, float*, double);
#define SHARDWRIGHT_INSTANTIATE(T, G)                                                            \
  template void rmsnorm_backward<T, G>(Parallel&, const Rows&, const T*, const T*, const float*, \
                                       const T*, const T*, T*, G*, float*, std::int64_t, double, \
                                       Store);
SHARDWRIGHT_INSTANTIATE(float, float)
SHARDWRIGHT_INSTANTIATE(float, BFloat16)
SHARDWRIGHT_INSTANTIATE(BFloat16, float)
SHARDWRIGHT_INSTANTIATE(BFloat16, BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::host
