// SPDX-License-Identifier: Apache-2.0
// The gradient groups the places of the batch by token: count, sum up the counts, put each place
// into its token's list, sort each list. Lists are filled with integer atomics, so their order
// differs from run to run until they are sorted; everything after that has a fixed order.

#include "kernels/cuda/embedding.h"
#include "kernels/cuda/launch.h"

namespace shardwright::kernels::cuda {
namespace {

constexpr int kScanThreads = 1024;
constexpr int kScanItems = 16;  // of a thread in one round

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    embedding_forward_kernel(host::Matrix<const T> table, const std::int32_t* tokens,
                             host::Matrix<T> out, float scale, bool adds, std::int64_t first_row,
                             bool whole) {
  for_row_chunks(out.rows, out.cols / N, [&](std::int64_t row, std::int64_t chunk) {
    const std::int64_t token = tokens[row], at = token - first_row;
    T* to = out.data + row * out.stride + chunk * N;
    float v[N];
    if (at >= 0 && at < table.rows) {
      load(table.data + at * table.stride + chunk * N, v);
    } else if (whole || token < 0) {
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] = __uint_as_float(0x7fc00000u);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] = -0.0f;
      if (!adds) store(to, v);
      return;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] *= scale;
    if (adds) {
      float before[N];
      load(to, before);
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] += before[j];
    }
    store(to, v);
  });
}

/// counts[v] = how often first_row + v occurs; counts are zero before.
__global__ void __launch_bounds__(kThreads)
    count_tokens_kernel(const std::int32_t* tokens, std::int64_t count, std::int64_t first_row,
                        std::int64_t rows, std::int32_t* counts) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const std::int64_t row = tokens[i] - first_row;
  if (row >= 0 && row < rows) atomicAdd(counts + row, 1);
}

/// counts[v] becomes the sum of counts[0] to counts[v - 1]. One block walks along the array.
__global__ void __launch_bounds__(kScanThreads)
    exclusive_scan_kernel(std::int32_t* counts, std::int64_t count) {
  __shared__ std::int32_t warp_sums[32];
  const int thread = static_cast<int>(threadIdx.x);
  std::int32_t before = 0;  // sum of the rounds so far
  for (std::int64_t begin = 0; begin < count; begin += kScanThreads * kScanItems) {
    const std::int64_t at = begin + std::int64_t{thread} * kScanItems;
    std::int32_t value[kScanItems];
    std::int32_t own = 0;
#pragma unroll
    for (int j = 0; j < kScanItems; ++j) {
      value[j] = at + j < count ? counts[at + j] : 0;
      own += value[j];
    }
    std::int32_t up_to = own;  // of the lanes up to this one
#pragma unroll
    for (unsigned distance = 1; distance < 32; distance *= 2) {
      const std::int32_t other = __shfl_up_sync(kAllLanes, up_to, distance);
      if (thread % 32 >= static_cast<int>(distance)) up_to += other;
    }
    if (thread % 32 == 31) warp_sums[thread / 32] = up_to;
    __syncthreads();
    std::int32_t sum = before + up_to - own;
    std::int32_t total = 0;
    for (int warp = 0; warp < kScanThreads / 32; ++warp) {
      if (warp < thread / 32) sum += warp_sums[warp];
      total += warp_sums[warp];
    }
#pragma unroll
    for (int j = 0; j < kScanItems; ++j) {
      if (at + j < count) counts[at + j] = sum;
      sum += value[j];
    }
    before += total;
    __syncthreads();
  }
}

/// ends[v] is the beginning of v's list before and its end after.
__global__ void __launch_bounds__(kThreads)
    list_places_kernel(const std::int32_t* tokens, std::int64_t count, std::int64_t first_row,
                       std::int64_t rows, std::int32_t* ends, std::int32_t* places) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const std::int64_t row = tokens[i] - first_row;
  if (row >= 0 && row < rows) places[atomicAdd(ends + row, 1)] = static_cast<std::int32_t>(i);
}

/// Sorts ascending with a whole block: a bitonic network in which every comparison puts the smaller
/// one first, so that a list of any length may be thought to go on with infinities.
__device__ void sort_list(std::int32_t* list, int count) {
  for (int run = 2; run / 2 < count; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      for (int pair = static_cast<int>(threadIdx.x);; pair += kThreads) {
        const int low = pair / distance * 2 * distance + pair % distance;
        if (low >= count) break;
        // The first step of a run compares mirror images, the others neighbours at a distance.
        const int high =
            distance == run / 2 ? low / run * run + (run - 1 - low % run) : low + distance;
        if (high < count && list[low] > list[high]) {
          const std::int32_t kept = list[low];
          list[low] = list[high];
          list[high] = kept;
        }
      }
      __syncthreads();
    }
  }
}

constexpr int kRowsAhead = 8;

/// A block sorts the list of its token and sums up the rows.
template <class T, class G, int N>
__global__ void __launch_bounds__(kThreads, 3)
    embedding_backward_kernel(host::Matrix<const T> d_out, host::Matrix<G> d_table, bool adds,
                              float scale, const std::int32_t* ends, std::int32_t* places) {
  for (std::int64_t v = blockIdx.x; v < d_table.rows; v += gridDim.x) {
    const std::int32_t begin = v == 0 ? 0 : ends[v - 1];
    const std::int32_t end = ends[v];
    if (begin == end && adds) continue;
    sort_list(places + begin, end - begin);
    for (std::int64_t chunk = threadIdx.x; chunk < d_table.cols / N; chunk += kThreads) {
      float sum[N], row[N];
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] = 0.0f;
      // Some rows are on their way at once, because a frequent token has thousands of places and
      // the other blocks have long ended; they are added in order all the same.
      std::int32_t place = begin;
      for (; place + kRowsAhead <= end; place += kRowsAhead) {
        float rows[kRowsAhead][N];
#pragma unroll
        for (int r = 0; r < kRowsAhead; ++r) {
          load(d_out.data + places[place + r] * d_out.stride + chunk * N, rows[r]);
        }
#pragma unroll
        for (int r = 0; r < kRowsAhead; ++r) {
#pragma unroll
          for (int j = 0; j < N; ++j) sum[j] += rows[r][j];
        }
      }
      for (; place < end; ++place) {
        load(d_out.data + places[place] * d_out.stride + chunk * N, row);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += row[j];
      }
      G* to = d_table.data + v * d_table.stride + chunk * N;
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] *= scale;
      if (adds) {
        load(to, row);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += row[j];
      }
      store(to, sum);
    }
  }
}

}  // namespace

template <class T>
void embedding_forward(cudaStream_t stream, host::Matrix<const T> table, const std::int32_t* tokens,
                       host::Matrix<T> out, double scale, host::Store mode,
                       std::int64_t first_row) {
  if (out.rows == 0) return;
  constexpr int kN = kWidth<T>;
  const bool wide = (out.cols | out.stride | table.stride) % kN == 0 &&
                    aligned<kN>(table.data, static_cast<const T*>(out.data));
  with_width<kN>(wide, [&](auto n) {
    const RowTiles tiles = row_tiles(out.rows, out.cols / n());
    launch(embedding_forward_kernel<T, n()>, {tiles.grid, tiles.block}, stream, table, tokens, out,
           static_cast<float>(scale), mode == host::Store::kAdd, first_row < 0 ? 0 : first_row,
           first_row == kWholeTable);
  });
}

template <class T, class G>
void embedding_backward(cudaStream_t stream, const std::int32_t* tokens,
                        host::Matrix<const T> d_out, host::Matrix<G> d_table, host::Store mode,
                        std::int32_t* workspace, double scale, std::int64_t first_row) {
  const std::int64_t count = d_out.rows;
  const std::int64_t vocab = d_table.rows;
  const std::int64_t first = first_row < 0 ? 0 : first_row;
  std::int32_t* places = workspace;
  std::int32_t* ends = workspace + count;
  SHARDWRIGHT_CUDA(
      cudaMemsetAsync(ends, 0, static_cast<std::size_t>(vocab + 1) * sizeof(std::int32_t), stream));
  if (count > 0) {
    const LaunchShape by_token{static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads};
    launch(count_tokens_kernel, by_token, stream, tokens, count, first, vocab, ends);
    launch(exclusive_scan_kernel, {1, kScanThreads}, stream, ends, vocab + 1);
    launch(list_places_kernel, by_token, stream, tokens, count, first, vocab, ends, places);
  }
  constexpr int kN = kWidth<T, G>;
  const bool wide = (d_out.stride | d_table.stride | d_table.cols) % kN == 0 &&
                    aligned<kN>(d_out.data, static_cast<const G*>(d_table.data));
  with_width<kN>(wide, [&](auto n) {
    launch(embedding_backward_kernel<T, G, n()>, {blocks_for(vocab, 1), kThreads}, stream, d_out,
           d_table, mode == host::Store::kAdd, static_cast<float>(scale),
           static_cast<const std::int32_t*>(ends), places);
  });
}

template void embedding_forward<float>(cudaStream_t, host::Matrix<const float>, const std::int32_t*,
                                       host::Matrix<float>, double, host::Store, std::int64_t);
template void embedding_forward<BFloat16>(cudaStream_t, host::Matrix<const BFloat16>,
                                          const std::int32_t*, host::Matrix<BFloat16>, double,
                                          host::Store, std::int64_t);
#define SHARDWRIGHT_INSTANTIATE(T, G)                                                              \
  template void embedding_backward<T, G>(cudaStream_t, const std::int32_t*, host::Matrix<const T>, \
                                         host::Matrix<G>, host::Store, std::int32_t*, double,      \
                                         std::int64_t);
SHARDWRIGHT_INSTANTIATE(float, float)
SHARDWRIGHT_INSTANTIATE(float, BFloat16)
SHARDWRIGHT_INSTANTIATE(BFloat16, float)
SHARDWRIGHT_INSTANTIATE(BFloat16, BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::cuda
