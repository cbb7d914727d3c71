// SPDX-License-Identifier: Apache-2.0
// A square is an integer of 48 bits (of bf16: 16) at some binary place. A warp agrees on a window
// of exponents. Mantissas are shifted to the window's lowest place, so that their squares are whole
// numbers of one unit, and each lane adds those up by itself in 64-bit integers: one multiply-add a
// number for bf16, three for fp32, whose shifted mantissas have 47 bits and are cut in two halves.
// Only when a number lies above the window, which happens a few times in the beginning, or when the
// integers are full, the lanes' sums are joined, cut into digits of 32 bits, and added up in shared
// memory; the window then moves. Numbers below the window, which are rare, are added one by one. At
// the end the digits go to global memory.
//
// All of it is exact, so any order gives the same number. What counts is instructions: a few for
// each byte that is read, or the kernel would take longer than reading takes.

#include "kernels/cuda/grids.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/squares.h"
#include "kernels/exact_sum.h"

namespace shardwright::kernels::cuda {
namespace {

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

}  // namespace shardwright::kernels::cuda
