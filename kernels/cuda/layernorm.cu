// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/column_sum_kernel.h"
#include "kernels/cuda/layernorm.h"
#include "kernels/cuda/norm_backward_once.h"
#include "kernels/cuda/norm_rows.h"

namespace shardwright::kernels::cuda {
namespace {

template <class T>
struct LayerNormForward {
  Rows rows;
  const T* x;
  const T* weight;
  const T* bias;
  float eps;
  T* y;
  LayerNormStatistics statistics;
};

// As rmsnorm_forward_kernel. The squares are those of differences from the mean.
template <class T, int N, int kLanes>
__global__ void __launch_bounds__(kThreads, 4) layernorm_forward_kernel(LayerNormForward<T> a) {
  __shared__ float shared[kThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const auto cols = static_cast<int>(a.rows.cols);
  for_rows<kLanes>(a.rows, [&](std::int64_t row, bool exists) {
    const std::int64_t at = exists ? offset_of(a.rows, row) : 0;
    const int end = exists ? cols : 0;
    float sum = 0.0f, squares = 0.0f, x[N], w[N];
#pragma unroll 2
    for (int i = lane * N; i < end; i += kLanes * N) {
      load(a.x + at + i, x);
#pragma unroll
      for (int j = 0; j < N; ++j) sum += x[j];
    }
    const float mean = row_sum<kLanes>(sum, shared) / static_cast<float>(cols);
#pragma unroll 2
    for (int i = lane * N; i < end; i += kLanes * N) {
      load(a.x + at + i, x);
#pragma unroll
      for (int j = 0; j < N; ++j) squares = __fmaf_rn(x[j] - mean, x[j] - mean, squares);
    }
    squares = row_sum<kLanes>(squares, shared);
    const float rstd = 1.0f / sqrtf(squares / static_cast<float>(cols) + a.eps);
    if (exists && lane == 0) {
      a.statistics.rstd[row] = rstd;
      a.statistics.mean[row] = mean;
    }
#pragma unroll 2
    for (int i = lane * N; i < end; i += kLanes * N) {
      load(a.x + at + i, x);
      load(a.weight + i, w);
#pragma unroll
      for (int j = 0; j < N; ++j) x[j] = (x[j] - mean) * rstd * w[j];
      add_chunk(a.bias, i, w, x);
      store(a.y + at + i, x);
    }
  });
}

// With n = (x - mean) rstd and g = dy w: dx = rstd (g - mean(g) - n mean(g n)).
template <class T, int N, int kLanes>
__global__ void __launch_bounds__(kThreads) layernorm_backward_kernel(NormBackward<T> a) {
  __shared__ float shared[kThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const auto cols = static_cast<int>(a.rows.cols);
  for_rows<kLanes>(a.rows, [&](std::int64_t row, bool exists) {
    const std::int64_t at = exists ? offset_of(a.rows, row) : 0;
    const float rstd = exists ? a.rstd[row] : 0.0f;
    const float mean = exists ? a.mean[row] : 0.0f;
    const int end = exists ? cols : 0;
    float gradients = 0.0f, products = 0.0f, x[N], w[N], d[N];
#pragma unroll 2
    for (int i = lane * N; i < end; i += kLanes * N) {
      load(a.x + at + i, x);
      load(a.weight + i, w);
      load(a.d_y + at + i, d);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        gradients = __fmaf_rn(d[j], w[j], gradients);
        products = __fmaf_rn(d[j] * w[j], (x[j] - mean) * rstd, products);
      }
    }
    const float of_gradients = row_sum<kLanes>(gradients, shared) / static_cast<float>(cols);
    const float of_products = row_sum<kLanes>(products, shared) / static_cast<float>(cols);
#pragma unroll 2
    for (int i = lane * N; i < end; i += kLanes * N) {
      load(a.x + at + i, x);
      load(a.weight + i, w);
      load(a.d_y + at + i, d);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        d[j] = __fmaf_rn((x[j] - mean) * rstd, -of_products, d[j] * w[j] - of_gradients) * rstd;
      }
      add_chunk(a.d_residual, at + i, w, d);
      store(a.d_x + at + i, d);
    }
  });
}

/// dw = the sum over rows of dy n.
template <class T>
struct LayerNormWeightRows {
  Rows rows;
  const T* x;
  LayerNormStatistics statistics;
  const T* d_y;
  template <int N>
  __device__ void add(std::int64_t row, std::int64_t chunk, float (&sum)[N]) const {
    const std::int64_t at = offset_of(rows, row) + chunk * N;
    float v[N], d[N];
    load(x + at, v);
    load(d_y + at, d);
    const float scale = statistics.rstd[row], mean = statistics.mean[row];
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] = __fmaf_rn(d[j], (v[j] - mean) * scale, sum[j]);
  }
};

}  // namespace

template <class T>
void layernorm_forward(cudaStream_t stream, const Rows& rows, const T* x, const T* weight,
                       const T* bias, double eps, T* y, const LayerNormStatistics& statistics) {
  if (rows.count() == 0) return;
  const LayerNormForward<T> arguments{rows, x,         weight, bias, static_cast<float>(eps),
                                      y,    statistics};
  const bool wide = is_wide<T>(rows, 0, x, weight, bias, static_cast<const T*>(y));
  with_width<kWidth<T>>(wide, [&](auto n) {
    with_lanes(rows.cols / n(), [&](auto lanes) {
      launch(layernorm_forward_kernel<T, n(), lanes()>,
             {blocks_for(rows.count(), kThreads / lanes()), kThreads}, stream, arguments);
    });
  });
}

template <class T, class G>
void layernorm_backward(cudaStream_t stream, const Rows& rows, const T* x, const T* weight,
                        const LayerNormStatistics& statistics, const T* d_y, const T* d_residual,
                        T* d_x, G* d_weight, float* workspace, host::Store mode) {
  const NormBackward<T> arguments{
      rows, rows, x, weight, 0.0f, statistics.rstd, statistics.mean, d_y, d_residual, d_x};
  if (const std::int64_t blocks = norm_blocks(arguments, workspace); blocks > 0) {
    launch_norm_backward_once<true>(stream, arguments, blocks, workspace);
    return sum_many_row_blocks(stream, workspace, blocks, rows.cols, d_weight, mode);
  }
  const bool wide = is_wide<T>(rows, 0, x, weight, d_y, d_residual, static_cast<const T*>(d_x));
  with_width<kWidth<T>>(wide, [&](auto n) {
    launch_column_sums<n()>(stream, LayerNormWeightRows<T>{rows, x, statistics, d_y}, rows.count(),
                            rows.cols, workspace);
    if (rows.count() == 0) return;
    with_lanes(rows.cols / n(), [&](auto lanes) {
      launch(layernorm_backward_kernel<T, n(), lanes()>,
             {blocks_for(rows.count(), kThreads / lanes()), kThreads}, stream, arguments);
    });
  });
  sum_row_blocks(stream, workspace, rows.cols, d_weight, mode);
}

#define SHARDWRIGHT_INSTANTIATE_FORWARD(T)                                                    \
  template void layernorm_forward<T>(cudaStream_t, const Rows&, const T*, const T*, const T*, \
                                     double, T*, const LayerNormStatistics&);
SHARDWRIGHT_INSTANTIATE_FORWARD(float)
SHARDWRIGHT_INSTANTIATE_FORWARD(BFloat16)
#define SHARDWRIGHT_INSTANTIATE(T, G)                                                            \
  template void layernorm_backward<T, G>(cudaStream_t, const Rows&, const T*, const T*,          \
                                         const LayerNormStatistics&, const T*, const T*, T*, G*, \
                                         float*, host::Store);
SHARDWRIGHT_INSTANTIATE(float, float)
SHARDWRIGHT_INSTANTIATE(float, BFloat16)
SHARDWRIGHT_INSTANTIATE(BFloat16, float)
SHARDWRIGHT_INSTANTIATE(BFloat16, BFloat16)
#undef SHARDWRIGHT_INSTANTIATE_FORWARD
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::cuda
