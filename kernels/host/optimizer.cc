// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/optimizer.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <type_traits>

#include "kernels/host/simd/kernels.h"
#include "kernels/random.h"
#include "sim/core/base/check.h"

namespace shardwright::kernels::host {
namespace {

constexpr std::int64_t kMomentGrain = 16384;  // elements of one task, widened in scratch

AdamWNumbers numbers_of(const AdamW& o) {
  const double t = static_cast<double>(o.step);
  return {.keep = static_cast<float>(1.0 - o.lr * o.weight_decay),
          .beta1 = static_cast<float>(o.beta1),
          .beta1_rest = static_cast<float>(1.0 - o.beta1),
          .beta2 = static_cast<float>(o.beta2),
          .beta2_rest = static_cast<float>(1.0 - o.beta2),
          .step_size = static_cast<float>(o.lr / (1.0 - std::pow(o.beta1, t))),
          .root_correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(o.beta2, t))),
          .eps = static_cast<float>(o.eps),
          .grad_scale = static_cast<float>(o.grad_scale)};
}

float* widened(const Kernels&, float* data, std::int64_t, Scratch&) {
  return data;
}
const float* widened(const Kernels&, const float* data, std::int64_t, Scratch&) {
  return data;
}
float* widened(const Kernels& kernels, const BFloat16* data, std::int64_t count, Scratch& scratch) {
  float* wide = scratch.floats(count);
  kernels.bf16.widen(data, wide, count);
  return wide;
}

/// The words of elements `begin` on.
void random_words_of(const Kernels& kernels, const RandomStream& stream,
                     const ElementIndices& indices, std::int64_t begin, std::int64_t count,
                     std::uint32_t* words) {
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t run = indices.run(begin + done, count - done);
    kernels.random_words(stream, indices.of(begin + done), static_cast<std::uint64_t>(run),
                         words + done);
    done += run;
  }
}

}  // namespace

template <class T>
ExactSum sum_of_squares(Parallel& parallel, std::span<const T> x) {
  const Kernels& kernels = parallel.kernels();
  std::mutex mutex;
  ExactSum total;
  parallel.for_ranges(std::ssize(x), 32768,
                      [&](std::int64_t begin, std::int64_t end, Scratch& scratch) {
                        ExactSum part;
                        float* wide = scratch.floats(kSquaresBlock);
                        for (std::int64_t at = begin; at < end; at += kSquaresBlock) {
                          const std::int64_t count = std::min(kSquaresBlock, end - at);
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

template ExactSum sum_of_squares<float>(Parallel&, std::span<const float>);
template ExactSum sum_of_squares<BFloat16>(Parallel&, std::span<const BFloat16>);

template <class P, class G, class M>
void adamw(Parallel& parallel, const AdamW& options, const ElementIndices& indices,
           std::span<const G> gradient, std::span<P> parameter, std::span<M> m, std::span<M> v) {
  SHARDWRIGHT_CHECK(gradient.size() == parameter.size() && m.size() == parameter.size() &&
                        v.size() == parameter.size() && options.step >= 1,
                    "AdamW step {} on {} parameters", options.step, parameter.size());
  const Kernels& kernels = parallel.kernels();
  const AdamWNumbers numbers = numbers_of(options);
  const auto step = static_cast<std::uint32_t>(options.step);
  parallel.for_ranges(std::ssize(parameter), kMomentGrain,
                      [&](std::int64_t begin, std::int64_t end, Scratch& scratch) {
                        const std::int64_t count = end - begin;
                        const float* g = widened(kernels, gradient.data() + begin, count, scratch);
                        float* p = widened(kernels, parameter.data() + begin, count, scratch);
                        float* first = widened(kernels, m.data() + begin, count, scratch);
                        float* second = widened(kernels, v.data() + begin, count, scratch);
                        kernels.adamw(numbers, g, p, first, second, count);

                        auto* random = reinterpret_cast<std::uint32_t*>(scratch.floats(count));
                        if constexpr (!std::is_same_v<M, float>) {
                          random_words_of(kernels, {options.seed, RandomSite::kRoundMoments, step},
                                          indices, begin, count, random);
                          kernels.narrow_stochastic(first, random, 0, m.data() + begin, count);
                          kernels.narrow_stochastic(second, random, 16, v.data() + begin, count);
                        }
                        if constexpr (!std::is_same_v<P, float>) {
                          random_words_of(kernels,
                                          {options.seed, RandomSite::kRoundParameter, step},
                                          indices, begin, count, random);
                          kernels.narrow_stochastic(p, random, 0, parameter.data() + begin, count);
                        }
                      });
}

#define SHARDWRIGHT_INSTANTIATE(P, G, M)                                                           \
  template void adamw<P, G, M>(Parallel&, const AdamW&, const ElementIndices&, std::span<const G>, \
                               std::span<P>, std::span<M>, std::span<M>);
SHARDWRIGHT_INSTANTIATE(float, float, float)
SHARDWRIGHT_INSTANTIATE(float, float, BFloat16)
SHARDWRIGHT_INSTANTIATE(float, BFloat16, float)
SHARDWRIGHT_INSTANTIATE(float, BFloat16, BFloat16)
SHARDWRIGHT_INSTANTIATE(BFloat16, float, float)
SHARDWRIGHT_INSTANTIATE(BFloat16, float, BFloat16)
SHARDWRIGHT_INSTANTIATE(BFloat16, BFloat16, float)
SHARDWRIGHT_INSTANTIATE(BFloat16, BFloat16, BFloat16)
#undef SHARDWRIGHT_INSTANTIATE

}  // namespace shardwright::kernels::host
