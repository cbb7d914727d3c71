// SPDX-License-Identifier: Apache-2.0
// Honest errors of iteration time: every published run predicted by constants fitted without it.
//
// First the constants of step_parameters.json are fitted to all runs; these errors are in sample.
// Then each run is left out in turn, the constants are fitted again and the run is predicted. The
// harder tests leave out its cell (what its source ran of its model on its GPU), and its whole
// source, so that a machine or a stack that only one source has is predicted from the priors. What
// this cannot show is that people looked at the runs while they wrote the simulator; only runs
// nobody has seen can.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "profiles/uncertainty/uncertainty.h"
#include "sim/fit/ledger_model.h"
#include "sim/score/validation.h"
#include "sim/uncertainty/conformal.h"

namespace shardwright::sim {

/// The ways to predict a run: by constants fitted to all, without it, without its cell (its
/// source's runs of its model on its GPU), without its source.
enum class HeldOut : std::uint8_t { kNothing, kRow, kCell, kSource };
inline constexpr std::size_t kHeldOuts = 4;

struct LeftOutRow {
  std::size_t place = 0;                        // in the ledger
  std::string cell;                             // as HeldOutRun::cell
  std::array<double, kHeldOuts> predicted_s{};  // by HeldOut
  std::array<double, kHeldOuts> error{};        // predicted / measured - 1
  std::array<double, kHeldOuts> exposed_share{};
  /// Of the measured time: in an interval fitted to the other rows, cells, sources.
  bool inside = false, inside_cell_out = false, inside_source_out = false;
};

struct LeaveOneOutScore {
  std::array<ErrorScore, kHeldOuts> time;  // by HeldOut
  std::int64_t inside = 0, inside_cell_out = 0, inside_source_out = 0;
  /// Mean over cells of the share of their runs inside, as above: intervals are made for a run of a
  /// cell that is drawn first, and large cells hold many runs that share their error.
  std::array<double, 3> cells_inside{};
  std::int64_t cells = 0;
};

/// One constant: fitted to everything, and how far a single run or source moves it.
struct FittedRange {
  std::string name;
  double value = 0;
  std::array<double, 2> row_out{}, source_out{};
};

struct LeaveOneOut {
  std::vector<LeftOutRow> rows;
  LeaveOneOutScore all;
  std::map<std::string, LeaveOneOutScore> by_source;
  std::vector<FittedRange> constants;
  std::vector<profiles::HeldOutRun>
      runs;  // the same rows as sim/uncertainty/conformal.h takes them
  double interval_level = 0.9;
  double simulated_coverage = 0;  // of intervals for new cells, errors drawn as these runs'
  std::size_t evaluations = 0;    // of single rows
};

/// GPUs whose clock is one constant of this fit, whoever runs them.
Chips chips_of(const LedgerModel& model);

struct LeaveOneOutOptions {
  unsigned threads = 0;                             // 0: all cores
  std::function<void(std::int64_t)> progress = {};  // fits done; called by one thread at a time
};

/// `full` is fit_robust(model.problem(), model.weights()).
LeaveOneOut leave_one_out(const LedgerModel& model, const RobustFit& full,
                          const LeaveOneOutOptions& options = {});

}  // namespace shardwright::sim
