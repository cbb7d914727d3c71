// SPDX-License-Identifier: Apache-2.0
#include "sim/uncertainty/conformal.h"

#include "sim/core/base/portable_math.h"
#include "sim/uncertainty/extrapolation.h"

namespace shardwright::sim {

using profiles::Novelty;
using profiles::Uncertainty;

Novelty novelty_of(const Uncertainty& uncertainty, std::string_view source, std::string_view stack,
                   std::string_view gpu, std::string_view model) {
  if (has_seen_cell(uncertainty, source, stack, gpu, model)) return Novelty::kCell;
  if (has_seen_often(uncertainty, stack, gpu)) return Novelty::kStackOnGpu;
  return has_seen_source(uncertainty, source) || has_seen_gpu(uncertainty, gpu)
             ? Novelty::kSourceOnly
             : Novelty::kNothing;
}

std::array<double, 2> interval_around(double time_s, double half_width) {
  return {time_s * portable_exp(-half_width), time_s * portable_exp(half_width)};
}

}  // namespace shardwright::sim
