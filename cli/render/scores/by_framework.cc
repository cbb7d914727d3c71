// SPDX-License-Identifier: Apache-2.0
#include "cli/render/scores/by_framework.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "cli/render/scores/validation.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string year_of(const sim::ReleaseScore& score) {
  return score.year > 0 ? fmt::format("{}", score.year) : "no date";
}

void add_row(Table& table, const std::string& name, const std::string& released,
             const sim::ReleaseScore& score) {
  const std::int64_t n = score.time.n;
  const auto mean = [](const sim::ErrorScore& errors) {
    return errors.n > 0 ? percent(errors.mape) : std::string();
  };
  table.add_row({name, released, fmt::format("{}", n), mean(score.time), percent(score.time.median),
                 percent(score.time.worst), mean(score.source_left_out),
                 fmt::format("{} of {}", score.inside_interval, n)});
}

Json scores_json(const sim::ReleaseScore& score) {
  Json json = score_json(score.time);
  json["interval"] = {{"n", score.time.n}, {"inside", score.inside_interval}};
  json["source_left_out"] = score_json(score.source_left_out);
  return json;
}

}  // namespace

std::string by_framework_text(const std::vector<sim::FrameworkScore>& scores, const Terminal& out) {
  Table table({{"framework"},
               {"released"},
               {"times", Align::kRight},
               {"mean", Align::kRight},
               {"median", Align::kRight},
               {"worst", Align::kRight},
               {"source left out", Align::kRight},
               {"in the 90 % interval", Align::kRight}});
  for (const sim::FrameworkScore& framework : scores) {
    const bool one = framework.years.size() == 1;
    add_row(table, framework.framework, one ? year_of(framework.all) : "all", framework.all);
    for (const sim::ReleaseScore& year : framework.years) {
      if (!one) add_row(table, "", year_of(year), year);
    }
  }
  return heading(out, "Errors of iteration time by framework, newest release first") +
         table.render(out);
}

Json by_framework_json(const std::vector<sim::FrameworkScore>& scores) {
  Json json = Json::array();
  for (const sim::FrameworkScore& framework : scores) {
    Json entry{{"framework", framework.framework}, {"newest", framework.all.releases.front()}};
    entry.update(scores_json(framework.all));
    entry["years"] = Json::array();
    for (const sim::ReleaseScore& year : framework.years) {
      Json of_year{{"year", year.year > 0 ? Json(year.year) : Json(nullptr)},
                   {"releases", year.releases}};
      of_year.update(scores_json(year));
      entry["years"].push_back(std::move(of_year));
    }
    json.push_back(std::move(entry));
  }
  return json;
}

}  // namespace shardwright::cli
