// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/anchor_series.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "profiles/ledger/ledger_profile.h"
#include "profiles/profile.h"
#include "sim/calibrate/anchor.h"
#include "sim/core/base/invalid_plan.h"
#include "sim/core/base/worker_pool.h"
#include "sim/predict.h"

namespace shardwright::sim {
namespace {

using profiles::LedgerRow;

profiles::Profile strangers_profile(const LedgerRow& row,
                                    const std::vector<std::string>& overrides = {}) {
  profiles::Profile profile =
      profiles::make_profile(profiles::cluster_of(row), profiles::stack_of(row), overrides);
  profiles::apply_circumstances(row, overrides, profile);
  return profile;
}

double half_width_of(const TimePrediction& time) {
  return std::log(time.interval_s[1] / time.interval_s[0]) / 2;
}

std::vector<std::string> overrides_of(const AnchorFit& fit) {
  std::vector<std::string> overrides;
  for (const GroupFit& group : fit.result.groups) {
    for (const FittedValue& value : group.values)
      overrides.push_back(fmt::format("{}={}", value.path, value.after));
  }
  return overrides;
}

AnchoredRun carried_to(const LedgerRow& row, const AnchorFit& fit) {
  profiles::Profile anchored = strangers_profile(row, overrides_of(fit));
  anchored.anchored_models = fit.result.profile.anchored_models;
  const double measured = *row.iteration_s;
  const TimePrediction before = predict(row.model, strangers_profile(row), row.plan).time;
  const TimePrediction after = predict(row.model, anchored, row.plan).time;
  const auto inside = [measured](const TimePrediction& time) {
    return measured >= time.interval_s[0] && measured <= time.interval_s[1];
  };
  return {row.id,
          row.plan.gpus,
          before.iteration_s / measured - 1,
          after.iteration_s / measured - 1,
          half_width_of(before),
          half_width_of(after),
          inside(before),
          inside(after)};
}

std::optional<AnchoredSeries> series_of(const std::vector<const LedgerRow*>& rows) {
  const LedgerRow& from = **std::min_element(
      rows.begin(), rows.end(),
      [](const LedgerRow* a, const LedgerRow* b) { return a->plan.gpus < b->plan.gpus; });
  AnchoredSeries series{from.source,    from.gpu, from.plan.stack, from.model.name, from.id,
                        from.plan.gpus, {}};
  try {
    const AnchorFit fit = anchor(from.model, strangers_profile(from), from.plan, *from.iteration_s);
    for (const LedgerRow* row : rows) {
      if (row->plan.gpus > from.plan.gpus) series.runs.push_back(carried_to(*row, fit));
    }
  } catch (const InvalidPlan&) {
    return std::nullopt;  // validate says why
  }
  return series;
}

}  // namespace

std::vector<AnchoredSeries> anchored_series(const std::vector<LedgerRow>& rows) {
  using Key = std::tuple<std::string, std::string, std::string, std::string, std::string, Precision,
                         std::int64_t>;
  std::map<Key, std::vector<const LedgerRow*>> cells;
  for (const LedgerRow& row : rows) {
    if (!row.iteration_s || !row.suspect.empty() || !row.unsupported.empty()) continue;
    cells[{row.source, row.gpu, row.plan.stack, row.model.name, row.version,
           row.plan.numerics.precision, row.plan.seq_len}]
        .push_back(&row);
  }
  std::erase_if(cells, [](const auto& cell) {
    const auto& of = cell.second;
    return std::all_of(of.begin(), of.end(), [&](const LedgerRow* row) {
      return row->plan.gpus == of.front()->plan.gpus;
    });
  });
  std::vector<const std::vector<const LedgerRow*>*> each;
  for (const auto& [key, members] : cells) each.push_back(&members);
  std::vector<std::optional<AnchoredSeries>> found(each.size());
  for_each_index(each.size(), 0, [&](std::size_t i) { found[i] = series_of(*each[i]); });
  std::vector<AnchoredSeries> series;
  for (std::optional<AnchoredSeries>& one : found) {
    if (one && !one->runs.empty()) series.push_back(std::move(*one));
  }
  return series;
}

}  // namespace shardwright::sim
