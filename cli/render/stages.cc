// SPDX-License-Identifier: Apache-2.0
#include "cli/render/stages.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"
#include "cli/text.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::pair<CommGroup, std::string_view>, 5> kGroups = {
    {{CommGroup::kTensor, "tensor"},
     {CommGroup::kPipeline, "pipeline"},
     {CommGroup::kContext, "context"},
     {CommGroup::kExpert, "expert"},
     {CommGroup::kData, "data"}}};

double of(const std::array<double, kCommGroups>& values, CommGroup group) {
  return values[static_cast<std::size_t>(group)];
}

double sent_by(const sim::Prediction& prediction, CommGroup group) {
  return prediction.sent[static_cast<std::size_t>(group)].total();
}

/// The stage whose times are those of the whole prediction.
const sim::StagePrediction& busiest(const sim::Prediction& prediction) {
  const auto same = std::find_if(prediction.stages.begin(), prediction.stages.end(),
                                 [&](const sim::StagePrediction& stage) {
                                   return stage.compute_s == prediction.time.compute_s;
                                 });
  return same == prediction.stages.end() ? prediction.stages.front() : *same;
}

std::string stage_name(const sim::Prediction& prediction, std::size_t first, std::size_t last) {
  const std::int64_t from = prediction.stages[first].stage, to = prediction.stages[last].stage;
  return from == to ? fmt::format("{}", from) : fmt::format("{} to {}", from, to);
}

/// Stages that a table would repeat.
bool alike(const sim::StagePrediction& a, const sim::StagePrediction& b) {
  return a.layers == b.layers && a.fits == b.fits &&
         duration(a.compute_s) == duration(b.compute_s) &&
         bytes(a.peak_reserved_bytes) == bytes(b.peak_reserved_bytes);
}

}  // namespace

double variation_s(const sim::Prediction& prediction) {
  const sim::StagePrediction& s = busiest(prediction);
  const double parts =
      s.compute_s + s.exposed_communication_s + s.host_s + s.optimizer_s + s.bubble_s;
  const double rest = prediction.time.iteration_s - parts;
  return rest < 1e-9 * prediction.time.iteration_s ? 0 : rest;
}

std::string stages_text(const sim::Prediction& prediction, const Terminal& out) {
  const std::vector<sim::StagePrediction>& stages = prediction.stages;
  std::string text;
  if (stages.size() > 1) {
    text += heading(out, "Stages of the pipeline");
    Table table(
        {{"stage"}, {"layers"}, {"compute"}, {"waits for data"}, {"bubble"}, {"memory"}, {""}});
    for (std::size_t i = 0; i < stages.size();) {
      std::size_t last = i;
      while (last + 1 < stages.size() && alike(stages[i], stages[last + 1])) ++last;
      const sim::StagePrediction& s = stages[i];
      table.add_row({stage_name(prediction, i, last),
                     fmt::format("{}", s.layers),
                     duration(s.compute_s),
                     duration(s.exposed_communication_s),
                     duration(s.bubble_s),
                     bytes(s.peak_reserved_bytes),
                     {s.fits ? "fits" : "does not fit", s.fits ? Style::kGreen : Style::kRed}});
      i = last + 1;
    }
    text += table.render(out);
    text += fmt::format("The bubble takes {} of the stages' time over {} micro-batches.\n",
                        percent(prediction.pipeline.bubble), prediction.pipeline.micro_batches);
  }
  Table table({{"group"}, {"sent per GPU"}, {"waited for"}});
  int groups = 0;
  for (const auto& [group, name] : kGroups) {
    const double sent = sent_by(prediction, group);
    if (sent <= 0) continue;
    table.add_row({std::string(name), bytes(sent), duration(of(prediction.exposed_s, group))});
    ++groups;
  }
  if (groups > 1) text += heading(out, "Communication by group") + table.render(out);
  return text;
}

void add_stages(const sim::Prediction& prediction, Json& document) {
  for (const auto& [group, name] : kGroups) {
    document["communication_bytes"][std::string(name)] = sent_by(prediction, group);
  }
  Json exposed = Json::object();
  for (const auto& [group, name] : kGroups) {
    exposed[std::string(name)] = of(prediction.exposed_s, group);
  }
  document["exposed_communication_by_group"] = std::move(exposed);
  document["pipeline"] = {{"bubble", prediction.pipeline.bubble},
                          {"micro_batches", prediction.pipeline.micro_batches},
                          {"steady_state_after", prediction.pipeline.steady_state_after}};
  Json stages = Json::array();
  for (const sim::StagePrediction& s : prediction.stages) {
    stages.push_back({{"stage", s.stage},
                      {"layers", s.layers},
                      {"time_s",
                       {{"compute", s.compute_s},
                        {"exposed_communication", s.exposed_communication_s},
                        {"host", s.host_s},
                        {"optimizer", s.optimizer_s},
                        {"bubble", s.bubble_s}}},
                      {"peak_allocated_bytes", s.peak_allocated_bytes},
                      {"peak_reserved_bytes", s.peak_reserved_bytes},
                      {"fits", s.fits}});
  }
  document["stages"] = std::move(stages);
}

std::vector<Loss> losses_of(const sim::Prediction& prediction) {
  std::vector<Loss> losses;
  const sim::StagePrediction& stage = busiest(prediction);
  losses.push_back({"bubble of the pipeline", stage.bubble_s});
  for (const auto& [group, name] : kGroups) {
    losses.push_back(
        {fmt::format("exposed {} communication", name), of(prediction.exposed_s, group)});
  }
  losses.push_back({"host", stage.host_s});
  losses.push_back({"optimizer", stage.optimizer_s});
  losses.push_back({"nodes that vary", variation_s(prediction)});
  std::erase_if(losses, [](const Loss& loss) { return loss.seconds <= 0; });
  std::stable_sort(losses.begin(), losses.end(),
                   [](const Loss& a, const Loss& b) { return a.seconds > b.seconds; });
  return losses;
}

std::string losses_text(const sim::Prediction& prediction, const Terminal& out) {
  Table table({{"beside computing"}, {"time"}, {"of the step"}});
  for (const Loss& loss : losses_of(prediction)) {
    table.add_row(
        {loss.what, duration(loss.seconds), percent(loss.seconds / prediction.time.iteration_s)});
  }
  return heading(out, "What the busiest stage waits for") + table.render(out);
}

Json losses_json(const sim::Prediction& prediction) {
  Json parts = Json::array();
  for (const Loss& loss : losses_of(prediction)) {
    parts.push_back({{"what", loss.what},
                     {"seconds", loss.seconds},
                     {"share", loss.seconds / prediction.time.iteration_s}});
  }
  return parts;
}

}  // namespace shardwright::cli
