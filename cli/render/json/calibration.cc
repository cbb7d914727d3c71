// SPDX-License-Identifier: Apache-2.0
#include "cli/render/measured/calibration.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/render/json/json_text.h"

namespace shardwright::cli {
namespace {

using nlohmann::ordered_json;

ordered_json left_out_json(const CalibrationReport& report) {
  ordered_json list = ordered_json::array();
  for (const auto* part : {&report.set.left_out, &report.rows_left_out, &report.result.left_out}) {
    for (const profiles::LeftOut& entry : *part) {
      list.push_back({{"what", entry.what}, {"count", entry.count}, {"seconds", entry.seconds}});
    }
  }
  return list;
}

}  // namespace

std::string calibration_json(const CalibrationReport& report) {
  ordered_json document{{"schema", "shardwright.calibration/1.0"},
                        {"base", report.base},
                        {"out", report.out.empty() ? ordered_json() : ordered_json(report.out)},
                        {"sources", ordered_json::array()},
                        {"values", ordered_json::array()},
                        {"groups", ordered_json::array()}};
  for (const auto& source : report.set.sources) {
    document["sources"].push_back({{"file", source.file},
                                   {"format", source.format},
                                   {"gpu", source.gpu},
                                   {"software", source.software},
                                   {"date", source.date},
                                   {"truncated", source.truncated}});
  }
  for (const sim::GroupFit& fit : report.result.groups) {
    for (const sim::FittedValue& value : fit.values) {
      ordered_json entry{
          {"path", value.path},   {"group", name_of(fit.group)},    {"before", value.before},
          {"after", value.after}, {"determined", value.determined}, {"operations", value.rows}};
      if (value.determined) {
        entry["interval"] = {value.low, value.high};
      } else {
        entry["why_not"] = value.why_not;
      }
      document["values"].push_back(std::move(entry));
    }
    if (fit.errors.rows == 0) continue;
    document["groups"].push_back({{"group", name_of(fit.group)},
                                  {"operations", fit.errors.rows},
                                  {"timings", fit.errors.observations},
                                  {"before", errors_json(fit.errors.before)},
                                  {"in_sample", errors_json(fit.errors.in_sample)},
                                  {"held_out", errors_json(fit.errors.held_out)},
                                  {"half_width", fit.errors.half_width}});
  }
  document["measured_products"] = report.result.products.size();
  document["left_out"] = left_out_json(report);
  document["notes"] = report.set.notes;
  if (report.next.what.empty()) {
    document["next_measurement"] = nullptr;
  } else {
    document["next_measurement"] = {{"what", report.next.what},
                                    {"group", name_of(report.next.group)},
                                    {"deviation_before", report.next.before},
                                    {"deviation_after", report.next.after},
                                    {"group_share", report.next.group_share}};
  }
  return json_text(document) + "\n";
}

std::string drift_json(const sim::Drift& drift, const std::string& profile) {
  ordered_json document{{"schema", "shardwright.drift/1.0"},
                        {"profile", profile},
                        {"drifted", drift.any()},
                        {"changes", drift.changes},
                        {"groups", ordered_json::array()}};
  for (const sim::GroupDrift& group : drift.groups) {
    document["groups"].push_back(
        {{"group", name_of(group.group)},
         {"operations", group.rows},
         {"measured_over_predicted", std::exp(group.median)},
         {"usual", {std::exp(group.low), std::exp(group.high)}},
         {"known_operations", group.same_rows},
         {"now_over_then",
          group.same_rows > 0 ? ordered_json(std::exp(group.same_median)) : ordered_json()},
         {"drifted", group.drifted}});
  }
  return json_text(document) + "\n";
}

}  // namespace shardwright::cli
