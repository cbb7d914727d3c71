// SPDX-License-Identifier: Apache-2.0
#include "sim/prediction.h"

#include <cmath>

namespace shardwright::sim {

std::string_view name_of(MemoryVerdict verdict) {
  switch (verdict) {
    case MemoryVerdict::kFits:
      return "fits";
    case MemoryVerdict::kTight:
      return "tight";
    case MemoryVerdict::kDoesNotFit:
      break;
  }
  return "does not fit";
}

double TimePrediction::other_s() const {
  const double rest = iteration_s - (compute_s + exposed_communication_s + host_s + optimizer_s);
  return std::abs(rest) < 1e-9 ? 0 : rest;
}

}  // namespace shardwright::sim
