// SPDX-License-Identifier: Apache-2.0
// Scores predicted peaks of pipeline stages against measured ones, rank by rank: what
// `validate --stage-memory` prints.
//
// A row of the table names a run of the ledger, a rank and its stage, and the most that PyTorch's
// allocator had given out on it. Rows of runs that the ledger has not, or that were skipped, are
// counted apart.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/base/csv.h"
#include "sim/score/validation.h"

namespace shardwright::sim {

struct StagePeak {
  std::string id;
  std::int64_t rank = 0, stage = 0;
  double measured_gib = 0, predicted_gib = 0;  // allocated
  double error = 0;                            // predicted / measured - 1
};

struct StageMemoryScore {
  std::vector<StagePeak> peaks;
  ErrorScore allocated;
  std::int64_t skipped = 0;
};

/// Columns id, rank, pp_stage, max_allocated_gib. Throws Error naming file, line and column.
StageMemoryScore score_stage_memory(const CsvTable& table, const Validation& validation);

}  // namespace shardwright::sim
