// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <string>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch.h"
#include "sim/core/base/error.h"

namespace shardwright::kernels::cuda {
namespace {

template <class From, class To>
struct Cast {
  const From* in;
  To* out;
  template <int N>
  __device__ void at(std::int64_t i) const {
    float v[N];
    load(in + i, v);
    store(out + i, v);
  }
};

template <class In, class Sum>
struct Accumulate {
  const In* in;
  Sum* sum;
  template <int N>
  __device__ void at(std::int64_t i) const {
    float v[N], s[N];
    load(in + i, v);
    load(sum + i, s);
#pragma unroll
    for (int j = 0; j < N; ++j) s[j] += v[j];
    store(sum + i, s);
  }
};

template <class In, class Out>
struct FoldArguments {
  const In* inputs[kMaxFoldInputs];
  int input_count;
  bool adds;
  Out* out;
};

template <class In, class Out>
struct Fold : FoldArguments<In, Out> {
  using FoldArguments<In, Out>::inputs, FoldArguments<In, Out>::input_count,
      FoldArguments<In, Out>::adds, FoldArguments<In, Out>::out;
  template <int N>
  __device__ void at(std::int64_t i) const {
    float s[N], v[N];
    int next = 0;
    if (adds) {
      load(out + i, s);
    } else {
      load(inputs[next++] + i, s);
    }
    for (; next < input_count; ++next) {
      load(inputs[next] + i, v);
#pragma unroll
      for (int j = 0; j < N; ++j) s[j] += v[j];
    }
    store(out + i, s);
  }
};

/// a += b, rounded to T where that is not the last sum.
template <class T, int N>
__device__ __forceinline__ void add_node(float (&a)[N], const float (&b)[N], bool last) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    a[j] += b[j];
    if constexpr (!std::is_same_v<T, float>) {
      if (!last) a[j] = __uint_as_float(std::uint32_t{rounded<T>(a[j]).bits} << 16);
    }
  }
}

/// Of at most 2^kLevels inputs.
template <class In, class Out, int kLevels>
struct FoldTree : FoldArguments<In, Out> {
  using FoldArguments<In, Out>::inputs, FoldArguments<In, Out>::input_count,
      FoldArguments<In, Out>::adds, FoldArguments<In, Out>::out;
  template <int N>
  __device__ void at(std::int64_t i) const {
    // As one counts in binary: waiting[l] is a finished subtree of 2^l inputs to the left. Loops
    // over levels are unrolled, so it stays in registers.
    float waiting[kLevels][N] = {}, s[N], v[N];
    load(inputs[0] + i, s);
#pragma unroll 1
    for (int next = 1; next < input_count; next += 2) {
      if (next > 1) load(inputs[next - 1] + i, s);
      load(inputs[next] + i, v);
      add_node<In>(s, v, input_count == 2);
      bool done = false;
#pragma unroll
      for (int level = 1; level < kLevels; ++level) {
        if (done) continue;
        if ((next >> level) % 2 == 1) {
#pragma unroll
          for (int j = 0; j < N; ++j) v[j] = s[j];
#pragma unroll
          for (int j = 0; j < N; ++j) s[j] = waiting[level][j];
          add_node<In>(s, v, input_count == 2 << level);
        } else {
#pragma unroll
          for (int j = 0; j < N; ++j) waiting[level][j] = s[j];
          done = true;
        }
      }
    }
    if (adds) {
      load(out + i, v);
#pragma unroll
      for (int j = 0; j < N; ++j) s[j] += v[j];
    }
    store(out + i, s);
  }
};

template <class T>
struct Poison {
  T* data;
  template <int N>
  __device__ void at(std::int64_t i) const {
    if constexpr (N > 1) {
      static_assert(N * sizeof(T) == sizeof(uint4));
      const std::uint32_t word = std::is_same_v<T, float> ? 0x7fa00001u : 0x7fa17fa1u;
      store_word(data + i, make_uint4(word, word, word, word));
    } else if constexpr (std::is_same_v<T, float>) {
      data[i] = __uint_as_float(0x7fa00001u);
    } else {
      data[i] = {0x7fa1};
    }
  }
};

template <class Word>
__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(const char* from, std::int64_t from_stride, char* to, std::int64_t to_stride,
                     std::int64_t rows, std::int64_t words) {
  for_row_chunks(rows, words, [&](std::int64_t row, std::int64_t word) {
    const auto at = word * static_cast<std::int64_t>(sizeof(Word));
    store_word(to + row * to_stride + at, load_word<Word>(from + row * from_stride + at));
  });
}

template <class Word>
void copy_words(cudaStream_t stream, const void* from, std::int64_t from_stride, void* to,
                std::int64_t to_stride, std::int64_t rows, std::int64_t row_bytes) {
  const std::int64_t words = row_bytes / static_cast<std::int64_t>(sizeof(Word));
  const RowTiles tiles = row_tiles(rows, words);
  launch(copy_rows_kernel<Word>, {tiles.grid, tiles.block}, stream, static_cast<const char*>(from),
         from_stride, static_cast<char*>(to), to_stride, rows, words);
}

template <class Operation, class In, class Out>
void launch_fold(cudaStream_t stream, std::span<const void* const> inputs, Out* out, bool adds,
                 std::int64_t count) {
  constexpr int kN = kWidth<In, Out>;
  Operation operation{};
  operation.input_count = static_cast<int>(inputs.size());
  operation.adds = adds;
  operation.out = out;
  int head = aligned_from<kN>(out);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    operation.inputs[i] = static_cast<const In*>(inputs[i]);
    if (aligned_from<kN>(operation.inputs[i]) != head) head = -1;
  }
  launch_elementwise<kN>(stream, operation, head, count);
}

void check_inputs(std::size_t count, bool accepted, const char* expected) {
  if (accepted && count <= kMaxFoldInputs) return;
  throw Error("a sum of " + std::to_string(count) + " arrays on CUDA, expected " + expected +
                  std::to_string(kMaxFoldInputs),
              ExitCode::kFailed);
}

}  // namespace

template <class From, class To>
void cast(cudaStream_t stream, const From* in, To* out, std::int64_t count) {
  constexpr int kN = kWidth<From, To>;
  launch_elementwise<kN>(stream, Cast<From, To>{in, out}, aligned_from<kN>(in, out), count);
}

template <class In, class Sum>
void accumulate(cudaStream_t stream, const In* in, Sum* sum, std::int64_t count) {
  constexpr int kN = kWidth<In, Sum>;
  launch_elementwise<kN>(stream, Accumulate<In, Sum>{in, sum}, aligned_from<kN>(in, sum), count);
}

template <class In, class Out>
void fold(cudaStream_t stream, std::span<const void* const> inputs, Out* out, bool adds,
          std::int64_t count) {
  check_inputs(inputs.size(), !inputs.empty(), "1 to ");
  launch_fold<Fold<In, Out>, In>(stream, inputs, out, adds, count);
}

template <class In, class Out>
void fold_tree(cudaStream_t stream, std::span<const void* const> inputs, Out* out, bool adds,
               std::int64_t count) {
  check_inputs(inputs.size(), std::has_single_bit(inputs.size()), "a power of two up to ");
  // What waits of a high tree takes many registers, and most trees are low.
  if (inputs.size() <= 8) {
    launch_fold<FoldTree<In, Out, 3>, In>(stream, inputs, out, adds, count);
  } else {
    constexpr int kMostLevels = std::countr_zero(kMaxFoldInputs);
    launch_fold<FoldTree<In, Out, kMostLevels>, In>(stream, inputs, out, adds, count);
  }
}

template <class T>
void poison(cudaStream_t stream, T* data, std::int64_t count) {
  launch_elementwise<kWidth<T>>(stream, Poison<T>{data}, aligned_from<kWidth<T>>(data), count);
}

void copy_rows(cudaStream_t stream, const void* from, std::int64_t from_stride_bytes, void* to,
               std::int64_t to_stride_bytes, std::int64_t rows, std::int64_t row_bytes) {
  if (rows == 0 || row_bytes == 0) return;
  const auto all = reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to) |
                   static_cast<std::uintptr_t>(from_stride_bytes | to_stride_bytes | row_bytes);
  const auto copy = all % 16 == 0  ? copy_words<uint4>
                    : all % 4 == 0 ? copy_words<std::uint32_t>
                    : all % 2 == 0 ? copy_words<std::uint16_t>
                                   : copy_words<std::uint8_t>;
  copy(stream, from, from_stride_bytes, to, to_stride_bytes, rows, row_bytes);
}

#define SHARDWRIGHT_INSTANTIATE(A, B)                                                           \
  template void cast<A, B>(cudaStream_t, const A*, B*, std::int64_t);                           \
  template void accumulate<A, B>(cudaStream_t, const A*, B*, std::int64_t);                     \
  template void fold<A, B>(cudaStream_t, std::span<const void* const>, B*, bool, std::int64_t); \
  template void fold_tree<A, B>(cudaStream_t, std::span<const void* const>, B*, bool, std::int64_t);
SHARDWRIGHT_INSTANTIATE(float, float)
SHARDWRIGHT_INSTANTIATE(float, BFloat16)
SHARDWRIGHT_INSTANTIATE(BFloat16, float)
SHARDWRIGHT_INSTANTIATE(BFloat16, BFloat16)
template void poison<float>(cudaStream_t, float*, std::int64_t);
template void poison<BFloat16>(cudaStream_t, BFloat16*, std::int64_t);
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::cuda
