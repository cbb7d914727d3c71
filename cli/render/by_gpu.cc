// SPDX-License-Identifier: Apache-2.0
#include "cli/render/by_gpu.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "cli/render/text/table.h"
#include "cli/render/validation.h"
#include "sim/core/quantile.h"

namespace shardwright::cli {
namespace {

struct GpuErrors {
  std::vector<double> time, memory;  // absolute
};

std::map<std::string, GpuErrors> errors_by_gpu(const sim::Validation& validation) {
  std::map<std::string, GpuErrors> result;
  for (const sim::ValidatedRow& row : validation.rows) {
    if (!row.skipped.empty()) continue;
    GpuErrors& errors = result[row.row.gpu];
    if (row.time_error) errors.time.push_back(std::abs(*row.time_error));
    if (row.memory_error) errors.memory.push_back(std::abs(*row.memory_error));
  }
  return result;
}

sim::ErrorScore score_of(const std::vector<double>& errors) {
  if (errors.empty()) return {};
  return {static_cast<std::int64_t>(errors.size()),
          std::accumulate(errors.begin(), errors.end(), 0.0) / static_cast<double>(errors.size()),
          quantile(errors, 0.5), *std::max_element(errors.begin(), errors.end())};
}

}  // namespace

std::string by_gpu_text(const sim::Validation& validation, const Terminal& out) {
  Table table(score_columns("GPU"));
  for (const auto& [gpu, errors] : errors_by_gpu(validation)) {
    std::vector<Cell> cells{gpu};
    add_score(cells, score_of(errors.time));
    add_score(cells, score_of(errors.memory));
    table.add_row(std::move(cells));
  }
  return heading(out, "Errors by GPU: iteration time, then peak memory") + table.render(out);
}

nlohmann::ordered_json by_gpu_json(const sim::Validation& validation) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [gpu, errors] : errors_by_gpu(validation))
    json[gpu] = {{"time", score_json(score_of(errors.time))},
                 {"memory", score_json(score_of(errors.memory))}};
  return json;
}

}  // namespace shardwright::cli
