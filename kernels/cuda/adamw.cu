// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <type_traits>

#include "kernels/cuda/adamw.h"
#include "kernels/cuda/grids.h"
#include "kernels/random.h"

namespace shardwright::kernels::cuda {
namespace {

constexpr std::size_t kSegmentsOfLaunch = 64;
constexpr int kWarps = kThreads / 32;

struct Numbers {
  float keep_decaying, keep_plain;
  float beta1, beta1_rest, beta2, beta2_rest, step_size, root_correction, eps;
  std::uint64_t seed;
  std::uint32_t step;
};

struct Segment {
  std::int64_t offset, count;
  std::uint64_t first_index;
  std::int32_t decays;
  std::uint32_t first_block;
};

/// The rest of a segment's ElementIndices.
struct RowsOfSegment {
  std::int64_t begin, length, stride;
};

template <class P, class G, class M>
struct AdamWArguments {
  Numbers numbers;
  const double* grad_scale;
  const G* gradient;
  P* parameter;
  M* m;
  M* v;
  int head;  // elements of the arrays before the first that begins a chunk everywhere
  int segment_count;
  Segment segments[kSegmentsOfLaunch];
  RowsOfSegment rows[kSegmentsOfLaunch];
};

/// Words of the groups of 64 that a window of indices may touch.
template <int kWindow>
inline constexpr int kSharedWords = (63 + kWindow + 63) / 64 * 64;

/// Random words of `count` indices from `first` on, at most kWindow, made by a warp. One block of
/// Philox serves four indices (kernels/random.h), so words are made a group of 64 at a time and
/// handed over through `shared`, which takes kSharedWords. Returns the word of `first`.
template <int kWindow>
__device__ const std::uint32_t* warp_random_words(const RandomStream& stream, std::uint64_t first,
                                                  std::uint32_t* shared) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const std::uint64_t first_group = first / 64;
  const auto skipped = static_cast<int>(first % 64);
  // 16 blocks a group; the last group matters only when the window does not begin with one.
  const int blocks = 16 * ((skipped + kWindow + 63) / 64);
  __syncwarp();
  for (int block = lane; block < blocks; block += 32) {
    const auto words = stream.block(16 * first_group + static_cast<std::uint64_t>(block));
    std::uint32_t* group = shared + block / 16 * 64 + block % 16;
#pragma unroll
    for (int word = 0; word < 4; ++word) group[16 * word] = words[static_cast<std::size_t>(word)];
  }
  __syncwarp();
  return shared + skipped;
}

/// Words of this thread's N elements, where those of its warp begin at `i_of_warp`.
template <bool kRows, int N>
__device__ __forceinline__ void chunk_words(const RandomStream& stream,
                                            const ElementIndices& indices, std::int64_t i_of_warp,
                                            std::uint32_t* shared, std::uint32_t (&words)[N]) {
  constexpr int kWindow = 32 * N;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  if constexpr (kRows) {
    // A warp that meets the end of a row.
    if (indices.run(i_of_warp, kWindow) < kWindow) {
#pragma unroll
      for (int j = 0; j < N; ++j) words[j] = stream.word(indices.of(i_of_warp + lane * N + j));
      return;
    }
  }
  const std::uint64_t first =
      kRows ? indices.of(i_of_warp) : indices.first + static_cast<std::uint64_t>(i_of_warp);
  const std::uint32_t* made = warp_random_words<kWindow>(stream, first, shared);
#pragma unroll
  for (int j = 0; j < N; ++j) words[j] = made[lane * N + j];
}

template <int N>
__device__ __forceinline__ void store_stochastically(BFloat16* p, const float (&v)[N],
                                                     const std::uint32_t (&random)[N], int shift) {
  BFloat16 bits[N];
#pragma unroll
  for (int j = 0; j < N; ++j) {
    bits[j] = to_bf16_stochastic(v[j], static_cast<std::uint16_t>(random[j] >> shift));
  }
  if constexpr (N == 1) {
    *p = bits[0];
  } else {
    uint4 word;
    static_assert(sizeof word == sizeof bits);
    memcpy(&word, bits, sizeof word);
    store_word(p, word);
  }
}
template <int N>
__device__ __forceinline__ void store_stochastically(float* p, const float (&v)[N],
                                                     const std::uint32_t (&)[N], int) {
  store(p, v);
}

/// Updates N neighbouring elements; intrinsics keep the compiler from fusing what the host rounds
/// twice.
template <int N, class P, class G, class M>
__device__ __forceinline__ void update(const AdamWArguments<P, G, M>& a, float keep, float scale,
                                       std::int64_t i, const std::uint32_t (&moment_words)[N],
                                       const std::uint32_t (&parameter_words)[N]) {
  const Numbers& n = a.numbers;
  float g[N], p[N], m[N], v[N];
  load(a.gradient + i, g);
  load(a.parameter + i, p);
  load(a.m + i, m);
  load(a.v + i, v);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float scaled = __fmul_rn(g[j], scale);
    m[j] = __fmaf_rn(m[j], n.beta1, __fmul_rn(scaled, n.beta1_rest));
    v[j] = __fmaf_rn(v[j], n.beta2, __fmul_rn(__fmul_rn(scaled, scaled), n.beta2_rest));
    const float denominator = __fmaf_rn(__fsqrt_rn(v[j]), n.root_correction, n.eps);
    p[j] = __fsub_rn(__fmul_rn(p[j], keep), __fdiv_rn(__fmul_rn(n.step_size, m[j]), denominator));
  }
  store_stochastically(a.m + i, m, moment_words, 0);
  store_stochastically(a.v + i, v, moment_words, 16);
  store_stochastically(a.parameter + i, p, parameter_words, 0);
}

/// A block has kThreads chunks of N elements of one segment, a warp 32 of them; the first block of
/// a segment has its single elements before and after the chunks, too.
template <bool kRows, int N, class P, class G, class M>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(const __grid_constant__ AdamWArguments<P, G, M> a) {
  constexpr bool kRoundsMoments = !std::is_same_v<M, float>;
  constexpr bool kRoundsParameter = !std::is_same_v<P, float>;
  constexpr int kWindow = 32 * N;
  __shared__ std::uint32_t words[kWarps][kSharedWords<kWindow>];
  if (!isfinite(*a.grad_scale)) return;
  const auto scale = static_cast<float>(*a.grad_scale);
  int index = 0;
  while (index + 1 < a.segment_count && a.segments[index + 1].first_block <= blockIdx.x) ++index;
  const Segment& segment = a.segments[index];
  const float keep = segment.decays ? a.numbers.keep_decaying : a.numbers.keep_plain;
  const RandomStream moments{a.numbers.seed, RandomSite::kRoundMoments, a.numbers.step};
  const RandomStream parameters{a.numbers.seed, RandomSite::kRoundParameter, a.numbers.step};

  const std::int64_t misaligned = (a.head - segment.offset) % N;
  std::int64_t head = misaligned < 0 ? misaligned + N : misaligned;
  if (head > segment.count) head = segment.count;
  const std::int64_t chunks = (segment.count - head) / N;
  const std::int64_t block = blockIdx.x - segment.first_block;
  const auto warp = static_cast<int>(threadIdx.x / 32);

  const std::int64_t chunk = block * kThreads + static_cast<int>(threadIdx.x);
  const std::int64_t first_of_warp = head + (block * kThreads + warp * 32) * N;
  ElementIndices indices{.first = segment.first_index};
  if constexpr (kRows) {
    const RowsOfSegment& rows = a.rows[index];
    indices = {segment.first_index, rows.begin, rows.length, rows.stride};
  }
  std::uint32_t moment_words[N], parameter_words[N];
  if constexpr (kRoundsMoments) {
    chunk_words<kRows>(moments, indices, first_of_warp, words[warp], moment_words);
  }
  if constexpr (kRoundsParameter) {
    chunk_words<kRows>(parameters, indices, first_of_warp, words[warp], parameter_words);
  }
  if (chunk < chunks) {
    update<N>(a, keep, scale, segment.offset + head + chunk * N, moment_words, parameter_words);
  }
  if (N == 1 || block != 0) return;
  // Fewer than 2 N elements are left; thread t takes the t-th of them.
  const std::int64_t left = segment.count - chunks * N;
  if (static_cast<std::int64_t>(threadIdx.x) >= left) return;
  const std::int64_t t = threadIdx.x;
  const std::int64_t i = t < head ? t : t + chunks * N;
  const std::uint64_t global = indices.of(i);
  const std::uint32_t moment_word[1] = {kRoundsMoments ? moments.word(global) : 0};
  const std::uint32_t parameter_word[1] = {kRoundsParameter ? parameters.word(global) : 0};
  update<1>(a, keep, scale, segment.offset + i, moment_word, parameter_word);
}

Numbers numbers_of(const AdamW& o) {
  const double t = static_cast<double>(o.step);
  return {.keep_decaying = static_cast<float>(1.0 - o.lr * o.weight_decay),
          .keep_plain = 1.0f,
          .beta1 = static_cast<float>(o.beta1),
          .beta1_rest = static_cast<float>(1.0 - o.beta1),
          .beta2 = static_cast<float>(o.beta2),
          .beta2_rest = static_cast<float>(1.0 - o.beta2),
          .step_size = static_cast<float>(o.lr / (1.0 - std::pow(o.beta1, t))),
          .root_correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(o.beta2, t))),
          .eps = static_cast<float>(o.eps),
          .seed = o.seed,
          .step = static_cast<std::uint32_t>(o.step)};
}

}  // namespace

template <class P, class G, class M>
void adamw(cudaStream_t stream, const AdamW& options, const double* grad_scale,
           std::span<const AdamWSegment> segments, const G* gradient, P* parameter, M* m, M* v) {
  constexpr int kN = kWidth<P, G, M>;
  AdamWArguments<P, G, M> a{};
  a.numbers = numbers_of(options);
  a.grad_scale = grad_scale;
  a.gradient = gradient;
  a.parameter = parameter;
  a.m = m;
  a.v = v;
  const int head = aligned_from<kN>(gradient, parameter, m, v);
  a.head = head < 0 ? 0 : head;
  with_width<kN>(head >= 0, [&](auto n) {
    while (!segments.empty()) {
      const auto part = segments.first(std::min(segments.size(), kSegmentsOfLaunch));
      segments = segments.subspan(part.size());
      std::uint32_t blocks = 0;
      a.segment_count = 0;
      bool rows = false;
      for (const AdamWSegment& s : part) {
        if (s.count == 0) continue;
        a.rows[a.segment_count] = {s.row_begin, s.row_length, s.row_stride};
        a.segments[a.segment_count++] = {s.offset, s.count, s.first_index, s.decays ? 1 : 0,
                                         blocks};
        rows = rows || s.row_length > 0;
        const std::int64_t of_block = std::int64_t{kThreads} * n();
        blocks += static_cast<std::uint32_t>((s.count + of_block - 1) / of_block);
      }
      if (blocks == 0) continue;
      if constexpr (!std::is_same_v<P, float> || !std::is_same_v<M, float>) {
        if (rows) {
          launch(adamw_kernel<true, n(), P, G, M>, {blocks, kThreads}, stream, a);
          continue;
        }
      }
      launch(adamw_kernel<false, n(), P, G, M>, {blocks, kThreads}, stream, a);
    }
  });
}

#define SHARDWRIGHT_INSTANTIATE(P, G, M)                                  \
  template void adamw<P, G, M>(cudaStream_t, const AdamW&, const double*, \
                               std::span<const AdamWSegment>, const G*, P*, M*, M*);
SHARDWRIGHT_INSTANTIATE(float, float, float)
SHARDWRIGHT_INSTANTIATE(float, float, BFloat16)
SHARDWRIGHT_INSTANTIATE(float, BFloat16, float)
SHARDWRIGHT_INSTANTIATE(float, BFloat16, BFloat16)
SHARDWRIGHT_INSTANTIATE(BFloat16, float, float)
SHARDWRIGHT_INSTANTIATE(BFloat16, float, BFloat16)
SHARDWRIGHT_INSTANTIATE(BFloat16, BFloat16, float)
SHARDWRIGHT_INSTANTIATE(BFloat16, BFloat16, BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::cuda
