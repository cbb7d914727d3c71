// SPDX-License-Identifier: Apache-2.0
#include "cli/render/by_gpu.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <vector>

#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"
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

double mean_of(const std::vector<double>& values) {
  return values.empty() ? 0
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

double worst_of(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

void add_errors(std::vector<Cell>& cells, const std::vector<double>& errors) {
  cells.emplace_back(fmt::format("{}", errors.size()));
  for (const double error : {mean_of(errors), quantile(errors, 0.5), worst_of(errors)})
    cells.emplace_back(errors.empty() ? "" : percent(error));
}

nlohmann::ordered_json score_of(const std::vector<double>& errors) {
  return {{"n", errors.size()},
          {"mape", mean_of(errors)},
          {"median", quantile(errors, 0.5)},
          {"worst", worst_of(errors)}};
}

}  // namespace

std::string by_gpu_text(const sim::Validation& validation, const Terminal& out) {
  Table table({{"GPU"},
               {"times", Align::kRight},
               {"mean", Align::kRight},
               {"median", Align::kRight},
               {"worst", Align::kRight},
               {"peaks", Align::kRight},
               {"mean", Align::kRight},
               {"median", Align::kRight},
               {"worst", Align::kRight}});
  for (const auto& [gpu, errors] : errors_by_gpu(validation)) {
    std::vector<Cell> cells{gpu};
    add_errors(cells, errors.time);
    add_errors(cells, errors.memory);
    table.add_row(std::move(cells));
  }
  return heading(out, "Errors by GPU: iteration time, then peak memory") + table.render(out);
}

nlohmann::ordered_json by_gpu_json(const sim::Validation& validation) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [gpu, errors] : errors_by_gpu(validation))
    json[gpu] = {{"time", score_of(errors.time)}, {"memory", score_of(errors.memory)}};
  return json;
}

}  // namespace shardwright::cli
