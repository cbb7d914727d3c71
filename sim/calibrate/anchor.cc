// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/anchor.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "profiles/uncertainty/anchored_uncertainty.h"
#include "sim/calibrate/parameters.h"
#include "sim/core/base/error.h"
#include "sim/core/features.h"

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
  const double half_width = std::log(time.interval_s[1] / time.interval_s[0]) / 2;
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

}  // namespace shardwright::sim
