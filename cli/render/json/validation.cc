// SPDX-License-Identifier: Apache-2.0
#include "cli/render/scores/validation.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/render/json/json_text.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

Json optional_number(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

/// What the framework reserves, of what it may.
double share_of_memory(const sim::MemoryPrediction& memory) {
  return static_cast<double>(memory.peak_reserved_bytes) /
         static_cast<double>(memory.usable_bytes - memory.runtime_bytes);
}

Json row_json(const sim::ValidatedRow& row) {
  const bool predicted = row.skipped.empty();
  const sim::TimePrediction& time = row.prediction.time;
  return {
      {"id", row.row.id},
      {"predicted_iter_time_s", predicted ? Json(time.iteration_s) : Json(nullptr)},
      {"measured_iter_time_s", optional_number(row.row.iteration_s)},
      {"time_error", optional_number(row.time_error)},
      {"predicted_peak_gib", predicted ? Json(row.predicted_peak_gib) : Json(nullptr)},
      {"measured_peak_gib", optional_number(row.row.peak_gib)},
      {"memory_error", optional_number(row.memory_error)},
      {"fits", predicted ? Json(row.prediction.memory.fits) : Json(nullptr)},
      {"memory_share", predicted ? Json(share_of_memory(row.prediction.memory)) : Json(nullptr)},
      {"outcome", row.row.out_of_memory ? "oom" : "ok"},
      {"skipped", predicted ? Json(nullptr) : Json(row.skipped)},
      {"source", row.row.source},
      {"mem_kind", row.row.peak_gib ? Json(name_of(row.row.counter)) : Json(nullptr)},
      {"predicted_interval_s",
       predicted ? Json{time.interval_s[0], time.interval_s[1]} : Json(nullptr)},
      {"extrapolated", row.prediction.extrapolated},
      {"seen", predicted ? Json(name_of(time.novelty)) : Json(nullptr)},
      {"stack_called", row.row.stack_called.empty() ? Json(nullptr) : Json(row.row.stack_called)},
      {"suspect", row.row.suspect.empty() ? Json(nullptr) : Json(row.row.suspect)},
      {"verdict", predicted ? Json(name_of(row.prediction.memory.verdict)) : Json(nullptr)}};
}

Json summary_json(const sim::ValidationSummary& summary) {
  return {
      {"time", score_json(summary.time)},
      {"memory", score_json(summary.memory)},
      {"outcome", {{"n", summary.predicted}, {"wrong", summary.wrong_outcomes}}},
      {"interval", {{"n", summary.time.n}, {"inside", summary.inside_interval}}},
      {"memory_interval", {{"n", summary.memory.n}, {"inside", summary.inside_memory_interval}}},
      {"suspect", score_json(summary.suspect_time)},
      {"skipped", summary.skipped}};
}

Json group_json(const sim::GroupScore& group) {
  Json result = errors_json(group.all);
  result["by_gpu"] = Json::object();
  for (const auto& [gpu, errors] : group.by_gpu) result["by_gpu"][gpu] = errors_json(errors);
  return result;
}

}  // namespace

Json score_json(const sim::ErrorScore& score) {
  return {{"n", score.n}, {"mape", score.mape}, {"median", score.median}, {"worst", score.worst}};
}

Json validation_json(const sim::Validation& validation) {
  Json document{{"schema", "shardwright.validation/1.0"}, {"rows", Json::array()}};
  for (const sim::ValidatedRow& row : validation.rows) document["rows"].push_back(row_json(row));
  Json& summary = document["summary"] = summary_json(validation.all);
  summary["by_source"] = Json::object();
  for (const auto& [source, scores] : validation.by_source) {
    summary["by_source"][source] = summary_json(scores);
  }
  summary["constants_of_one_source"] = Json::array();
  for (const sim::SourceConstant& constant : validation.source_constants) {
    summary["constants_of_one_source"].push_back(
        {{"name", constant.name},
         {"source", constant.source},
         {"value", constant.value},
         {"prior", constant.prior},
         {"only_for_it", constant.applies_to_source_only}});
  }
  summary["skipped_because"] = validation.skipped_because;
  Json pairs = Json::array();
  std::int64_t within = 0;
  for (const sim::SpeedupPair& pair : validation.speedups) {
    within += std::abs(pair.predicted - pair.measured) <= 0.03;
    pairs.push_back({{"yafsdp", validation.rows[pair.yafsdp].row.id},
                     {"fsdp1", validation.rows[pair.fsdp1].row.id},
                     {"measured", pair.measured},
                     {"predicted", pair.predicted}});
  }
  summary["speedup"] = {
      {"n", validation.speedups.size()}, {"within_3_points", within}, {"pairs", std::move(pairs)}};
  return document;
}

Json layer_periods_json(const std::vector<sim::LayerPeriod>& periods) {
  Json result = Json::array();
  for (const sim::LayerPeriod& period : periods) {
    result.push_back({{"id", period.row.id},
                      {"strategy", name_of(period.row.plan.strategy)},
                      {"measured_s", period.measured_s},
                      {"predicted_s", period.predicted_s},
                      {"error", period.predicted_s / period.measured_s - 1}});
  }
  return result;
}

Json kernel_score_json(const sim::KernelScore& score) {
  Json result = group_json(score.all);
  if (score.training_size.all.n > 0) {
    result["training_size"] = group_json(score.training_size);
    result["training_size_consistent"] = group_json(score.training_size_consistent);
  }
  return result;
}

}  // namespace shardwright::cli
