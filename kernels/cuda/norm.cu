// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm.h"
#include "sim/core/workspace.h"

namespace shardwright::kernels::cuda {
namespace {

using host::NormBackward;
using host::NormForward;
using host::Rows;

// Sums over rows: partial sums of blocks of rows, then of these.

/// partial[b, cols] = the sum of the rows of block b. A thread sums every blockDim.y-th row of
/// kN columns, which rows.at<N>(row, chunk, values) adds to `values`; then the threads of a column
/// are added up in ascending order. Grid: column tiles, kPartialSums.
template <int N, class Source>
__global__ void __launch_bounds__(kThreads, 4)
    column_sum_kernel(Source rows, std::int64_t row_count, std::int64_t cols, float* partial) {
  float* shared = dynamic_shared<float>();  // [blockDim.y, blockDim.x, N]
  const std::int64_t chunk = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const bool inside = chunk * N < cols;
  const std::int64_t end = row_count * (blockIdx.y + 1) / kPartialSums;
  float sum[N];
#pragma unroll
  for (int j = 0; j < N; ++j) sum[j] = 0.0f;
  if (inside) {
    for (std::int64_t row = row_count * blockIdx.y / kPartialSums + threadIdx.y; row < end;
         row += blockDim.y) {
      rows.template add<N>(row, chunk, sum);
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) shared[(threadIdx.y * blockDim.x + threadIdx.x) * N + j] = sum[j];
  __syncthreads();
  const auto width = static_cast<std::int64_t>(blockDim.x) * N;
  for (std::int64_t col = threadIdx.y * blockDim.x + threadIdx.x; col < width; col += kThreads) {
    const std::int64_t global = std::int64_t{blockIdx.x} * width + col;
    if (global >= cols) break;
    float total = shared[col];
    for (unsigned y = 1; y < blockDim.y; ++y) total += shared[y * width + col];
    partial[blockIdx.y * cols + global] = total;
  }
}

template <int N, class Source>
void launch_column_sums(cudaStream_t stream, const Source& rows, std::int64_t row_count,
                        std::int64_t cols, float* partial,
                        std::source_location where = std::source_location::current()) {
  const std::int64_t chunks = (cols + N - 1) / N;
  unsigned lanes = 1;
  while (lanes < 32 && lanes < chunks) lanes *= 2;
  const auto tiles = static_cast<unsigned>((chunks + lanes - 1) / lanes);
  launch(column_sum_kernel<N, Source>,
         {dim3(tiles, kPartialSums), dim3(lanes, kThreads / lanes), sizeof(float) * kThreads * N,
          where},
         stream, rows, row_count, cols, partial);
}

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
    for (std::int64_t block = 1; block < kPartialSums; ++block) {
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

/// out[cols] = the sum of the rows of partial[kPartialSums, cols], in order, rounded once; kAdd:
/// added to what is there.
template <class G>
void sum_row_blocks(cudaStream_t stream, const float* partial, std::int64_t cols, G* out,
                    host::Store mode) {
  constexpr int kN = kWidth<float, G>;
  // All rows of `partial` must begin like the first.
  const int head = cols % 4 == 0 ? aligned_from<kN>(partial, out) : -1;
  launch_elementwise<kN>(stream, SumRowBlocks<G>{partial, cols, out, mode == host::Store::kAdd},
                         head, cols);
}

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

/// As sum_row_blocks, of partial[blocks, cols], in a fixed order: for many blocks.
template <class G>
void sum_many_row_blocks(cudaStream_t stream, const float* partial, std::int64_t blocks,
                         std::int64_t cols, G* out, host::Store mode) {
  launch(sum_many_row_blocks_kernel<G>, {dim3(static_cast<unsigned>((cols + 31) / 32)), kThreads},
         stream, partial, static_cast<int>(blocks), cols, out, mode == host::Store::kAdd);
}

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

// Norms: where their rows lie and how many threads work on one.

/// Where row `row` begins.
__device__ __forceinline__ std::int64_t offset_of(const Rows& rows, std::int64_t row) {
  if (rows.heads == 1) return row * rows.stride;
  return row / rows.heads * rows.stride + row % rows.heads * rows.cols;
}

/// The sum over the kLanes threads of a row: some lanes of a warp, or the whole block.
template <int kLanes>
__device__ __forceinline__ float row_sum(float value, float* shared) {
  if constexpr (kLanes <= 32) {
    return warp_reduce<kLanes>(value, Plus{});
  } else {
    return block_reduce<kLanes>(value, static_cast<int>(threadIdx.x), shared, Plus{});
  }
}

/// Calls body(row, exists) for the rows of this thread, of which kLanes threads share each and a
/// block takes kThreads / kLanes at a time. Rows that do not exist are worked on as if they were
/// empty, because all lanes take part in sums.
template <int kLanes, class Body>
__device__ __forceinline__ void for_rows(const Rows& rows, Body&& body) {
  constexpr int kRows = kThreads / kLanes;
  const std::int64_t count = rows.tokens * rows.heads;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kRows; first < count;
       first += std::int64_t{gridDim.x} * kRows) {
    const std::int64_t row = first + static_cast<int>(threadIdx.x) / kLanes;
    body(row, row < count);
  }
}

/// values += those at `from`, unless that is null; `room` is overwritten.
template <class T, int N>
__device__ __forceinline__ void add_chunk(const T* from, std::int64_t at, float (&room)[N],
                                          float (&values)[N]) {
  if (from == nullptr) return;
  load(from + at, room);
#pragma unroll
  for (int j = 0; j < N; ++j) values[j] += room[j];
}

/// Calls body(lanes) with the number of threads that a row of `chunks` chunks is worth.
template <class Body>
void with_lanes(std::int64_t chunks, Body&& body) {
  if (chunks <= 8) {
    body(std::integral_constant<int, 8>{});
  } else if (chunks <= 16) {
    body(std::integral_constant<int, 16>{});
  } else if (chunks <= 64) {
    body(std::integral_constant<int, 32>{});
  } else {
    body(std::integral_constant<int, kThreads>{});
  }
}

template <class T, class... Pointers>
bool is_wide(const Rows& rows, std::int64_t x_stride, const Pointers*... arrays) {
  return (rows.cols | rows.stride | x_stride) % kWidth<T> == 0 && aligned<kWidth<T>>(arrays...);
}

template <class T, int N, int kLanes, bool kCentred>
__global__ void __launch_bounds__(kThreads, 4) norm_forward_kernel(NormForward<T> a) {
  __shared__ float shared[kThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const auto cols = static_cast<int>(a.rows.cols);
  for_rows<kLanes>(a.rows, [&](std::int64_t row, bool exists) {
    const std::int64_t at = exists ? offset_of(a.rows, row) : 0;
    const int end = exists ? cols : 0;
    float mean = 0.0f, squares = 0.0f, x[N], w[N];
    if constexpr (kCentred) {
      float sum = 0.0f;
#pragma unroll 2
      for (int i = lane * N; i < end; i += kLanes * N) {
        load(a.x + at + i, x);
#pragma unroll
        for (int j = 0; j < N; ++j) sum += x[j];
      }
      mean = row_sum<kLanes>(sum, shared) / static_cast<float>(cols);
    }
#pragma unroll 2
    for (int i = lane * N; i < end; i += kLanes * N) {
      load(a.x + at + i, x);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float v = kCentred ? x[j] - mean : x[j];
        squares = __fmaf_rn(v, v, squares);
      }
    }
    squares = row_sum<kLanes>(squares, shared);
    const float rstd = 1.0f / sqrtf(squares / static_cast<float>(cols) + a.eps);
    if (exists && lane == 0) {
      a.rstd[row] = rstd;
      if constexpr (kCentred) a.mean[row] = mean;
    }
#pragma unroll 2
    for (int i = lane * N; i < end; i += kLanes * N) {
      load(a.x + at + i, x);
      load(a.weight + i, w);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if constexpr (kCentred) {
          x[j] = (x[j] - mean) * rstd * w[j];
        } else {
          x[j] = x[j] * rstd * (w[j] + a.offset);
        }
      }
      if constexpr (kCentred) add_chunk(a.bias, i, w, x);
      store(a.y + at + i, x);
    }
  });
}

// With n = (x - mean) rstd and g = dy (w + offset): dx = rstd (g - mean(g) - n mean(g n)) and
// dw = sum of dy n; without centring mean and mean(g) are 0.
template <class T, int N, int kLanes, bool kCentred>
__global__ void __launch_bounds__(kThreads, kCentred ? 0 : 4)
    norm_backward_kernel(NormBackward<T> a) {
  __shared__ float shared[kThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const auto cols = static_cast<int>(a.rows.cols);
  for_rows<kLanes>(a.rows, [&](std::int64_t row, bool exists) {
    const std::int64_t at = exists ? offset_of(a.rows, row) : 0;
    const std::int64_t x_at = kCentred || !exists ? at : offset_of(a.x_rows, row);
    const float rstd = exists ? a.rstd[row] : 0.0f;
    const float mean = kCentred && exists ? a.mean[row] : 0.0f;
    const int end = exists ? cols : 0;
    float gradients = 0.0f, products = 0.0f, x[N], w[N], d[N];
#pragma unroll 2
    for (int i = lane * N; i < end; i += kLanes * N) {
      load(a.x + x_at + i, x);
      load(a.weight + i, w);
      load(a.d_y + at + i, d);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if constexpr (kCentred) {
          gradients = __fmaf_rn(d[j], w[j], gradients);
          products = __fmaf_rn(d[j] * w[j], (x[j] - mean) * rstd, products);
        } else {
          products = __fmaf_rn(d[j] * (w[j] + a.offset), x[j], products);
        }
      }
    }
    float of_gradients = 0.0f;
    if constexpr (kCentred) {
      of_gradients = row_sum<kLanes>(gradients, shared) / static_cast<float>(cols);
    }
    products = row_sum<kLanes>(products, shared);
    if constexpr (!kCentred) products = products * rstd;
    const float of_products = products / static_cast<float>(cols);
#pragma unroll 2
    for (int i = lane * N; i < end; i += kLanes * N) {
      load(a.x + x_at + i, x);
      load(a.weight + i, w);
      load(a.d_y + at + i, d);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if constexpr (kCentred) {
          d[j] = __fmaf_rn((x[j] - mean) * rstd, -of_products, d[j] * w[j] - of_gradients) * rstd;
        } else {
          d[j] = __fmaf_rn(x[j] * rstd, -of_products, d[j] * (w[j] + a.offset)) * rstd;
        }
      }
      add_chunk(a.d_residual, at + i, w, d);
      store(a.d_x + at + i, d);
    }
  });
}

template <class T, bool kCentred>
struct WeightRows {
  NormBackward<T> a;
  template <int N>
  __device__ void add(std::int64_t row, std::int64_t chunk, float (&sum)[N]) const {
    float v[N], d[N];
    load(a.x + offset_of(kCentred ? a.rows : a.x_rows, row) + chunk * N, v);
    load(a.d_y + offset_of(a.rows, row) + chunk * N, d);
    const float rstd = a.rstd[row], mean = kCentred ? a.mean[row] : 0.0f;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      sum[j] = __fmaf_rn(d[j], (kCentred ? v[j] - mean : v[j]) * rstd, sum[j]);
    }
  }
};

// Long rows are read once: a row lies in the registers of a block while its sums are taken, and the
// gradient of the weight grows beside it. A block walks over neighbouring rows and leaves one
// partial sum of their gradients, so that the input and its gradient come from memory once, not
// three times. Rows that do not fit (more than 8192 elements), that are too short for a block or
// not aligned take the kernels above, in two passes.

template <class T, int kChunks, bool kCentred>
__global__ void __launch_bounds__(kThreads, 2)
    norm_backward_once_kernel(NormBackward<T> a, float* partial) {
  constexpr int N = kWidth<T>;
  __shared__ float shared[kThreads / 32];
  const auto cols = static_cast<int>(a.rows.cols);
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t count = a.rows.tokens * a.rows.heads;
  const std::int64_t end = count * (blockIdx.x + 1) / gridDim.x;
  float sum[kChunks][N];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int j = 0; j < N; ++j) sum[c][j] = 0.0f;
  }
  for (std::int64_t row = count * blockIdx.x / gridDim.x; row < end; ++row) {
    const std::int64_t at = offset_of(a.rows, row), x_at = offset_of(a.x_rows, row);
    const float rstd = a.rstd[row];
    const float mean = kCentred ? a.mean[row] : 0.0f;
    uint4 kept_x[kChunks], kept_d[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int i = (thread + c * kThreads) * N;
      if (i < cols) {
        kept_x[c] = load_word<uint4>(a.x + x_at + i);
        kept_d[c] = load_word<uint4>(a.d_y + at + i);
      }
    }
    float gradients = 0.0f, products = 0.0f, x[N], w[N], d[N];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int i = (thread + c * kThreads) * N;
      if (i >= cols) continue;
      unpack<T>(kept_x[c], x);
      unpack<T>(kept_d[c], d);
      load(a.weight + i, w);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float normal = (x[j] - mean) * rstd, gradient = d[j] * (w[j] + a.offset);
        if constexpr (kCentred) gradients += gradient;
        products = __fmaf_rn(gradient, normal, products);
        sum[c][j] = __fmaf_rn(d[j], normal, sum[c][j]);
      }
    }
    float of_gradients = 0.0f;
    if constexpr (kCentred) {
      of_gradients = row_sum<kThreads>(gradients, shared) / static_cast<float>(cols);
    }
    const float of_products = row_sum<kThreads>(products, shared) / static_cast<float>(cols);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int i = (thread + c * kThreads) * N;
      if (i >= cols) continue;
      unpack<T>(kept_x[c], x);
      unpack<T>(kept_d[c], d);
      load(a.weight + i, w);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float gradient = d[j] * (w[j] + a.offset) - of_gradients;
        d[j] = __fmaf_rn((x[j] - mean) * rstd, -of_products, gradient) * rstd;
      }
      add_chunk(a.d_residual, at + i, w, d);
      store(a.d_x + at + i, d);
    }
  }
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int i = (thread + c * kThreads) * N;
    if (i < cols) store(partial + blockIdx.x * a.rows.cols + i, sum[c]);
  }
}

/// Partial sums that the kernel leaves; 0: the rows are not its. The workspace holds
/// norm_partial_sums(rows, cols) * cols floats and is aligned to 16 bytes.
template <class T>
std::int64_t norm_blocks(const NormBackward<T>& a, const float* workspace) {
  constexpr int N = kWidth<T>;
  constexpr std::int64_t kMostElements = 8192;
  const std::int64_t chunks = a.rows.cols / N;
  const bool wide = is_wide<T>(a.rows, a.x_rows.stride, a.x, a.weight, a.d_y, a.d_residual,
                               static_cast<const T*>(a.d_x)) &&
                    aligned<N>(workspace);
  if (!wide || chunks <= 64 || a.rows.cols > kMostElements) return 0;
  return std::min(a.rows.count(), kNormPartialSums);
}

/// Runs it, where norm_blocks says so.
template <bool kCentred, class T>
void launch_norm_backward_once(cudaStream_t stream, const NormBackward<T>& a, std::int64_t blocks,
                               float* workspace,
                               std::source_location where = std::source_location::current()) {
  const std::int64_t chunks = a.rows.cols / kWidth<T>;
  const auto with = [&](auto of_thread) {
    launch(norm_backward_once_kernel<T, of_thread(), kCentred>,
           {dim3(static_cast<unsigned>(blocks)), kThreads, 0, where}, stream, a, workspace);
  };
  if (chunks <= kThreads) {
    with(std::integral_constant<int, 1>{});
  } else if (chunks <= 2 * kThreads) {
    with(std::integral_constant<int, 2>{});
  } else if (chunks <= 4 * kThreads) {
    with(std::integral_constant<int, 4>{});
  } else if constexpr (std::is_same_v<T, float>) {
    with(std::integral_constant<int, 8>{});
  }
}

/// Calls body(whether the norm centres its rows, as a constant).
template <class Body>
void with_form(const float* mean, Body&& body) {
  if (mean != nullptr) return body(std::true_type{});
  body(std::false_type{});
}

}  // namespace

template <class T>
void norm_forward(cudaStream_t stream, const NormForward<T>& norm) {
  const std::int64_t count = norm.rows.count();
  if (count == 0) return;
  const bool wide =
      is_wide<T>(norm.rows, 0, norm.x, norm.weight, norm.bias, static_cast<const T*>(norm.y));
  with_form(norm.mean, [&](auto centred) {
    with_width<kWidth<T>>(wide, [&](auto n) {
      with_lanes(norm.rows.cols / n(), [&](auto lanes) {
        launch(norm_forward_kernel<T, n(), lanes(), centred()>,
               {blocks_for(count, kThreads / lanes()), kThreads}, stream, norm);
      });
    });
  });
}

template <class T, class G>
void norm_backward(cudaStream_t stream, const NormBackward<T>& norm, G* d_weight, float* workspace,
                   host::Store mode) {
  const std::int64_t count = norm.rows.count(), cols = norm.rows.cols;
  const std::int64_t blocks = norm_blocks(norm, workspace);
  const bool wide = is_wide<T>(norm.rows, norm.x_rows.stride, norm.x, norm.weight, norm.d_y,
                               norm.d_residual, static_cast<const T*>(norm.d_x));
  with_form(norm.mean, [&](auto centred) {
    if (blocks > 0) return launch_norm_backward_once<centred()>(stream, norm, blocks, workspace);
    with_width<kWidth<T>>(wide, [&](auto n) {
      launch_column_sums<n()>(stream, WeightRows<T, centred()>{norm}, count, cols, workspace);
      if (count == 0) return;
      with_lanes(cols / n(), [&](auto lanes) {
        launch(norm_backward_kernel<T, n(), lanes(), centred()>,
               {blocks_for(count, kThreads / lanes()), kThreads}, stream, norm);
      });
    });
  });
  if (blocks > 0) return sum_many_row_blocks(stream, workspace, blocks, cols, d_weight, mode);
  sum_row_blocks(stream, workspace, cols, d_weight, mode);
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

#define SHARDWRIGHT_INSTANTIATE_PAIR(T, G)                                            \
  template void norm_backward<T, G>(cudaStream_t, const NormBackward<T>&, G*, float*, \
                                    host::Store);                                     \
  template void bias_gradient<T, G>(cudaStream_t, host::Matrix<const T>, G*, float*, host::Store);
#define SHARDWRIGHT_INSTANTIATE(T)                                    \
  template void norm_forward<T>(cudaStream_t, const NormForward<T>&); \
  SHARDWRIGHT_INSTANTIATE_PAIR(T, float)                              \
  SHARDWRIGHT_INSTANTIATE_PAIR(T, BFloat16)
SHARDWRIGHT_INSTANTIATE(float)
SHARDWRIGHT_INSTANTIATE(BFloat16)
#undef SHARDWRIGHT_INSTANTIATE_PAIR
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::cuda
