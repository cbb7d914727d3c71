// SPDX-License-Identifier: Apache-2.0
// How far machines differ in what a step loses with every doubling of the GPUs beyond a node, by
// kind of network: profiles/data/fitted/scale_residuals.json, written by python3 -m
// profiles.research scale-loss from published series that differ in their number of GPUs alone.
//
// Machines on one kind of network differ about as much as kinds do, so all of them give one mean
// loss (cost.contention.scale_loss) and one width; a kind on which nobody published a series gets
// a wider one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardwright::profiles {

struct ScaleUncertainty {
  double half_width_per_doubling = 0;       // of the logarithm of a step's time
  double unmeasured_factor = 1;             // on it, where nobody measured that kind of network
  std::vector<std::string> networks;        // that series were published of
  std::int64_t machines = 0, series = 0;    // that it was taken from
  double least_loss = 0, largest_loss = 0;  // of these machines, of a step per doubling

  bool known() const { return machines > 0; }
  bool measured(const std::string& network) const;
  /// `network` as in Cluster.
  double half_width(const std::string& network, double doublings) const;
};

/// The shipped one, read once; of a data folder without that file nothing is known.
const ScaleUncertainty& scale_uncertainty();

}  // namespace shardwright::profiles
