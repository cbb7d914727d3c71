// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/simd/ops.h"
#include "kernels/host/simd/vec_math.h"

namespace shardwright::kernels::host::SHARDWRIGHT_ISA {

namespace {

/// A row whose logits are capped on the way to the softmax. Its capped logits are kept until the
/// gradient is made of them, which falls with the slope of the cap, 1 - (capped / cap)^2.
void capped_row(const CrossEntropyRows& a, std::int64_t row) {
  float* logits = a.logits + row * a.vocab;
  const std::int32_t target = a.targets[row];
  const Vec cap = splat(a.softcap), inverse = splat(1.0f / a.softcap);
  for_vectors(a.vocab, [&](std::int64_t i, auto lanes) {
    store(logits + i, cap * hyperbolic_tangent(load(logits + i, lanes) * inverse), lanes);
  });
  const float top = largest(logits, a.vocab);
  const float of_target = logits[target];
  const float total = sum(a.vocab, [&](Vec partial, std::int64_t i, auto lanes) {
    float held[kWidth];
    store(held, exponential(load(logits + i, lanes) - splat(top)), lanes);
    // Lanes that are not in use hold e^(0 - top), which must not be added.
    return partial + load(held, lanes);
  });
  a.losses[row] = std::log(static_cast<double>(total)) + (static_cast<double>(top) - of_target);
  if (!a.gradient) return;
  const Vec factor = splat(1.0f / total);
  for_vectors(a.vocab, [&](std::int64_t i, auto lanes) {
    const Vec capped = load(logits + i, lanes);
    const Vec share = capped * inverse;
    const Vec slope = splat(1.0f) - share * share;
    store(logits + i, exponential(capped - splat(top)) * factor * slope, lanes);
  });
  const float share = of_target / a.softcap;
  logits[target] -= 1.0f - share * share;
}

}  // namespace

void cross_entropy(const CrossEntropyRows& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    float* logits = a.logits + row * a.vocab;
    const std::int32_t target = a.targets[row];
    if (target == a.ignore_index) {
      a.losses[row] = 0.0;
      if (a.gradient) std::memset(logits, 0, static_cast<std::size_t>(a.vocab) * sizeof(float));
      continue;
    }
    if (a.softcap > 0) {
      capped_row(a, row);
      continue;
    }
    const float top = largest(logits, a.vocab);
    const float of_target = logits[target];
    const float total = sum(a.vocab, [&](Vec partial, std::int64_t i, auto lanes) {
      const Vec e = exponential(load(logits + i, lanes) - splat(top));
      store(logits + i, e, lanes);
      // Lanes that are not in use hold e^(0 - top), which must not be added.
      return partial + load(logits + i, lanes);
    });
    a.losses[row] = std::log(static_cast<double>(total)) + (static_cast<double>(top) - of_target);
    if (!a.gradient) continue;
    const Vec factor = splat(1.0f / total);
    for_vectors(a.vocab, [&](std::int64_t i, auto lanes) {
      store(logits + i, load(logits + i, lanes) * factor, lanes);
    });
    logits[target] -= 1.0f;
  }
}

}  // namespace shardwright::kernels::host::SHARDWRIGHT_ISA
