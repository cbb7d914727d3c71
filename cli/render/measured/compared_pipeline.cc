// SPDX-License-Identifier: Apache-2.0
#include "cli/render/measured/compared_pipeline.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/render/measured/compared_communication.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"
#include "cli/text.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;
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
  Table stages({{"stage"},
                {"busy: predicted", Align::kRight},
                {"measured", Align::kRight},
                {"bubble: predicted", Align::kRight},
                {"measured", Align::kRight}});
  const auto busy = [](const StageSummary& s) { return quantity(s.busy_s, "s"); };
  const auto bubble = [](const StageSummary& s) { return quantity(s.bubble_s(), "s"); };
  for (std::size_t s = 0; s < sides.stages(); ++s) {
    stages.add_row({fmt::format("{}", s), sides.stage_cell(false, s, busy),
                    sides.stage_cell(true, s, busy), sides.stage_cell(false, s, bubble),
                    sides.stage_cell(true, s, bubble)});
  }
  return stages.render(out);
}

}  // namespace

std::string compared_pipeline_text(const sim::TraceComparison& comparison, const Terminal& out) {
  const Sides sides(comparison);
  if (sides.none()) return "";
  Table table({{""}, {"predicted", Align::kRight}, {"measured", Align::kRight}});
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
    Json stages = Json::array();
    for (const StageSummary& stage : p.stages) {
      Json& of = stages.emplace_back(Json{{"busy_s", stage.busy_s}});
      for (const auto& [name, part] : kPhases) of[fmt::format("{}_s", name)] = stage.*part;
      add_communication(stage.communication, of);
    }
    return stages;
  });
}

}  // namespace shardwright::cli
