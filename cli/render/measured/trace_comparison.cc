// SPDX-License-Identifier: Apache-2.0
#include "cli/render/measured/trace_comparison.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/render/measured/compared_communication.h"
#include "cli/render/measured/compared_pipeline.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;
using sim::TraceComparison;

Json class_json(const TraceComparison& comparison, const sim::ComparedClass& c) {
  Json json{{"phase", name_of(c.phase)}};
  if (c.kind) json["kind"] = name_of(*c.kind);
  json["operations"] = c.operations;
  json["predicted_s"] = c.predicted_s;
  json["measured_s"] = c.measured_s;
  json["difference_s"] = c.difference_s();
  json["share"] = comparison.share(c.exposed_difference_s);
  return json;
}

Json slow_json(const char* what, const std::vector<sim::Slow>& list) {
  Json json = Json::array();
  for (const sim::Slow& slow : list) json.push_back({{what, slow.number}, {"slower_by", slow.by}});
  return json;
}

}  // namespace

std::vector<sim::ComparedOperation> top_operations(const TraceComparison& comparison,
                                                   std::int64_t top) {
  const std::int64_t count = std::min<std::int64_t>(top, std::ssize(comparison.operations));
  return {comparison.operations.begin(), comparison.operations.begin() + count};
}

Json trace_comparison_json(const TraceComparison& comparison, std::int64_t top) {
  Json document{{"schema", "shardwright.comparison/1.4"},
                {"step_time_s",
                 {{"predicted", comparison.predicted_step_s},
                  {"measured", comparison.measured_step_s},
                  {"error", comparison.error()}}},
                {"predicted_ranks", comparison.predicted_ranks},
                {"predicted_steps", comparison.predicted_steps},
                {"measured_ranks", comparison.measured_ranks},
                {"measured_steps", comparison.measured_steps},
                {"plan_differences", comparison.plan_differences},
                {"only_predicted", comparison.only_predicted},
                {"only_measured", comparison.only_measured},
                {"causes", Json::array()},
                {"phases", Json::array()},
                {"classes", Json::array()},
                {"operations", Json::array()},
                {"slow_ranks", slow_json("rank", comparison.slow_ranks)},
                {"slow_steps", slow_json("step", comparison.slow_steps)}};
  add_compared_pipeline(comparison, document);
  add_compared_communication(comparison, document);
  for (std::size_t i = 0; i < sim::kCauses; ++i) {
    document["causes"].push_back({{"cause", name_of(static_cast<sim::Cause>(i))},
                                  {"difference_s", comparison.causes_s[i]},
                                  {"share", comparison.share(comparison.causes_s[i])}});
  }
  for (const sim::ComparedClass& c : comparison.phases)
    document["phases"].push_back(class_json(comparison, c));
  for (const sim::ComparedClass& c : comparison.classes)
    document["classes"].push_back(class_json(comparison, c));
  for (const sim::ComparedOperation& o : top_operations(comparison, top)) {
    document["operations"].push_back({{"id", o.id},
                                      {"name", o.name},
                                      {"predicted_s", o.predicted_s},
                                      {"measured_s", o.measured_s},
                                      {"difference_s", o.difference_s()}});
  }
  return document;
}

}  // namespace shardwright::cli
