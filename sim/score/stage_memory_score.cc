// SPDX-License-Identifier: Apache-2.0
#include "sim/score/stage_memory_score.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/core/units.h"
#include "sim/score/error_summary.h"

namespace shardwright::sim {

StageMemoryScore score_stage_memory(const CsvTable& table, const Validation& validation) {
  std::map<std::string, const Prediction*> predictions;
  for (const ValidatedRow& row : validation.rows) {
    if (row.skipped.empty()) predictions[row.row.id] = &row.prediction;
  }
  StageMemoryScore result;
  std::vector<double> errors;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const CsvRow row = table[i];
    StagePeak peak;
    peak.id = row.require<std::string>("id");
    peak.rank = row.require<std::int64_t>("rank");
    peak.stage = row.require<std::int64_t>("pp_stage");
    peak.measured_gib = row.require<double>("max_allocated_gib");
    if (peak.measured_gib <= 0) row.fail("max_allocated_gib", "a number above 0");
    const auto found = predictions.find(peak.id);
    if (found == predictions.end()) {
      ++result.skipped;
      continue;
    }
    const Prediction& prediction = *found->second;
    if (peak.stage < 0 || peak.stage >= std::ssize(prediction.stages)) {
      row.fail("pp_stage", "a stage of the run's pipeline");
    }
    const Bytes bytes =
        prediction.stages[static_cast<std::size_t>(peak.stage)].peak_allocated_bytes;
    peak.predicted_gib = static_cast<double>(bytes) / kGiB;
    peak.error = peak.predicted_gib / peak.measured_gib - 1;
    errors.push_back(std::abs(peak.error));
    result.peaks.push_back(std::move(peak));
  }
  const profiles::ErrorSummary summary = summarize_errors(errors);
  result.allocated = {summary.n, summary.mape, summary.median,
                      errors.empty() ? 0 : *std::max_element(errors.begin(), errors.end())};
  return result;
}

}  // namespace shardwright::sim
