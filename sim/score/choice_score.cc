// SPDX-License-Identifier: Apache-2.0
#include "sim/score/choice_score.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

namespace shardwright::sim {
namespace {

struct TimedLayout {
  std::string id;
  double measured_s = 0, predicted_s = 0;
};

std::int64_t sequences_per_step(const Plan& plan) {
  return plan.micro_batch * plan.grad_accum * (plan.gpus / plan.parallel.replica());
}

auto group_of(const profiles::LedgerRow& row) {
  const Plan& p = row.plan;
  return std::make_tuple(row.source, row.model.name, row.gpu, row.gpus_per_node,
                         row.inter_gbps_per_node, p.gpus, p.seq_len, sequences_per_step(p),
                         std::string(name_of(p.numerics.precision)), p.numerics.lora, p.stack,
                         row.version.empty() ? row.software : row.version);
}

int sign_of(double difference) {
  return difference > 0 ? 1 : difference < 0 ? -1 : 0;
}

/// tau-b; 0 where one of the orders is all ties.
double kendall_tau(const std::vector<TimedLayout>& layouts) {
  double agreement = 0, by_measured = 0, by_predicted = 0;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const int measured = sign_of(layouts[i].measured_s - layouts[j].measured_s);
      const int predicted = sign_of(layouts[i].predicted_s - layouts[j].predicted_s);
      agreement += measured * predicted;
      by_measured += measured != 0;
      by_predicted += predicted != 0;
    }
  }
  const double pairs = std::sqrt(by_measured * by_predicted);
  return pairs > 0 ? agreement / pairs : 0;
}

void score_group(const std::vector<TimedLayout>& layouts, ChoiceGroup& group) {
  const auto chosen = std::min_element(
      layouts.begin(), layouts.end(),
      [](const TimedLayout& a, const TimedLayout& b) { return a.predicted_s < b.predicted_s; });
  const auto best = std::min_element(
      layouts.begin(), layouts.end(),
      [](const TimedLayout& a, const TimedLayout& b) { return a.measured_s < b.measured_s; });
  group.layouts = static_cast<std::int64_t>(layouts.size());
  group.chosen = chosen->id;
  group.best = best->id;
  group.regret = chosen->measured_s / best->measured_s - 1;
  for (const TimedLayout& layout : layouts)
    group.random_regret +=
        (layout.measured_s / best->measured_s - 1) / static_cast<double>(layouts.size());
  group.kendall_tau = kendall_tau(layouts);
}

/// Layouts that rows of one group tell apart by what is predicted of them: equal plans have equal
/// predictions, and layouts that are predicted alike are one choice, which takes their mean.
std::vector<TimedLayout> distinct(const std::vector<const ValidatedRow*>& rows) {
  std::map<double, std::vector<const ValidatedRow*>> by_prediction;
  for (const ValidatedRow* row : rows)
    by_prediction[row->prediction.time.iteration_s].push_back(row);
  std::vector<TimedLayout> layouts;
  for (const auto& [predicted, alike] : by_prediction) {
    TimedLayout& layout = layouts.emplace_back(TimedLayout{alike.front()->row.id, 0, predicted});
    for (const ValidatedRow* row : alike)
      layout.measured_s += *row->row.iteration_s / static_cast<double>(alike.size());
  }
  return layouts;
}

}  // namespace

ChoiceScore score_choices(const Validation& validation) {
  std::map<decltype(group_of({})), std::vector<const ValidatedRow*>> rows_of;
  for (const ValidatedRow& row : validation.rows) {
    if (row.time_error && row.row.suspect.empty()) rows_of[group_of(row.row)].push_back(&row);
  }
  ChoiceScore score;
  for (const auto& [key, rows] : rows_of) {
    const std::vector<TimedLayout> layouts = distinct(rows);
    if (layouts.size() < 2) continue;
    const profiles::LedgerRow& row = rows.front()->row;
    ChoiceGroup& group = score.groups.emplace_back();
    group.source = row.source;
    group.model = row.model.name;
    group.gpu = row.gpu;
    group.precision = name_of(row.plan.numerics.precision);
    group.release = row.version.empty() ? row.software : row.version;
    group.gpus = row.plan.gpus;
    group.seq_len = row.plan.seq_len;
    group.sequences = sequences_per_step(row.plan);
    score_group(layouts, group);
  }
  const auto n = static_cast<double>(score.groups.size());
  for (const ChoiceGroup& group : score.groups) {
    score.kendall_tau += group.kendall_tau / n;
    score.regret_mean += group.regret / n;
    score.random_regret_mean += group.random_regret / n;
    score.regret_worst = std::max(score.regret_worst, group.regret);
  }
  std::stable_sort(score.groups.begin(), score.groups.end(),
                   [](const ChoiceGroup& a, const ChoiceGroup& b) { return a.regret > b.regret; });
  return score;
}

}  // namespace shardwright::sim
