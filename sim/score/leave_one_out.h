// SPDX-License-Identifier: Apache-2.0
// Honest errors of iteration time: every published run predicted by constants fitted without it.
//
// The fits are those of `python3 -m profiles.research steps`, which records what they predicted
// (profiles/uncertainty/uncertainty.h). Errors of constants fitted to all runs are in sample; the
// harder ways leave out the run, its cell (what its source ran of its model on its GPU) and its
// whole source, so that a machine or a stack that only one source has is predicted from the priors.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "profiles/uncertainty/uncertainty.h"
#include "sim/score/validation.h"

namespace shardwright::sim {

/// The ways to predict a run: by constants fitted to all, without it, without its cell, without its
/// source.
enum class HeldOut : std::uint8_t { kNothing, kRow, kCell, kSource };
inline constexpr std::size_t kHeldOuts = 4;

struct LeftOutRow {
  std::string id;
  std::string cell;                        // as HeldOutRun::cell
  double measured_s = 0, predicted_s = 0;  // predicted without the run
  std::array<double, kHeldOuts> error{};   // predicted / measured - 1, by HeldOut
  /// Of the measured time: in an interval fitted to the other rows, cells, sources.
  std::array<bool, 3> inside{};
};

struct LeaveOneOutScore {
  std::array<ErrorScore, kHeldOuts> time;  // by HeldOut
  std::array<std::int64_t, 3> inside{};    // without the row, its cell, its source
  /// Mean over cells of the share of their runs inside, as above: intervals are made for a run of a
  /// cell that is drawn first, and large cells hold many runs that share their error.
  std::array<double, 3> cells_inside{};
  std::int64_t cells = 0;
};

struct LeaveOneOut {
  std::vector<LeftOutRow> rows;
  LeaveOneOutScore all;
  std::map<std::string, LeaveOneOutScore> by_source;
};

/// Of the times of `validation` that nothing contradicts. Throws Error where the record lacks one
/// of them, or tells of another prediction; `ledger` is what the sentence calls the table ("": the
/// one that ships).
LeaveOneOut leave_one_out(const Validation& validation, const profiles::HeldOutRecord& record,
                          const std::string& ledger);

/// Where what is left out of a user's ledger is recorded.
std::string left_out_file(const std::string& ledger);

}  // namespace shardwright::sim
