// SPDX-License-Identifier: Apache-2.0
// One measured step, and the values of the profile that move for it.
//
// A step is one number, so it moves many values along one direction: each by what is believed of it
// beforehand (Belief of profiles/fields.h) and by how much the step feels it, the most probable
// change that explains the measurement. Not all of the difference is carried: what a run has alone
// is no property of the machine (profiles/uncertainty/uncertainty.h). Products move by the
// clocks that the GPU holds, collectives, attention, memory-bound kernels and the host by the
// leading value of their group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiles/calibration.h"
#include "profiles/ledger/ledger.h"
#include "profiles/profile.h"
#include "sim/calibrate/calibrate.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/predict.h"

namespace shardwright::sim {

/// A measured step beyond so many half-widths of its interval is not the plan that was said, or
/// something that other runs do not have: of published series none that was so far off was so for
/// all of its runs.
inline constexpr double kImplausible = 2.5;

struct AnchorFit {
  double measured_s = 0;
  Prediction before, after;  // of the plan that was measured
  double carried = 0;        // of the logarithm of measured over predicted
  bool implausible = false;  // so far outside the interval that nothing is carried
  CalibrationResult result;  // values that moved, and the profile with them
  /// By the path of a value: what of the step's change it brings, as a share.
  std::vector<std::pair<std::string, double>> shares;
};

/// Throws Error as predict() does, and for a time that is not above 0.
AnchorFit anchor(const Model& model, const profiles::Profile& base, const Plan& plan,
                 double measured_s);

// How far one measured step carries, by published runs: of each series (what one source tells of a
// model on a GPU with a framework, at one sequence length) the run on the fewest GPUs is the
// anchor, and runs on more GPUs are predicted from it.
//
// Every run is predicted as somebody gets it whose runs are not published: without the constants
// that only its source is known to have, with the intervals of a stranger.

struct AnchoredRun {
  std::string id;
  std::int64_t gpus = 1;
  double before_error = 0, error = 0;  // predicted / measured - 1, without the anchor and with it
  double before_half_width = 0, half_width = 0;  // of the logarithm
  bool inside_before = false, inside = false;    // the interval
};

struct AnchoredSeries {
  std::string source, gpu, stack, model;
  std::string anchor;          // id
  std::int64_t from_gpus = 1;  // of the anchor
  std::vector<AnchoredRun> runs;
};

/// Series with at least one run on more GPUs; rows without a time, suspect rows and rows that
/// cannot be predicted are passed over.
std::vector<AnchoredSeries> anchored_series(const std::vector<profiles::LedgerRow>& rows);

}  // namespace shardwright::sim
