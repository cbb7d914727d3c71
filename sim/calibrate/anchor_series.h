// SPDX-License-Identifier: Apache-2.0
// How far one measured step carries, by published runs: of each series (what one source tells of a
// model on a GPU with a framework, at one sequence length) the run on the fewest GPUs is the
// anchor, and runs on more GPUs are predicted from it.
//
// Every run is predicted as somebody gets it whose runs are not published: without the constants
// that only its source is known to have, with the intervals of a stranger.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiles/ledger/ledger.h"

namespace shardwright::sim {

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
