// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/elementwise.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "kernels/host/simd/kernels.h"
#include "sim/core/base/check.h"

namespace shardwright::kernels::host {
namespace {

constexpr std::int64_t kGrain = 32768;  // elements of one task

/// Calls body(offset, count, scratch) over [0, size).
template <class Body>
void for_elements(Parallel& parallel, std::size_t size, Body body) {
  parallel.for_ranges(static_cast<std::int64_t>(size), kGrain,
                      [&](std::int64_t begin, std::int64_t end, Scratch& scratch) {
                        body(begin, end - begin, scratch);
                      });
}

constexpr std::int64_t kTreeBlock = 4096;  // elements of a tree whose sums lie in scratch at once

/// The sum of neighbouring inputs from element `at` on, rounded to T: of one input where it lies,
/// else in the first of the `rooms` of `count` elements, as many as the tree is high.
template <class T>
const T* tree_sum(const Kernels& kernels, std::span<const void* const> inputs, std::int64_t at,
                  std::int64_t count, T* rooms) {
  if (inputs.size() == 1) return static_cast<const T*>(inputs[0]) + at;
  const std::size_t half = inputs.size() / 2;
  const T* left = tree_sum(kernels, inputs.first(half), at, count, rooms);
  const T* right = tree_sum(kernels, inputs.subspan(half), at, count, rooms + count);
  kernels.of<T>().add(left, right, rooms, count);
  return rooms;
}

/// The same of all inputs in fp32.
template <class T>
void tree_root(const Kernels& kernels, std::span<const void* const> inputs, std::int64_t at,
               std::int64_t count, Scratch& scratch, float* root) {
  const std::size_t half = inputs.size() / 2;
  if (half == 0) {
    kernels.of<T>().widen(static_cast<const T*>(inputs[0]) + at, root, count);
    return;
  }
  const std::int64_t height = std::countr_zero(inputs.size());
  T* rooms = reinterpret_cast<T*>(scratch.floats(height * count));
  kernels.of<T>().widen(tree_sum(kernels, inputs.first(half), at, count, rooms), root, count);
  const T* right = tree_sum(kernels, inputs.subspan(half), at, count, rooms);
  kernels.of<T>().accumulate(right, root, count);
}

}  // namespace

template <class From, class To>
void cast(Parallel& parallel, std::span<const From> in, std::span<To> out) {
  SHARDWRIGHT_CHECK(in.size() == out.size(), "cast of {} to {} elements", in.size(), out.size());
  const Kernels& kernels = parallel.kernels();
  for_elements(parallel, in.size(), [&](std::int64_t at, std::int64_t count, Scratch&) {
    if constexpr (std::is_same_v<From, To>) {
      std::memcpy(out.data() + at, in.data() + at, static_cast<std::size_t>(count) * sizeof(To));
    } else if constexpr (std::is_same_v<To, float>) {
      kernels.of<From>().widen(in.data() + at, out.data() + at, count);
    } else {
      kernels.of<To>().narrow(in.data() + at, out.data() + at, count);
    }
  });
}

template <class In, class Sum>
void accumulate(Parallel& parallel, std::span<const In> in, std::span<Sum> sum) {
  SHARDWRIGHT_CHECK(in.size() == sum.size(), "adding {} to {} elements", in.size(), sum.size());
  const Kernels& kernels = parallel.kernels();
  for_elements(parallel, in.size(), [&](std::int64_t at, std::int64_t count, Scratch& scratch) {
    if constexpr (std::is_same_v<Sum, float>) {
      kernels.of<In>().accumulate(in.data() + at, sum.data() + at, count);
    } else if constexpr (std::is_same_v<In, Sum>) {
      kernels.of<Sum>().add(in.data() + at, sum.data() + at, sum.data() + at, count);
    } else {
      float* wide = scratch.floats(count);
      kernels.of<Sum>().widen(sum.data() + at, wide, count);
      kernels.of<In>().accumulate(in.data() + at, wide, count);
      kernels.of<Sum>().narrow(wide, sum.data() + at, count);
    }
  });
}

template <class In, class Out>
void fold_tree(Parallel& parallel, std::span<const void* const> inputs, std::span<Out> out,
               bool adds) {
  SHARDWRIGHT_CHECK(std::has_single_bit(inputs.size()), "a tree of {} arrays", inputs.size());
  const Kernels& kernels = parallel.kernels();
  for_elements(parallel, out.size(), [&](std::int64_t begin, std::int64_t all, Scratch& scratch) {
    for (std::int64_t at = begin; at < begin + all; at += kTreeBlock) {
      const std::int64_t count = std::min(kTreeBlock, begin + all - at);
      scratch.reset();
      float* sum = scratch.floats(count);
      tree_root<In>(kernels, inputs, at, count, scratch, sum);
      if (adds) kernels.of<Out>().accumulate(out.data() + at, sum, count);
      kernels.of<Out>().narrow(sum, out.data() + at, count);
    }
  });
}

#define SHARDWRIGHT_INSTANTIATE_PAIR(A, B)                                     \
  template void cast<A, B>(Parallel&, std::span<const A>, std::span<B>);       \
  template void accumulate<A, B>(Parallel&, std::span<const A>, std::span<B>); \
  template void fold_tree<A, B>(Parallel&, std::span<const void* const>, std::span<B>, bool);
SHARDWRIGHT_INSTANTIATE_PAIR(float, float)
SHARDWRIGHT_INSTANTIATE_PAIR(float, BFloat16)
SHARDWRIGHT_INSTANTIATE_PAIR(BFloat16, float)
SHARDWRIGHT_INSTANTIATE_PAIR(BFloat16, BFloat16)
#undef SHARDWRIGHT_INSTANTIATE_PAIR

}  // namespace shardwright::kernels::host
