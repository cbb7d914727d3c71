// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/column_sum_kernel.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/grids.h"

namespace shardwright::kernels::cuda {
namespace {

template <class G>
struct SumRowBlocks {
  const float* partial;
  std::int64_t cols;
  G* out;
  bool adds;
  template <int N>
  __device__ void at(std::int64_t col) const {
    float sum[N], v[N];
    load(partial + col, sum);
    for (std::int64_t block = 1; block < kColumnSumBlocks; ++block) {
      load(partial + block * cols + col, v);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += v[j];
    }
    if (adds) {
      load(out + col, v);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += v[j];
    }
    store(out + col, sum);
  }
};

template <class T>
struct BiasRows {
  host::Matrix<const T> d_y;
  template <int N>
  __device__ void add(std::int64_t row, std::int64_t chunk, float (&sum)[N]) const {
    float v[N];
    load(d_y.data + row * d_y.stride + chunk * N, v);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += v[j];
  }
};

/// A warp sums an eighth of the blocks of 32 columns; then the eighths are added up in order.
template <class G>
__global__ void __launch_bounds__(kThreads)
    sum_many_row_blocks_kernel(const float* partial, int blocks, std::int64_t cols, G* out,
                               bool adds) {
  constexpr int kGroups = kThreads / 32;
  __shared__ float shared[kGroups][32];
  const int lane = static_cast<int>(threadIdx.x % 32), group = static_cast<int>(threadIdx.x / 32);
  const std::int64_t col = std::int64_t{blockIdx.x} * 32 + lane;
  float sum = 0.0f;
  if (col < cols) {
    const int end = blocks * (group + 1) / kGroups;
#pragma unroll 8
    for (int block = blocks * group / kGroups; block < end; ++block) {
      sum += partial[block * cols + col];
    }
  }
  shared[group][lane] = sum;
  __syncthreads();
  if (group > 0 || col >= cols) return;
  for (int g = 1; g < kGroups; ++g) sum += shared[g][lane];
  float before[1] = {0.0f};
  if (adds) load(out + col, before);
  out[col] = rounded<G>(before[0] + sum);
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) bias_forward_kernel(const T* bias, host::Matrix<T> y) {
  for_row_chunks(y.rows, y.cols / N, [&](std::int64_t row, std::int64_t chunk) {
    T* at = y.data + row * y.stride + chunk * N;
    float b[N], v[N];
    load(bias + chunk * N, b);
    load(at, v);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] += b[j];
    store(at, v);
  });
}

}  // namespace

template <class G>
void sum_row_blocks(cudaStream_t stream, const float* partial, std::int64_t cols, G* out,
                    host::Store mode) {
  constexpr int kN = kWidth<float, G>;
  // All rows of `partial` must begin like the first.
  const int head = cols % 4 == 0 ? aligned_from<kN>(partial, out) : -1;
  launch_elementwise<kN>(stream, SumRowBlocks<G>{partial, cols, out, mode == host::Store::kAdd},
                         head, cols);
}

template <class G>
void sum_many_row_blocks(cudaStream_t stream, const float* partial, std::int64_t blocks,
                         std::int64_t cols, G* out, host::Store mode) {
  launch(sum_many_row_blocks_kernel<G>, {dim3(static_cast<unsigned>((cols + 31) / 32)), kThreads},
         stream, partial, static_cast<int>(blocks), cols, out, mode == host::Store::kAdd);
}

template <class T>
void bias_forward(cudaStream_t stream, const T* bias, host::Matrix<T> y) {
  if (y.rows == 0) return;
  constexpr int kN = kWidth<T>;
  const bool wide =
      (y.cols | y.stride) % kN == 0 && aligned<kN>(bias, static_cast<const T*>(y.data));
  with_width<kN>(wide, [&](auto n) {
    const RowTiles tiles = row_tiles(y.rows, y.cols / n());
    launch(bias_forward_kernel<T, n()>, {tiles.grid, tiles.block}, stream, bias, y);
  });
}

template <class T, class G>
void bias_gradient(cudaStream_t stream, host::Matrix<const T> d_y, G* d_bias, float* workspace,
                   host::Store mode) {
  constexpr int kN = kWidth<T>;
  with_width<kN>((d_y.cols | d_y.stride) % kN == 0 && aligned<kN>(d_y.data), [&](auto n) {
    launch_column_sums<n()>(stream, BiasRows<T>{d_y}, d_y.rows, d_y.cols, workspace);
  });
  sum_row_blocks(stream, workspace, d_y.cols, d_bias, mode);
}

#define SHARDWRIGHT_INSTANTIATE_PAIR(T, G) \
  template void bias_gradient<T, G>(cudaStream_t, host::Matrix<const T>, G*, float*, host::Store);
SHARDWRIGHT_INSTANTIATE_PAIR(float, float)
SHARDWRIGHT_INSTANTIATE_PAIR(float, BFloat16)
SHARDWRIGHT_INSTANTIATE_PAIR(BFloat16, float)
SHARDWRIGHT_INSTANTIATE_PAIR(BFloat16, BFloat16)
#define SHARDWRIGHT_INSTANTIATE(T)                                                                 \
  template void sum_row_blocks<T>(cudaStream_t, const float*, std::int64_t, T*, host::Store);      \
  template void sum_many_row_blocks<T>(cudaStream_t, const float*, std::int64_t, std::int64_t, T*, \
                                       host::Store);                                               \
  template void bias_forward<T>(cudaStream_t, const T*, host::Matrix<T>);
SHARDWRIGHT_INSTANTIATE(float)
SHARDWRIGHT_INSTANTIATE(BFloat16)
#undef SHARDWRIGHT_INSTANTIATE_PAIR
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::cuda
