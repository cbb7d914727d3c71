// SPDX-License-Identifier: Apache-2.0
// Whether a calibrated profile still describes the machine: new measurements against what it
// predicts.
//
// Per group the median of log(measured / predicted) over distinct operations is held against the
// quantiles that the profile recorded of its own errors. Operations that the profile itself was
// fitted to are held against their own times, which shows smaller changes. A median outside is
// drift: clocks, drivers, libraries or the network have changed.
#pragma once

#include <string>
#include <vector>

#include "profiles/calibration.h"
#include "profiles/profile.h"

namespace shardwright::sim {

struct GroupDrift {
  profiles::CostGroup group = profiles::CostGroup::kProducts;
  std::int64_t rows = 0;       // of the new measurements
  double median = 0;           // of log(measured / predicted)
  double low = 0, high = 0;    // what the profile's own errors allow
  std::int64_t same_rows = 0;  // operations that the profile knows
  double same_median = 0;      // of log(now / then)
  double same_allowed = 0;     // on both sides
  bool drifted = false;
};

struct Drift {
  std::vector<GroupDrift> groups;    // that the profile was calibrated in and that rows are of
  std::vector<std::string> changes;  // "the GPU is NVIDIA H200, not NVIDIA H100"
  bool any() const;
};

Drift drift_of(const profiles::Profile& profile, const profiles::Calibration& calibration,
               const std::vector<profiles::MeasuredRow>& rows,
               const std::vector<profiles::ObservationSource>& sources);

}  // namespace shardwright::sim
