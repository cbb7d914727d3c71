// SPDX-License-Identifier: Apache-2.0
#include "cli/render/measured/trace_comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"

namespace shardwright::cli {

namespace {

using Json = nlohmann::ordered_json;
using sim::TraceComparison;

using sim::Communication;
using sim::CommunicationSummary;
using sim::GroupTimes;

constexpr std::array kToldGroups = {CommGroup::kTensor, CommGroup::kPipeline, CommGroup::kContext,
                                    CommGroup::kExpert, CommGroup::kData};

struct Part {
  const char* key;
  double GroupTimes::*seconds;
};
constexpr std::array kParts = {Part{"exposed_by_group", &GroupTimes::exposed_s},
                               Part{"transfer_by_group", &GroupTimes::transfer_s},
                               Part{"waiting_by_group", &GroupTimes::waiting_s}};

const GroupTimes& of_group(const Communication& groups, CommGroup group) {
  return groups[static_cast<std::size_t>(group)];
}

bool is_silent(const GroupTimes& times) {
  return times.exposed_s <= 0 && times.transfer_s <= 0 && times.waiting_s <= 0;
}

Json by_group(const Communication& groups, double GroupTimes::*seconds) {
  Json json = Json::object();
  for (const CommGroup group : kToldGroups) json[name_of(group)] = of_group(groups, group).*seconds;
  return json;
}

struct CommunicationRow {
  std::string what;  // "tensor: exposed", "  transfer, exposed or hidden", ...
  double predicted_s = 0, measured_s = 0;
  bool first = false;  // of its group
};

/// Of the groups in which either trace communicates.
std::vector<CommunicationRow> communication_rows(const sim::TraceComparison& comparison) {
  std::vector<CommunicationRow> rows;
  for (const CommGroup group : kToldGroups) {
    const GroupTimes& p = of_group(comparison.predicted_communication.groups, group);
    const GroupTimes& m = of_group(comparison.measured_communication.groups, group);
    if (is_silent(p) && is_silent(m)) continue;
    rows.push_back({fmt::format("{}: exposed", name_of(group)), p.exposed_s, m.exposed_s, true});
    rows.push_back({"  transfer, exposed or hidden", p.transfer_s, m.transfer_s});
    rows.push_back({group == CommGroup::kPipeline ? "  waiting for messages, in the bubble"
                                                  : "  waiting for the last rank",
                    p.waiting_s, m.waiting_s});
  }
  return rows;
}

/// Those by group, of one stage.
void add_communication(const Communication& groups, Json& stage) {
  for (const Part& part : kParts) stage[part.key] = by_group(groups, part.seconds);
}

void add_compared_communication(const sim::TraceComparison& comparison, Json& document) {
  const CommunicationSummary& predicted = comparison.predicted_communication;
  const CommunicationSummary& measured = comparison.measured_communication;
  for (const Part& part : kParts) {
    document[part.key] = {{"predicted", by_group(predicted.groups, part.seconds)},
                          {"measured", by_group(measured.groups, part.seconds)}};
  }
  document["transfer_s"] = {{"predicted", predicted.transfer_s}, {"measured", measured.transfer_s}};
  document["waiting_s"] = {{"predicted", predicted.waiting_s}, {"measured", measured.waiting_s}};
}

}  // namespace

std::string compared_communication_text(const sim::TraceComparison& comparison,
                                        const Terminal& out) {
  const std::vector<CommunicationRow> rows = communication_rows(comparison);
  if (rows.empty()) return "";
  Table table({"", right("predicted"), right("measured")});
  for (const CommunicationRow& row : rows) {
    if (row.first && &row != &rows.front()) table.add_rule();
    table.add_row({row.what, quantity(row.predicted_s, "s"), quantity(row.measured_s, "s")});
  }
  const bool staged = comparison.predicted_pipeline || comparison.measured_pipeline;
  return heading(out, staged ? "Communication of the stage with most to do, by group"
                             : "Communication of a rank, by group") +
         table.render(out);
}

namespace {

using sim::PipelineSummary;
using sim::StageSummary;

constexpr std::array<std::pair<const char*, double StageSummary::*>, 3> kPhases = {
    {{"warm_up", &StageSummary::warm_up_s},
     {"steady", &StageSummary::steady_s},
     {"drain", &StageSummary::drain_s}}};

class Sides {
 public:
  explicit Sides(const sim::TraceComparison& comparison)
      : predicted_(comparison.predicted_pipeline), measured_(comparison.measured_pipeline) {}

  bool none() const { return !predicted_ && !measured_; }

  template <typename Of>
  Json json(Of&& of) const {
    return {{"predicted", predicted_ ? Json(of(*predicted_)) : Json()},
            {"measured", measured_ ? Json(of(*measured_)) : Json()}};
  }
  template <typename Of>
  std::vector<Cell> cells(std::string title, Of&& of) const {
    return {std::move(title), predicted_ ? of(*predicted_) : "none",
            measured_ ? of(*measured_) : "none"};
  }
  std::size_t stages() const {
    return std::max(predicted_ ? predicted_->stages.size() : 0,
                    measured_ ? measured_->stages.size() : 0);
  }
  template <typename Of>
  std::string stage_cell(bool measured, std::size_t stage, Of&& of) const {
    const std::optional<PipelineSummary>& side = measured ? measured_ : predicted_;
    return side && stage < side->stages.size() ? of(side->stages[stage]) : "none";
  }

 private:
  const std::optional<PipelineSummary>&predicted_, &measured_;
};

std::string stage_table(const Sides& sides, const Terminal& out) {
  Table stages({"stage", right("busy: predicted"), right("measured"), right("bubble: predicted"),
                right("measured")});
  const auto busy = [](const StageSummary& s) { return quantity(s.busy_s, "s"); };
  const auto bubble = [](const StageSummary& s) { return quantity(s.bubble_s(), "s"); };
  for (std::size_t s = 0; s < sides.stages(); ++s) {
    stages.add_row({s, sides.stage_cell(false, s, busy), sides.stage_cell(true, s, busy),
                    sides.stage_cell(false, s, bubble), sides.stage_cell(true, s, bubble)});
  }
  return stages.render(out);
}

void add_compared_pipeline(const sim::TraceComparison& comparison, Json& document) {
  const Sides sides(comparison);
  if (sides.none()) return;
  document["bubble"] = sides.json([](const PipelineSummary& p) {
    Json bubble{{"share", p.bubble()}};
    for (const auto& [name, part] : kPhases) bubble[name] = p.share(part);
    return bubble;
  });
  document["limiting_stage"] = sides.json([](const PipelineSummary& p) { return p.limiting(); });
  document["stages"] = sides.json([](const PipelineSummary& p) {
    return json_list(p.stages, [](const StageSummary& stage) {
      Json json{{"busy_s", stage.busy_s}};
      for (const auto& [name, part] : kPhases) json[fmt::format("{}_s", name)] = stage.*part;
      add_communication(stage.communication, json);
      return json;
    });
  });
}

}  // namespace

std::string compared_pipeline_text(const sim::TraceComparison& comparison, const Terminal& out) {
  const Sides sides(comparison);
  if (sides.none()) return "";
  Table table({"", right("predicted"), right("measured")});
  table.add_row(sides.cells("bubble, of the stages' time",
                            [](const PipelineSummary& p) { return percent(p.bubble()); }));
  for (const auto& [name, part] : kPhases) {
    std::string title = fmt::format("  {}", name);
    std::replace(title.begin(), title.end(), '_', '-');
    double StageSummary::*of = part;
    table.add_row(
        sides.cells(title, [of](const PipelineSummary& p) { return percent(p.share(of)); }));
  }
  table.add_row(sides.cells("the stage with most to do", [](const PipelineSummary& p) {
    return fmt::format("{}", p.limiting());
  }));
  return heading(out, "The pipeline") + table.render(out) + "\n" + stage_table(sides, out);
}

namespace {

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

Json operation_json(const sim::ComparedOperation& o) {
  return {{"id", o.id},
          {"name", o.name},
          {"predicted_s", o.predicted_s},
          {"measured_s", o.measured_s},
          {"difference_s", o.difference_s()}};
}

Json slow_json(const char* what, const std::vector<sim::Slow>& list) {
  return json_list(list, [&](const sim::Slow& slow) -> Json {
    return {{what, slow.number}, {"slower_by", slow.by}};
  });
}

}  // namespace

std::vector<sim::ComparedOperation> top_operations(const TraceComparison& comparison,
                                                   std::int64_t top) {
  const std::int64_t count = std::min<std::int64_t>(top, std::ssize(comparison.operations));
  return {comparison.operations.begin(), comparison.operations.begin() + count};
}

Json trace_comparison_json(const TraceComparison& comparison, std::int64_t top) {
  const auto told = [&](const sim::ComparedClass& c) { return class_json(comparison, c); };
  Json causes = Json::array();
  for (std::size_t i = 0; i < sim::kCauses; ++i) {
    causes.push_back({{"cause", name_of(static_cast<sim::Cause>(i))},
                      {"difference_s", comparison.causes_s[i]},
                      {"share", comparison.share(comparison.causes_s[i])}});
  }
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
                {"causes", std::move(causes)},
                {"phases", json_list(comparison.phases, told)},
                {"classes", json_list(comparison.classes, told)},
                {"operations", json_list(top_operations(comparison, top), operation_json)},
                {"slow_ranks", slow_json("rank", comparison.slow_ranks)},
                {"slow_steps", slow_json("step", comparison.slow_steps)}};
  add_compared_pipeline(comparison, document);
  add_compared_communication(comparison, document);
  return document;
}

}  // namespace shardwright::cli
