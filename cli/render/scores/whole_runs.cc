// SPDX-License-Identifier: Apache-2.0
#include "cli/render/scores/whole_runs.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"
#include "cli/text.h"
#include "sim/core/plan_json.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;
using tuner::ScoredWholeRun;

Json coverage_json(const profiles::Coverage& coverage) {
  return {{"n", coverage.n}, {"inside", coverage.inside}, {"median_ratio", coverage.median_ratio}};
}

Json assumed_json(const tuner::IdealHours& ideal) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  return {{"plan", ideal.plan ? Json(plan_to_json(*ideal.plan)) : Json(nullptr)},
          {"stack", or_null(ideal.stack)},
          {"cluster", or_null(ideal.cluster)},
          {"notes", ideal.assumed}};
}

Json row_json(const ScoredWholeRun& row) {
  Json json{{"id", row.run.id}, {"family", row.run.family}, {"tier", std::string(1, row.run.tier)}};
  if (!row.skipped.empty()) {
    for (const char* key : {"predicted_gpu_hours", "interval_gpu_hours", "published_gpu_hours",
                            "ideal_gpu_hours", "assumed", "inside"}) {
      json[key] = nullptr;
    }
    json["skipped"] = row.skipped;
    return json;
  }
  json["predicted_gpu_hours"] = row.gpu_hours;
  json["interval_gpu_hours"] = {row.interval_gpu_hours[0], row.interval_gpu_hours[1]};
  json["published_gpu_hours"] = row.run.gpu_hours;
  json["ideal_gpu_hours"] = row.ideal.gpu_hours;
  json["inside"] = row.inside;
  json["scored"] = row.run.scored();
  json["assumed"] = assumed_json(row.ideal);
  json["skipped"] = nullptr;
  return json;
}

std::string steps_cell(const tuner::IdealHours& ideal) {
  if (!ideal.plan) return "analytic";
  const Parallelism& parallel = ideal.plan->parallel;
  if (parallel.plain()) return fmt::format("{} {}", ideal.stack, name_of(ideal.plan->strategy));
  std::string text = ideal.stack;
  for (const auto& [name, size] :
       {std::pair{"tp", parallel.tp}, {"pp", parallel.pp}, {"ep", parallel.ep}}) {
    if (size > 1) text += fmt::format(" {} {}", name, size);
  }
  return text;
}

std::string thousand_hours(double hours) {
  const double k = hours / 1000;
  return k < 100 ? fmt::format("{:.3g}", k) : thousands(k);
}

void add_row(Table& table, const ScoredWholeRun& row) {
  const std::string tier(1, row.run.tier);
  if (!row.skipped.empty()) {
    table.add_row({row.run.id, tier, "", "", "", "", Cell("skipped", Style::kYellow), row.skipped});
    return;
  }
  const Cell inside = !row.run.scored() ? Cell("")
                      : row.inside      ? Cell("yes", Style::kGreen)
                                        : Cell("no", Style::kYellow);
  table.add_row({row.run.id, tier, thousand_hours(row.run.gpu_hours),
                 thousand_hours(row.ideal.gpu_hours), thousand_hours(row.gpu_hours),
                 fmt::format("{}-{}", thousand_hours(row.interval_gpu_hours[0]),
                             thousand_hours(row.interval_gpu_hours[1])),
                 inside, steps_cell(row.ideal)});
}

}  // namespace

std::string whole_runs_text(const tuner::WholeRunScore& score,
                            const profiles::Production& production, const Terminal& out) {
  Table table({{"training"},
               {"tier"},
               {"published", Align::kRight},
               {"ideal", Align::kRight},
               {"predicted", Align::kRight},
               {"interval", Align::kRight},
               {"inside"},
               {"ideal steps by"}});
  for (const ScoredWholeRun& row : score.runs) add_row(table, row);
  std::string text = heading(
      out, "Training runs, in thousand GPU hours: published GPU hours, ideal steps, predicted");
  text += table.render(out);
  const tuner::WholeRunSummary& all = score.summary;
  std::vector<std::string> sentences;
  sentences.push_back(
      fmt::format("Of {} trainings of tiers A and B, {} lie inside the interval of {:.0f} %, whose "
                  "upper end is "
                  "{:.2g} times the lower; predicted over published is {:.2f} in the middle.",
                  all.n, all.inside, 100 * production.level, all.median_width, all.median_ratio));
  const profiles::Coverage& held = production.family_out;
  sentences.push_back(fmt::format(
      "The factor was fitted on {} trainings; refitted without each family, {} of {} lay inside.",
      production.in_sample.n, held.inside, held.n));
  for (const auto& [generation, reached] : production.reached) {
    if (reached.n < 4) continue;
    sentences.push_back(
        fmt::format("{}: the middle half of {} trainings reached {:.0f} to {:.0f} % of the 16-bit "
                    "peak over the "
                    "whole run (6 N a token).",
                    generation, reached.n, 100 * reached.mfu[0], 100 * reached.mfu[2]));
  }
  for (const std::string& sentence : sentences) {
    for (const std::string& line : wrap(sentence, out.columns)) text += line + "\n";
  }
  return text;
}

Json whole_runs_json(const tuner::WholeRunScore& score) {
  Json rows = Json::array();
  for (const ScoredWholeRun& row : score.runs) rows.push_back(row_json(row));
  return rows;
}

Json whole_runs_summary_json(const tuner::WholeRunScore& score,
                             const profiles::Production& production) {
  const tuner::WholeRunSummary& all = score.summary;
  return {{"n", all.n},
          {"inside", all.inside},
          {"median_ratio", all.median_ratio},
          {"median_width", all.median_width},
          {"level", production.level},
          {"fitted",
           {{"in_sample", coverage_json(production.in_sample)},
            {"family_left_out", coverage_json(production.family_out)}}}};
}

}  // namespace shardwright::cli
