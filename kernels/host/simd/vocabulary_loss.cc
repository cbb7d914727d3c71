// SPDX-License-Identifier: Apache-2.0
// cross_entropy.cc in two halves, operation by operation, with the exchange of parts between them.
#include "kernels/host/simd/ops.h"
#include "kernels/host/simd/vec_math.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {

namespace {

/// The place of the row's target among the part's columns, or -1.
SHARDWRIGHT_INLINE std::int64_t target_column(const VocabularyRows& a, std::int64_t row) {
  const std::int64_t column = a.targets[row] - a.first_vocab;
  return column >= 0 && column < a.cols ? column : -1;
}

VocabularyPart part_of_row(const VocabularyRows& a, std::int64_t row) {
  float* logits = a.logits + row * a.stride;
  if (a.softcap > 0) {
    const Vec cap = splat(a.softcap), inverse = splat(1.0f / a.softcap);
    for_vectors(a.cols, [&](std::int64_t i, auto lanes) {
      store(logits + i, cap * hyperbolic_tangent(load(logits + i, lanes) * inverse), lanes);
    });
  }
  const float found = largest(logits, a.cols);
  const float top = found > kLowestMaximum ? found : kLowestMaximum;
  const float exponents = sum(a.cols, [&](Vec partial, std::int64_t i, auto lanes) {
    const Vec e = exponential(load(logits + i, lanes) - splat(top));
    if constexpr (std::is_same_v<decltype(lanes), First>) {
      float held[kWidth];
      store(held, e, lanes);
      return partial + load(held, lanes);  // nothing in lanes that are not in use
    } else {
      return partial + e;
    }
  });
  const std::int64_t column = target_column(a, row);
  return {top, exponents, column < 0 ? -0.0f : logits[column] + 0.0f};
}

VocabularyPart merged(const VocabularyParts& parts, std::int64_t row) {
  const VocabularyPart* part = parts.data + row;
  float top = part->maximum;
  for (std::int64_t p = 1; p < parts.count; ++p) {
    const float maximum = part[p * parts.stride].maximum;
    top = maximum > top ? maximum : top;
  }
  VocabularyPart all{top, 0.0f, -0.0f};
  for (std::int64_t p = 0; p < parts.count; ++p) {
    const VocabularyPart& one = part[p * parts.stride];
    all.exponents += one.exponents * exponential(splat(one.maximum - top))[0];
    all.target += one.target;
  }
  return all;
}

void gradient_of_row(const VocabularyRows& a, const VocabularyPart& all, std::int64_t row) {
  float* logits = a.logits + row * a.stride;
  const Vec factor = splat(1.0f / all.exponents), top = splat(all.maximum);
  const std::int64_t column = target_column(a, row);
  if (a.softcap > 0) {
    const Vec inverse = splat(1.0f / a.softcap);
    for_vectors(a.cols, [&](std::int64_t i, auto lanes) {
      const Vec capped = load(logits + i, lanes);
      const Vec share = capped * inverse;
      const Vec slope = splat(1.0f) - share * share;
      store(logits + i, exponential(capped - top) * factor * slope, lanes);
    });
    const float share = all.target / a.softcap;
    if (column >= 0) logits[column] -= 1.0f - share * share;
    return;
  }
  for_vectors(a.cols, [&](std::int64_t i, auto lanes) {
    store(logits + i, exponential(load(logits + i, lanes) - top) * factor, lanes);
  });
  if (column >= 0) logits[column] -= 1.0f;
}

}  // namespace

void vocabulary_statistics(const VocabularyRows& a, VocabularyPart* parts, std::int64_t begin,
                           std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    parts[row] = a.targets[row] == a.ignore_index ? VocabularyPart{kLowestMaximum, 0.0f, -0.0f}
                                                  : part_of_row(a, row);
  }
}

void vocabulary_loss(const VocabularyRows& a, const VocabularyParts& parts, bool gradient,
                     double* losses, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    if (a.targets[row] == a.ignore_index) {
      if (losses != nullptr) losses[row] = 0.0;
      if (!gradient) continue;
      std::memset(a.logits + row * a.stride, 0, static_cast<std::size_t>(a.cols) * sizeof(float));
      continue;
    }
    const VocabularyPart all = merged(parts, row);
    if (losses != nullptr) {
      losses[row] = std::log(static_cast<double>(all.exponents)) +
                    (static_cast<double>(all.maximum) - all.target);
    }
    if (gradient) gradient_of_row(a, all, row);
  }
}

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
