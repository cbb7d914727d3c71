// SPDX-License-Identifier: Apache-2.0
#include "cli/render/measured/compared_communication.h"

#include <fmt/core.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;
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

}  // namespace

std::string compared_communication_text(const sim::TraceComparison& comparison,
                                        const Terminal& out) {
  const std::vector<CommunicationRow> rows = communication_rows(comparison);
  if (rows.empty()) return "";
  Table table({{""}, {"predicted", Align::kRight}, {"measured", Align::kRight}});
  for (const CommunicationRow& row : rows) {
    if (row.first && &row != &rows.front()) table.add_rule();
    table.add_row({row.what, quantity(row.predicted_s, "s"), quantity(row.measured_s, "s")});
  }
  const bool staged = comparison.predicted_pipeline || comparison.measured_pipeline;
  return heading(out, staged ? "Communication of the stage with most to do, by group"
                             : "Communication of a rank, by group") +
         table.render(out);
}

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

}  // namespace shardwright::cli
