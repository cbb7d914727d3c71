// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <type_traits>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/exact_sum.h"
#include "kernels/random.h"

namespace shardwright::kernels::cuda {
namespace {

// Sums of squares. A square is an integer of 48 bits (of bf16: 16) at some binary place. A warp
// agrees on a window of exponents. Mantissas are shifted to the window's lowest place, so that
// their squares are whole numbers of one unit, and each lane adds those up by itself in 64-bit
// integers: one multiply-add a number for bf16, three for fp32, whose shifted mantissas have 47
// bits and are cut in two halves. Only when a number lies above the window, which happens a few
// times in the beginning, or when the integers are full, the lanes' sums are joined, cut into
// digits of 32 bits, and added up in shared memory; the window then moves. Numbers below the
// window, which are rare, are added one by one. At the end the digits go to global memory.
//
// All of it is exact, so any order gives the same number. What counts is instructions: a few for
// each byte that is read, or the kernel would take longer than reading takes.

constexpr int kWords = static_cast<int>(ExactSum::kWords);
constexpr int kUnitExponent = 320;  // words count 2^-320
constexpr int kItems = 16;          // of a lane in one round
constexpr int kBlocks = 1024;

struct Integer128 {
  std::uint64_t low, high;
};

struct AddIntegers {
  __device__ Integer128 operator()(Integer128 a, Integer128 b) const {
    const std::uint64_t low = a.low + b.low;
    return {low, a.high + b.high + (low < a.low ? 1 : 0)};
  }
};

/// value << shift, shift from 0 to 64.
__device__ __forceinline__ Integer128 shifted(std::uint64_t value, int shift) {
  if (shift == 0) return {value, 0};
  if (shift == 64) return {0, value};
  return {value << shift, value >> (64 - shift)};
}

using SharedWord = unsigned long long;  // the type of CUDA's 64-bit atomics

/// Adds digit `index` of value * 2^place to the words.
__device__ __forceinline__ void add_digit(SharedWord* words, Integer128 value, int place,
                                          int index) {
  const int shift = place % 32;
  // Digit i holds bits 32 i - shift to 32 i - shift + 31 of the value.
  const int begin = 32 * index - shift;
  std::uint64_t digit;
  if (begin < 0) {
    digit = value.low << -begin;
  } else if (begin == 0) {
    digit = value.low;
  } else if (begin < 64) {
    digit = value.low >> begin | value.high << (64 - begin);
  } else {
    digit = begin < 128 ? value.high >> (begin - 64) : 0;
  }
  digit &= 0xffffffffu;
  if (digit != 0) atomicAdd(words + place / 32 + index, static_cast<SharedWord>(digit));
}

/// How the squares of a type are added up in a window of exponents [base, base + kSpan].
template <class T>
struct Window;

template <>
struct Window<float> {
  static constexpr std::uint32_t kSpan = 23;
  static constexpr int kHeadroom = 4;        // of the span, above what was largest when it moved
  static constexpr int kCapacity = 1 << 16;  // numbers of a lane before a sum could overflow
  /// The place of the square of a number whose exponent is 0: value = mantissa * 2^(e - 150).
  static constexpr int kPlace = kUnitExponent - 300;

  static __device__ std::uint32_t mantissa(std::uint32_t bits) { return bits & 0x7fffff; }
  static constexpr std::uint32_t kImplicit = 0x800000;

  std::uint64_t high_high = 0, high_low = 0, low_low = 0;
  __device__ void add(std::uint32_t mantissa, std::uint32_t shift) {
    // Times 2^(8 + shift): bits 24 and up of the shifted mantissa are the upper word.
    const std::uint64_t shifted = std::uint64_t{mantissa} * (256u << shift);
    const auto high = static_cast<std::uint32_t>(shifted >> 32);
    const std::uint32_t low = static_cast<std::uint32_t>(shifted) >> 8;
    high_high += std::uint64_t{high} * high;
    high_low += std::uint64_t{high} * low;
    low_low += std::uint64_t{low} * low;
  }
  __device__ Integer128 sum() const {
    return AddIntegers{}(AddIntegers{}(shifted(high_high, 48), shifted(high_low, 25)),
                         {low_low, 0});
  }
};

template <>
struct Window<BFloat16> {
  static constexpr std::uint32_t kSpan = 19;
  static constexpr int kHeadroom = 3;
  static constexpr int kCapacity = 1 << 10;
  static constexpr int kPlace = kUnitExponent - 268;  // value = mantissa * 2^(e - 134)

  static __device__ std::uint32_t mantissa(std::uint32_t bits) { return bits >> 16 & 0x7f; }
  static constexpr std::uint32_t kImplicit = 0x80;

  std::uint64_t squares = 0;
  __device__ void add(std::uint32_t mantissa, std::uint32_t shift) {
    const std::uint32_t shifted = mantissa << shift;
    squares += std::uint64_t{shifted} * shifted;
  }
  __device__ Integer128 sum() const { return {squares, 0}; }
};

__device__ __forceinline__ std::uint32_t exponent_of(float value) {
  return __float_as_uint(value) >> 23 & 0xff;
}

/// What a warp has added up and not yet handed to the words of its block.
template <class T>
class WarpSum {
 public:
  explicit __device__ WarpSum(SharedWord* words) : words_(words) {}

  /// Adds the squares of all lanes. All lanes take part.
  __device__ void add(const float (&values)[kItems]) {
    std::uint32_t farthest = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) farthest = max(farthest, exponent_of(values[i]) - base_);
    if (__any_sync(kAllLanes, farthest > Window<T>::kSpan)) return add_some_outside(values);
#pragma unroll
    for (int i = 0; i < kItems; ++i) add_inside(values[i]);
    if (++rounds_ == Window<T>::kCapacity / kItems) flush();
  }

  __device__ void flush() {
    const Integer128 sum = warp_reduce<32>(window_.sum(), AddIntegers{});
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < 5) add_digit(words_, sum, place(base_), lane);
    window_ = {};
    rounds_ = 0;
  }

 private:
  static __device__ int place(std::uint32_t exponent) {
    return 2 * static_cast<int>(exponent) + Window<T>::kPlace;
  }
  __device__ void add_inside(float value) {
    const std::uint32_t bits = __float_as_uint(value);
    window_.add(Window<T>::mantissa(bits) | Window<T>::kImplicit, exponent_of(value) - base_);
  }
  /// The slow way, which is also that of zeros: the window's exponents are 1 and more.
  __device__ void add_some_outside(const float (&values)[kItems]) {
    std::uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const std::uint32_t exponent = exponent_of(values[i]);
      if (exponent != 0xff) largest = max(largest, exponent);
    }
    largest = warp_reduce<32>(largest, [](std::uint32_t a, std::uint32_t b) { return max(a, b); });
    if (largest > base_ + Window<T>::kSpan) {
      flush();
      // Infinity and NaN stay outside.
      const std::uint32_t wanted = largest - (Window<T>::kSpan - Window<T>::kHeadroom);
      base_ = min(wanted, 0xfe - Window<T>::kSpan);
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const std::uint32_t bits = __float_as_uint(values[i]), exponent = exponent_of(values[i]);
      if (exponent == 0xff) {
        atomicAdd(words_ + (kWords - 1), SharedWord{1});
      } else if (exponent - base_ <= Window<T>::kSpan) {
        add_inside(values[i]);
      } else if (bits << 1 != 0) {
        // A subnormal number has the exponent 1 and no implicit bit.
        const std::uint32_t mantissa =
            Window<T>::mantissa(bits) | (exponent > 0 ? Window<T>::kImplicit : 0);
        const Integer128 square{std::uint64_t{mantissa} * mantissa, 0};
        for (int digit = 0; digit < 3; ++digit) {
          add_digit(words_, square, place(max(exponent, 1u)), digit);
        }
      }
    }
    if (++rounds_ == Window<T>::kCapacity / kItems) flush();
  }

  SharedWord* words_;
  Window<T> window_;
  std::uint32_t base_ = 1;
  int rounds_ = 0;
};

template <class T, int N>
__global__ void __launch_bounds__(kThreads, 3)
    squares_kernel(const T* x, std::int64_t head, std::int64_t count, SharedWord* words) {
  __shared__ SharedWord sums[kWords];
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < kWords) sums[thread] = 0;
  __syncthreads();
  const std::int64_t warps = std::int64_t{gridDim.x} * (kThreads / 32);
  const std::int64_t chunks = (count - head) / N;
  constexpr int kChunks = kItems / N;  // of a lane in one round
  const std::int64_t rounds = (chunks + 32 * kChunks - 1) / (32 * kChunks);
  WarpSum<T> sum(sums);
  // The last round is that of the single elements before and after the chunks.
  for (std::int64_t round = std::int64_t{blockIdx.x} * (kThreads / 32) + thread / 32;
       round <= rounds; round += warps) {
    float values[kItems] = {};
    if (round < rounds) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const std::int64_t chunk = (round * kChunks + c) * 32 + thread % 32;
        if (chunk < chunks) {
          float v[N];
          load(x + head + chunk * N, v);
#pragma unroll
          for (int j = 0; j < N; ++j) values[c * N + j] = v[j];
        }
      }
    } else if constexpr (N > 1) {
      const int lane = thread % 32;
      const std::int64_t left = count - chunks * N;
      if (lane < left) {
        float v[1];
        load(x + (lane < head ? lane : lane + chunks * N), v);
        values[0] = v[0];
      }
    }
    sum.add(values);
  }
  sum.flush();
  __syncthreads();
  // Carry, so that a block adds less than 2^32 to a word.
  if (thread == 0) {
    SharedWord carried = 0;
    for (int word = 0; word < kWords - 1; ++word) {
      const SharedWord digit = sums[word] + carried;
      sums[word] = digit & 0xffffffffu;
      carried = digit >> 32;
    }
  }
  __syncthreads();
  if (thread < kWords && sums[thread] != 0) atomicAdd(words + thread, sums[thread]);
}

// AdamW.

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

template <class T>
void sum_of_squares(cudaStream_t stream, const T* x, std::int64_t count, std::int64_t* words) {
  if (count == 0) return;
  constexpr int kN = kWidth<T>;
  const int head = aligned_from<kN>(x);
  const bool wide = head >= 0 && count >= head;
  with_width<kN>(wide, [&](auto n) {
    const std::int64_t rounds = count / (32 * kItems) + 1;
    const std::int64_t blocks = (rounds + kThreads / 32 - 1) / (kThreads / 32);
    launch(squares_kernel<T, n()>,
           {static_cast<unsigned>(blocks < kBlocks ? blocks : kBlocks), kThreads}, stream, x,
           std::int64_t{wide ? head : 0}, count, reinterpret_cast<SharedWord*>(words));
  });
}

template void sum_of_squares<float>(cudaStream_t, const float*, std::int64_t, std::int64_t*);
template void sum_of_squares<BFloat16>(cudaStream_t, const BFloat16*, std::int64_t, std::int64_t*);

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
