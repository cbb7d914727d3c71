// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/rope.h"

#include <fmt/core.h>

#include <cmath>
#include <numbers>

#include "kernels/host/simd/kernels.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/units.h"

namespace shardwright::kernels {
namespace {

/// Llama 3.1's piecewise scaling: wavelengths above original / low_freq_factor are stretched by
/// `factor`, those below original / high_freq_factor are kept.
double llama3_frequency(const Rope& rope, double frequency) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double original = static_cast<double>(rope.original_max_positions);
  if (wavelength < original / rope.high_freq_factor) return frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth = (original / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

std::vector<float> rope_frequencies(const Rope& rope, std::int64_t rotary_dim) {
  std::vector<float> frequencies;
  for (std::int64_t j = 0; j < rotary_dim / 2; ++j) {
    const double exponent = static_cast<double>(2 * j) / static_cast<double>(rotary_dim);
    double frequency = static_cast<float>(std::pow(rope.theta, -exponent));
    switch (rope.scaling) {
      case RopeScaling::kNone:
        break;
      case RopeScaling::kLinear:
        frequency /= rope.factor;
        break;
      case RopeScaling::kLlama3:
        frequency = llama3_frequency(rope, frequency);
        break;
      case RopeScaling::kYarn:
      case RopeScaling::kLongrope:
        SHARDWRIGHT_CHECK(false, "there is no table for a RoPE that is planned only");
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

RopeTable::RopeTable(const Rope& rope, std::int64_t positions, std::int64_t rotary_dim)
    : positions_(positions), pairs_(rotary_dim / 2) {
  const std::vector<float> frequencies = rope_frequencies(rope, rotary_dim);
  cosine_.reserve(static_cast<std::size_t>(positions * pairs_));
  sine_.reserve(static_cast<std::size_t>(positions * pairs_));
  for (std::int64_t position = 0; position < positions; ++position) {
    for (const float frequency : frequencies) {
      const double angle = static_cast<float>(position) * frequency;
      cosine_.push_back(static_cast<float>(std::cos(angle)));
      sine_.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

namespace host {

template <class T>
void rope(Parallel& parallel, const Rows& rows, const RopeView& table,
          const std::int32_t* positions, std::int64_t seq, RopeDirection direction, T* x) {
  SHARDWRIGHT_CHECK(2 * table.pairs <= rows.cols, "rope of {} pairs on heads of {}", table.pairs,
                    rows.cols);
  for (std::int64_t t = 0; positions != nullptr && t < rows.tokens; ++t) {
    if (positions[t] < 0 || positions[t] >= table.positions) {
      throw Error(fmt::format("token {} has position {}, expected 0 to {}", t, positions[t],
                              table.positions - 1));
    }
  }
  if (positions == nullptr && seq > table.positions) {
    throw Error(fmt::format("sequences of {} tokens exceed the {} positions of the model", seq,
                            table.positions));
  }
  const RopeRows<T> args{.x = x,
                         .cosine = table.cosine,
                         .sine = table.sine,
                         .positions = positions,
                         .seq = seq,
                         .pairs = table.pairs,
                         .direction = direction == RopeDirection::kForward ? 1.0f : -1.0f,
                         .rows = rows};
  const auto& kernels = parallel.kernels().of<T>();
  parallel.for_ranges(
      rows.count(), ceil_div(16384, rows.cols),
      [&](std::int64_t begin, std::int64_t end, Scratch&) { kernels.rope(args, begin, end); });
}

template void rope<float>(Parallel&, const Rows&, const RopeView&, const std::int32_t*,
                          std::int64_t, RopeDirection, float*);
template void rope<BFloat16>(Parallel&, const Rows&, const RopeView&, const std::int32_t*,
                             std::int64_t, RopeDirection, BFloat16*);

}  // namespace host
}  // namespace shardwright::kernels
