// SPDX-License-Identifier: Apache-2.0
#include "sim/core/recurrence.h"

#include "sim/core/base/words.h"

namespace shardwright {

using enum RecurrenceKind;

std::string_view name_of(RecurrenceKind kind) {
  static constexpr auto kNames =
      words_up_to<kShortConvolution>("Mamba", "Mamba-2", "gated delta nets", "Kimi delta attention",
                                     "lightning attention", "short convolutions");
  return name_in(kNames, kind);
}

std::int64_t Recurrence::convolved() const {
  const bool values_alone = kind == kMamba1 || kind == kShortConvolution;
  return value_width() + (values_alone ? 0 : 2 * key_width());
}

std::int64_t Recurrence::product_width() const {
  const std::int64_t v = value_width(), k = key_width();
  switch (kind) {
    case kMamba1:
      return 2 * v;
    case kMamba2:
      return 2 * v + 2 * k + value_heads;
    case kGatedDelta:
      return 2 * v + 2 * k + 2 * value_heads;
    case kKimiDelta:
      return v + 2 * k + value_heads + (rank > 0 ? 0 : k + v);
    case kLightning:
      return 2 * v + 2 * k;
    case kShortConvolution:
      return 3 * v;
  }
  return 0;
}

std::int64_t Recurrence::latent_width() const {
  if (kind == kMamba1) return rank + 2 * key_dim;
  return kind == kKimiDelta ? 2 * rank : 0;
}

std::int64_t Recurrence::up_width() const {
  if (kind == kMamba1) return value_width();
  return kind == kKimiDelta && rank > 0 ? key_width() + value_width() : 0;
}

std::int64_t Recurrence::vector_parameters() const {
  switch (kind) {
    case kMamba1:  // A, D and the bias of steps
      return value_width() * (key_dim + 2);
    case kMamba2:
      return 3 * value_heads;
    case kGatedDelta:
      return 2 * value_heads;
    case kKimiDelta:
      return value_heads + key_width();
    case kLightning:
    case kShortConvolution:
      return 0;
  }
  return 0;
}

std::int64_t Recurrence::norm_width() const {
  if (!norm || kind == kMamba1 || kind == kShortConvolution) return 0;
  return kind == kMamba2 || kind == kLightning ? value_width() : value_dim;
}

std::int64_t Recurrence::inner_norm_width() const {
  if (!inner_norms) return 0;
  return kind == kLightning ? 2 * key_dim : latent_width();
}

bool Recurrence::divides_heads() const {
  return kind == kMamba2 || kind == kGatedDelta || kind == kKimiDelta;
}

double Recurrence::flops() const {
  const double updates = kind == kMamba1             ? 9
                         : kind == kMamba2           ? 7
                         : kind == kLightning        ? 5
                         : kind == kShortConvolution ? 0
                                                     : 8;
  return updates * static_cast<double>(value_width() * key_dim) +
         2 * static_cast<double>(convolved() * taps);
}

}  // namespace shardwright
