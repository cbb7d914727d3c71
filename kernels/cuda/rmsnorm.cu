// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/column_sum_kernel.h"
#include "kernels/cuda/norm_backward_once.h"
#include "kernels/cuda/norm_rows.h"
#include "kernels/cuda/rmsnorm.h"

namespace shardwright::kernels::cuda {
namespace {

template <class T>
struct NormForward {
  Rows rows;
  const T* x;
  const T* weight;
  float eps, offset;
  T* y;
  float* rstd;
};

template <class T, int N, int kLanes>
__global__ void __launch_bounds__(kThreads, 4) rmsnorm_forward_kernel(NormForward<T> a) {
  __shared__ float shared[kThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const auto cols = static_cast<int>(a.rows.cols);
  for_rows<kLanes>(a.rows, [&](std::int64_t row, bool exists) {
    const std::int64_t at = exists ? offset_of(a.rows, row) : 0;
    const int end = exists ? cols : 0;
    float squares = 0.0f, x[N], w[N];
#pragma unroll 2
    for (int i = lane * N; i < end; i += kLanes * N) {
      load(a.x + at + i, x);
#pragma unroll
      for (int j = 0; j < N; ++j) squares = __fmaf_rn(x[j], x[j], squares);
    }
    squares = row_sum<kLanes>(squares, shared);
    const float rstd = 1.0f / sqrtf(squares / static_cast<float>(cols) + a.eps);
    if (exists && lane == 0) a.rstd[row] = rstd;
#pragma unroll 2
    for (int i = lane * N; i < end; i += kLanes * N) {
      load(a.x + at + i, x);
      load(a.weight + i, w);
#pragma unroll
      for (int j = 0; j < N; ++j) x[j] = x[j] * rstd * (w[j] + a.offset);
      store(a.y + at + i, x);
    }
  });
}

// With n = x rstd and g = dy w: dx = rstd (g - n mean(g n)).
template <class T, int N, int kLanes>
__global__ void __launch_bounds__(kThreads, 4) rmsnorm_backward_kernel(NormBackward<T> a) {
  __shared__ float shared[kThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const auto cols = static_cast<int>(a.rows.cols);
  for_rows<kLanes>(a.rows, [&](std::int64_t row, bool exists) {
    const std::int64_t at = exists ? offset_of(a.rows, row) : 0;
    const std::int64_t x_at = exists ? offset_of(a.x_rows, row) : 0;
    const float rstd = exists ? a.rstd[row] : 0.0f;
    const int end = exists ? cols : 0;
    float products = 0.0f, x[N], w[N], d[N];
#pragma unroll 2
    for (int i = lane * N; i < end; i += kLanes * N) {
      load(a.x + x_at + i, x);
      load(a.weight + i, w);
      load(a.d_y + at + i, d);
#pragma unroll
      for (int j = 0; j < N; ++j) products = __fmaf_rn(d[j] * (w[j] + a.offset), x[j], products);
    }
    const float mean = row_sum<kLanes>(products, shared) * rstd / static_cast<float>(cols);
#pragma unroll 2
    for (int i = lane * N; i < end; i += kLanes * N) {
      load(a.x + x_at + i, x);
      load(a.weight + i, w);
      load(a.d_y + at + i, d);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        d[j] = __fmaf_rn(x[j] * rstd, -mean, d[j] * (w[j] + a.offset)) * rstd;
      }
      add_chunk(a.d_residual, at + i, w, d);
      store(a.d_x + at + i, d);
    }
  });
}

/// dw = the sum over rows of dy n.
template <class T>
struct WeightRows {
  Rows rows, x_rows;
  const T* x;
  const float* rstd;
  const T* d_y;
  template <int N>
  __device__ void add(std::int64_t row, std::int64_t chunk, float (&sum)[N]) const {
    float v[N], d[N];
    load(x + offset_of(x_rows, row) + chunk * N, v);
    load(d_y + offset_of(rows, row) + chunk * N, d);
    const float scale = rstd[row];
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] = __fmaf_rn(d[j], v[j] * scale, sum[j]);
  }
};

}  // namespace

template <class T>
void rmsnorm_forward(cudaStream_t stream, const Rows& rows, const T* x, const T* weight, double eps,
                     T* y, float* rstd, double offset) {
  if (rows.count() == 0) return;
  const NormForward<T> arguments{
      rows, x, weight, static_cast<float>(eps), static_cast<float>(offset), y, rstd};
  const bool wide = is_wide<T>(rows, 0, x, weight, static_cast<const T*>(y));
  with_width<kWidth<T>>(wide, [&](auto n) {
    with_lanes(rows.cols / n(), [&](auto lanes) {
      launch(rmsnorm_forward_kernel<T, n(), lanes()>,
             {blocks_for(rows.count(), kThreads / lanes()), kThreads}, stream, arguments);
    });
  });
}

template <class T, class G>
void rmsnorm_backward(cudaStream_t stream, const Rows& rows, const T* x, const T* weight,
                      const float* rstd, const T* d_y, const T* d_residual, T* d_x, G* d_weight,
                      float* workspace, std::int64_t x_stride, double offset, host::Store mode) {
  Rows x_rows = rows;
  if (x_stride != 0) x_rows.stride = x_stride;
  const NormBackward<T> arguments{rows, x_rows,  x,   weight,     static_cast<float>(offset),
                                  rstd, nullptr, d_y, d_residual, d_x};
  if (const std::int64_t blocks = norm_blocks(arguments, workspace); blocks > 0) {
    launch_norm_backward_once<false>(stream, arguments, blocks, workspace);
    return sum_many_row_blocks(stream, workspace, blocks, rows.cols, d_weight, mode);
  }
  const bool wide =
      is_wide<T>(rows, x_rows.stride, x, weight, d_y, d_residual, static_cast<const T*>(d_x));
  with_width<kWidth<T>>(wide, [&](auto n) {
    launch_column_sums<n()>(stream, WeightRows<T>{rows, x_rows, x, rstd, d_y}, rows.count(),
                            rows.cols, workspace);
    if (rows.count() == 0) return;
    with_lanes(rows.cols / n(), [&](auto lanes) {
      launch(rmsnorm_backward_kernel<T, n(), lanes()>,
             {blocks_for(rows.count(), kThreads / lanes()), kThreads}, stream, arguments);
    });
  });
  sum_row_blocks(stream, workspace, rows.cols, d_weight, mode);
}

template void rmsnorm_forward<float>(cudaStream_t, const Rows&, const float*, const float*, double,
                                     float*, float*, double);
template void rmsnorm_forward<BFloat16>(cudaStream_t, const Rows&, const BFloat16*, const BFloat16*,
                                        double, BFloat16*, float*, double);
#define SHARDWRIGHT_INSTANTIATE(T, G)                                                    \
  template void rmsnorm_backward<T, G>(cudaStream_t, const Rows&, const T*, const T*,    \
                                       const float*, const T*, const T*, T*, G*, float*, \
                                       std::int64_t, double, host::Store);
SHARDWRIGHT_INSTANTIATE(float, float)
SHARDWRIGHT_INSTANTIATE(float, BFloat16)
SHARDWRIGHT_INSTANTIATE(BFloat16, float)
SHARDWRIGHT_INSTANTIATE(BFloat16, BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::cuda
