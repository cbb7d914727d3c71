// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/anchor.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "profiles/ledger/ledger_profile.h"
#include "profiles/profile.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/calibrate/group_problem.h"
#include "sim/core/base/error.h"
#include "sim/core/base/worker_pool.h"
#include "sim/core/features.h"
#include "sim/predict.h"

namespace shardwright::sim {

namespace {

using profiles::CostGroup;

constexpr double kProbe = 0.02;        // of a logarithm, for sensitivities
constexpr double kLeastShare = 0.02;   // of the direction: others stay as they are
constexpr double kCloseEnough = 1e-4;  // of the step's logarithm
constexpr int kMostRounds = 12;
constexpr double kTwoSided = 1.96;  // of 95 %

struct Direction {
  Adjustable value;
  double before = 0;
  double felt = 0;   // d log(step) / d log(value)
  double share = 0;  // of what the step changes by
};

/// The leading value of each group; of products the clocks under load, which a training shows and a
/// benchmark of kernels does not.
std::vector<Adjustable> candidates(const profiles::Profile& profile) {
  std::vector<Adjustable> all;
  for (const CostGroup group : {CostGroup::kProducts, CostGroup::kAttention, CostGroup::kMemory,
                                CostGroup::kCollectives, CostGroup::kHost}) {
    for (Adjustable value : adjustable_values(profile, group)) {
      if (value.rank != 0) continue;
      if (value.path == "cost.gemm.e") {
        value.path = "cost.gemm.sustained_factor";
        value.upper = 1.2;
      }
      all.push_back(std::move(value));
    }
  }
  return all;
}

class Anchoring {
 public:
  Anchoring(const Model& model, const profiles::Profile& base, const Plan& plan)
      : model_(model), base_(base), plan_(plan) {}

  double log_step(const profiles::Profile& profile) const {
    PredictOptions options;
    options.reserved = false;
    return std::log(predict(model_, profile, plan_, options).time.iteration_s);
  }

  /// What each value does to the step, without those that do next to nothing.
  std::vector<Direction> directions() const {
    const double here = log_step(base_);
    std::vector<Direction> found;
    double sum = 0;
    for (const Adjustable& value : candidates(base_)) {
      EditableProfile moved(base_);
      double* const number = moved.find(value.path);
      if (number == nullptr || !(*number > 0)) continue;
      const double before = *number;
      // Towards smaller values, which no bound of a rate forbids.
      *number = before * std::exp(-kProbe);
      const double felt = (here - log_step(moved.profile())) / kProbe;
      const double weight = value.spread * value.spread * felt * felt;
      if (!(weight > 0)) continue;
      sum += weight;
      found.push_back({value, before, felt, weight});
    }
    for (Direction& direction : found) direction.share /= sum;
    std::erase_if(found, [](const Direction& d) { return d.share < kLeastShare; });
    return found;
  }

  /// The base with every value moved by `distance` along the direction.
  profiles::Profile moved(const std::vector<Direction>& directions, double distance) const {
    EditableProfile profile(base_);
    for (const Direction& d : directions) {
      const double by = d.value.spread * d.value.spread * d.felt * distance;
      *profile.find(d.value.path) =
          std::clamp(d.before * std::exp(by), d.value.lower, std::max(d.value.upper, d.before));
    }
    return profile.profile();
  }

  /// The profile whose step comes closest to `wanted` (a logarithm).
  profiles::Profile reach(const std::vector<Direction>& directions, double wanted) const {
    double gain = 0;
    for (const Direction& d : directions) gain += std::pow(d.value.spread * d.felt, 2);
    if (!(gain > 0)) return base_;
    double distance = 0, miss = wanted - log_step(base_);
    profiles::Profile best = base_;
    double best_miss = std::abs(miss);
    for (int round = 0; round < kMostRounds && std::abs(miss) > kCloseEnough; ++round) {
      const double to = distance + miss / gain;
      profiles::Profile tried = moved(directions, to);
      const double next = wanted - log_step(tried);
      // By what the last step brought, where it brought something.
      if (const double brought = (miss - next) / (to - distance); brought > 0) gain = brought;
      distance = to;
      miss = next;
      if (std::abs(miss) >= best_miss) break;
      best_miss = std::abs(miss);
      best = std::move(tried);
    }
    return best;
  }

 private:
  const Model& model_;
  const profiles::Profile& base_;
  const Plan& plan_;
};

/// Of the logarithm of a value: what one step leaves of what was believed.
double remaining_spread(const Direction& d, double carried) {
  return d.value.spread * std::sqrt(std::max(0.0, 1 - carried * d.share));
}

GroupFit fit_of(const std::vector<Direction>& directions, EditableProfile& after, double carried) {
  GroupFit fit;
  for (const Direction& d : directions) {
    FittedValue& value = fit.values.emplace_back();
    const double wide = std::exp(kTwoSided * remaining_spread(d, carried));
    value.path = d.value.path;
    value.before = d.before;
    value.after = *after.find(d.value.path);
    value.low = std::max(d.value.lower, value.after / wide);
    value.high = std::max(value.after, std::min(d.value.upper, value.after * wide));
    value.rows = 1;
    value.determined = value.after != value.before;
  }
  return fit;
}

double half_width_of(const TimePrediction& time) {
  return std::log(time.interval_s[1] / time.interval_s[0]) / 2;
}

}  // namespace

AnchorFit anchor(const Model& model, const profiles::Profile& base, const Plan& plan,
                 double measured_s) {
  if (!(measured_s > 0) || !std::isfinite(measured_s)) {
    throw Error(fmt::format("the measured step is {} s, expected a time above 0", measured_s));
  }
  AnchorFit fit;
  fit.measured_s = measured_s;
  fit.before = predict(model, base, plan);
  const TimePrediction& time = fit.before.time;
  const double half_width = half_width_of(time);
  const double seen = std::log(measured_s / time.iteration_s);
  fit.implausible = half_width > 0 && std::abs(seen) > kImplausible * half_width;
  if (!fit.implausible) {
    fit.carried = profiles::anchored_uncertainty().carried_share(divides_replica(plan), half_width);
  }
  const Anchoring anchoring(model, base, plan);
  const std::vector<Direction> directions = anchoring.directions();
  EditableProfile after(anchoring.reach(directions, anchoring.log_step(base) + fit.carried * seen));
  fit.result.groups.push_back(fit_of(directions, after, fit.carried));
  fit.result.profile = after.profile();
  if (fit.carried > 0) fit.result.profile.anchored_models.push_back(model.name);
  fit.after = predict(model, fit.result.profile, plan);
  for (const Direction& d : directions) fit.shares.emplace_back(d.value.path, d.share);
  return fit;
}

namespace {

using profiles::LedgerRow;

profiles::Profile strangers_profile(const LedgerRow& row,
                                    const std::vector<std::string>& overrides = {}) {
  profiles::Profile profile =
      profiles::make_profile(profiles::cluster_of(row), profiles::stack_of(row), overrides);
  profiles::apply_circumstances(row, overrides, profile);
  return profile;
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
