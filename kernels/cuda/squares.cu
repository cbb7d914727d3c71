// SPDX-License-Identifier: Apache-2.0
// A square is an integer of 48 bits at some binary place. A warp adds up 32 x kItems squares as one
// 128-bit integer whose unit is 2^64 below the place of its largest square: numbers that are not
// 2^32 times smaller than the largest of their warp fit without loss. The others, which are rare,
// are added one by one. Sums of warps are cut into digits of 32 bits, added up in shared memory and
// then in global memory.

#include "kernels/cuda/grids.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/squares.h"
#include "kernels/exact_sum.h"

namespace shardwright::kernels::cuda {
namespace {

constexpr int kWords = static_cast<int>(ExactSum::kWords);
constexpr int kUnitExponent = 320;  // words count 2^-320
constexpr int kItems = 8;
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

template <class T, int N>
__global__ void __launch_bounds__(kThreads, 4)
    squares_kernel(const T* x, std::int64_t head, std::int64_t count, SharedWord* words) {
  __shared__ SharedWord sums[kWords];
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < kWords) sums[thread] = 0;
  __syncthreads();
  const std::int64_t warps = std::int64_t{gridDim.x} * (kThreads / 32);
  const std::int64_t chunks = (count - head) / N;
  constexpr int kChunks = kItems / N;  // of a lane in one round
  const std::int64_t rounds = (chunks + 32 * kChunks - 1) / (32 * kChunks);
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
    std::uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const std::uint32_t exponent = __float_as_uint(values[i]) >> 23 & 0xff;
      if (exponent == 0xff) {
        atomicAdd(sums + (kWords - 1), SharedWord{1});
        values[i] = 0.0f;
      } else {
        largest = exponent > largest ? exponent : largest;
      }
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const std::uint32_t other = __shfl_xor_sync(kAllLanes, largest, distance);
      largest = other > largest ? other : largest;
    }
    // value = mantissa * 2^(e - 150) with e = 1 for subnormals, so its square has place 2 e - 300.
    const int top_place = 2 * static_cast<int>(largest > 0 ? largest : 1) - 300 + kUnitExponent;
    const int unit = top_place > 64 ? top_place - 64 : 0;
    Integer128 sum{0, 0};
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const std::uint32_t bits = __float_as_uint(values[i]);
      const std::uint32_t exponent = bits >> 23 & 0xff;
      const std::uint64_t mantissa = (bits & 0x7fffff) | (exponent > 0 ? 0x800000u : 0u);
      const int place = 2 * static_cast<int>(exponent > 0 ? exponent : 1) - 300 + kUnitExponent;
      const std::uint64_t square = mantissa * mantissa;
      if (place >= unit) {
        sum = AddIntegers{}(sum, shifted(square, place - unit));
      } else if (square != 0) {
        for (int digit = 0; digit < 3; ++digit) add_digit(sums, {square, 0}, place, digit);
      }
    }
    sum = warp_reduce<32>(sum, AddIntegers{});
    if (thread % 32 < 5) add_digit(sums, sum, unit, thread % 32);
  }
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
