// SPDX-License-Identifier: Apache-2.0
#include "sim/doubt/conformal.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

namespace shardwright::sim {
namespace {

using profiles::ErrorGroup;
using profiles::HeldOutRun;
using profiles::Regime;
using profiles::Uncertainty;

struct Pool {
  std::string words;
  std::vector<double> errors;
};

double worst(const std::vector<double>& errors) {
  return errors.empty() ? 0 : *std::max_element(errors.begin(), errors.end());
}

/// Quantile of the mean of the sources' distributions: a source drawn at random, then a run of it.
double over_sources(const std::vector<HeldOutRun>& runs, double level) {
  std::map<std::string, double> runs_of;
  for (const HeldOutRun& run : runs) runs_of[run.source] += 1;
  std::vector<std::pair<double, double>> errors;  // and their shares
  for (const HeldOutRun& run : runs) {
    errors.emplace_back(std::abs(run.log_error_source_out),
                        1 / (runs_of[run.source] * static_cast<double>(runs_of.size())));
  }
  std::sort(errors.begin(), errors.end());
  double share = 0;
  for (const auto& [error, own_share] : errors) {
    share += own_share;
    if (share >= level - 1e-12) return error;
  }
  return errors.empty() ? 0 : errors.back().first;
}

}  // namespace

std::optional<double> conformal_half_width(std::vector<double> errors, double level) {
  const double n = static_cast<double>(errors.size());
  // (n + 1) level may be a whole number that rounding lifts.
  const double rank = std::ceil((n + 1) * level - 1e-9);
  if (rank > n || rank < 1) return std::nullopt;
  const auto at = errors.begin() + static_cast<std::ptrdiff_t>(rank) - 1;
  std::nth_element(errors.begin(), at, errors.end());
  return *at;
}

Regime regime_of(const Uncertainty& uncertainty, double exposed_share) {
  return exposed_share >= uncertainty.regime_boundary ? Regime::kCommunicationBound
                                                      : Regime::kComputeBound;
}

Uncertainty fit_uncertainty(const std::vector<HeldOutRun>& runs, double level,
                            double regime_boundary) {
  Uncertainty result;
  result.level = level;
  result.regime_boundary = regime_boundary;
  std::set<std::string> stacks, sources;
  for (const HeldOutRun& run : runs) {
    stacks.insert(run.stack);
    sources.insert(run.source);
  }
  const auto errors_where = [&](const auto& belongs) {
    std::vector<double> errors;
    for (const HeldOutRun& run : runs) {
      if (belongs(run)) errors.push_back(std::abs(run.log_error));
    }
    return errors;
  };
  for (const std::string& stack : stacks) {
    for (const Regime regime : {Regime::kComputeBound, Regime::kCommunicationBound}) {
      const auto of_stack = [&](const HeldOutRun& run) { return run.stack == stack; };
      const auto of_regime = [&](const HeldOutRun& run) {
        return regime_of(result, run.exposed_share) == regime;
      };
      const std::vector<Pool> pools = {
          {"this stack and regime",
           errors_where([&](const HeldOutRun& run) { return of_stack(run) && of_regime(run); })},
          {"this stack", errors_where(of_stack)},
          {"this regime", errors_where(of_regime)},
          {"all", errors_where([](const HeldOutRun&) { return true; })}};
      ErrorGroup group{stack, regime, static_cast<std::int64_t>(pools[0].errors.size()), "", 0, 0};
      std::optional<double> width;
      std::size_t pool = 0;
      while (!(width = conformal_half_width(pools[pool].errors, level)) &&
             pool + 1 < pools.size()) {
        ++pool;
      }
      group.pool = pools[pool].words;
      group.pool_n = static_cast<std::int64_t>(pools[pool].errors.size());
      group.half_width = width.value_or(worst(pools[pool].errors));
      if (pool > 0) {
        // Too few runs for a quantile still say how wrong the model can be on this stack.
        group.half_width = std::max(group.half_width, worst(pools[pool > 1 ? 1 : 0].errors));
      }
      result.groups.push_back(std::move(group));
    }
  }
  result.elsewhere_sources = static_cast<std::int64_t>(sources.size());
  result.elsewhere_half_width = over_sources(runs, level);
  return result;
}

double half_width(const Uncertainty& uncertainty, std::string_view stack, bool seen_on_gpu,
                  double exposed_share) {
  const Regime regime = regime_of(uncertainty, exposed_share);
  for (const ErrorGroup& group : uncertainty.groups) {
    if (group.stack != stack || group.regime != regime) continue;
    return seen_on_gpu ? group.half_width
                       : std::max(group.half_width, uncertainty.elsewhere_half_width);
  }
  return uncertainty.elsewhere_half_width;
}

std::array<double, 2> interval_around(double time_s, double half_width) {
  return {time_s * std::exp(-half_width), time_s * std::exp(half_width)};
}

}  // namespace shardwright::sim
