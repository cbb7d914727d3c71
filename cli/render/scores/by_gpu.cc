// SPDX-License-Identifier: Apache-2.0
#include "cli/render/scores/by_gpu.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "cli/render/scores/validation.h"
#include "cli/render/text/table.h"

namespace shardwright::cli {

std::string by_gpu_text(const sim::Validation& validation, const Terminal& out) {
  Table table(score_columns("GPU"));
  for (const auto& [gpu, summary] : validation.by_gpu) {
    if (summary.predicted == 0) continue;
    std::vector<Cell> cells{gpu};
    add_score(cells, summary.time);
    add_score(cells, summary.memory);
    table.add_row(std::move(cells));
  }
  return heading(out, "Errors by GPU: iteration time, then peak memory") + table.render(out);
}

nlohmann::ordered_json by_gpu_json(const sim::Validation& validation) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [gpu, summary] : validation.by_gpu) {
    if (summary.predicted == 0) continue;
    json[gpu] = {{"time", score_json(summary.time)}, {"memory", score_json(summary.memory)}};
  }
  return json;
}

}  // namespace shardwright::cli
