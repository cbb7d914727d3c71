// SPDX-License-Identifier: Apache-2.0
// What one measured step tells of other steps of the same model, GPU and framework:
// profiles/data/fitted/anchored_residuals.json, written by python3 -m profiles.research anchored
// from the published runs.
//
// An error of a predicted step has a part that runs of one series (a source's runs of a model on a
// GPU) share, and a part of its own. A measured step shows the sum. With the half-width h of a
// prediction and the half-width w of the part of its own, the share 1 - (w/h)^2 of what was seen is
// expected of the next run, and that run's own half-width is w sqrt(2 - (w/h)^2) (the conditional
// mean and variance of two normal errors that share a part).
#pragma once

#include <cstdint>
#include <vector>

namespace shardwright::profiles {

struct AnchoredWidth {
  bool model_parallel = false;  // plans beyond data parallelism, experts, fp8
  double own = 0;               // w, of the logarithm
  std::int64_t runs = 0, cells = 0;
};

struct AnchoredUncertainty {
  double level = 0.9;
  std::vector<AnchoredWidth> widths;

  /// Of the difference to a prediction of this half-width, what to expect of other runs; 0 where
  /// nothing is known of such runs.
  double carried_share(bool model_parallel, double half_width) const;
  /// The half-width of another run's prediction once a step was measured; never above `half_width`.
  double half_width(bool model_parallel, double half_width) const;
};

/// The shipped one, read once; of a data folder without that file nothing is known.
const AnchoredUncertainty& anchored_uncertainty();

}  // namespace shardwright::profiles
