// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/elementwise.h"

#include <algorithm>
#include <cstring>
#include <mutex>
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

template <class T>
ExactSum sum_of_squares(Parallel& parallel, std::span<const T> x) {
  const Kernels& kernels = parallel.kernels();
  std::mutex mutex;
  ExactSum total;
  for_elements(parallel, x.size(), [&](std::int64_t begin, std::int64_t all, Scratch& scratch) {
    ExactSum part;
    float* wide = scratch.floats(kSquaresBlock);
    for (std::int64_t at = begin; at < begin + all; at += kSquaresBlock) {
      const std::int64_t count = std::min(kSquaresBlock, begin + all - at);
      const float* values = nullptr;
      if constexpr (std::is_same_v<T, float>) {
        values = x.data() + at;
      } else {
        kernels.of<T>().widen(x.data() + at, wide, count);
        values = wide;
      }
      const BlockSquares squares = kernels.block_squares(values, count);
      if (squares.exact) {
        part.add_exact(squares.sums);
      } else {
        part.add_squares(std::span(values, static_cast<std::size_t>(count)));
      }
    }
    const std::lock_guard lock(mutex);
    total.merge(part);
  });
  return total;
}

#define SHARDWRIGHT_INSTANTIATE_PAIR(A, B)                               \
  template void cast<A, B>(Parallel&, std::span<const A>, std::span<B>); \
  template void accumulate<A, B>(Parallel&, std::span<const A>, std::span<B>);
SHARDWRIGHT_INSTANTIATE_PAIR(float, float)
SHARDWRIGHT_INSTANTIATE_PAIR(float, BFloat16)
SHARDWRIGHT_INSTANTIATE_PAIR(BFloat16, float)
SHARDWRIGHT_INSTANTIATE_PAIR(BFloat16, BFloat16)
#define SHARDWRIGHT_INSTANTIATE(T) \
  template ExactSum sum_of_squares<T>(Parallel&, std::span<const T>);
SHARDWRIGHT_INSTANTIATE(float)
SHARDWRIGHT_INSTANTIATE(BFloat16)
#undef SHARDWRIGHT_INSTANTIATE_PAIR
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::host
