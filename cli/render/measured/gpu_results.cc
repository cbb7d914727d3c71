// SPDX-License-Identifier: Apache-2.0
#include "cli/render/measured/gpu_results.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "cli/render/scores/validation.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"

namespace shardwright::cli {
namespace {

std::string error_against(std::optional<double> predicted, double measured) {
  return predicted ? fmt::format("{:+.1f} %", 100 * (*predicted / measured - 1)) : "-";
}

}  // namespace

std::string gpu_results_text(const sim::GpuResults& results, const Terminal& out) {
  Table table({{"model"},
               {"GPUs", Align::kRight},
               {"measured", Align::kRight},
               {"predicted", Align::kRight},
               {"error", Align::kRight},
               {"then", Align::kRight},
               {"after measure", Align::kRight},
               {"attention"}});
  for (const sim::GpuRun& run : results.runs) {
    table.add_row({run.model, fmt::format("{}", run.gpus), quantity(run.measured_s, "s"),
                   quantity(run.predicted_s, "s"), error_against(run.predicted_s, run.measured_s),
                   error_against(run.then_s, run.measured_s),
                   error_against(run.after_s, run.measured_s), run.attention});
  }
  std::string text = heading(out, fmt::format("Runs on {}, {}: measured against predictions for {}",
                                              results.gpu, results.when, results.cluster)) +
                     table.render(out);
  for (const std::string& why : results.skipped) text += fmt::format("not run: {}\n", why);
  return text;
}

nlohmann::ordered_json gpu_results_json(const sim::GpuResults& results) {
  const auto number = [](std::optional<double> value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  nlohmann::ordered_json runs = nlohmann::ordered_json::array();
  for (const sim::GpuRun& run : results.runs) {
    runs.push_back({{"model", run.model},
                    {"gpus", run.gpus},
                    {"attention", run.attention},
                    {"measured_step_s", run.measured_s},
                    {"predicted_step_s", run.predicted_s},
                    {"error", run.error()},
                    {"predicted_then_step_s", number(run.then_s)},
                    {"predicted_after_measure_step_s", number(run.after_s)},
                    {"peak_bytes", run.peak_bytes},
                    {"predicted_peak_bytes", run.predicted_peak_bytes}});
  }
  return {{"gpu", results.gpu},
          {"when", results.when},
          {"cluster", results.cluster},
          {"time", score_json(results.time)},
          {"after_measure", score_json(results.after)},
          {"memory", score_json(results.memory)},
          {"runs", std::move(runs)},
          {"skipped", results.skipped}};
}

}  // namespace shardwright::cli
