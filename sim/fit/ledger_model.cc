// SPDX-License-Identifier: Apache-2.0
#include "sim/fit/ledger_model.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "sim/core/error.h"
#include "sim/core/worker_pool.h"

namespace shardwright::sim {
namespace {

using profiles::LedgerRow;
using profiles::StepParameter;

bool is_set(const StepParameter& parameter, const std::vector<std::string>& overrides) {
  return std::any_of(overrides.begin(), overrides.end(), [&](const std::string& key_value) {
    const std::string path = key_value.substr(0, key_value.find('='));
    return std::any_of(parameter.targets.begin(), parameter.targets.end(),
                       [&](const auto& target) { return target.path == path; });
  });
}

auto machine_key(const LedgerRow& row) {
  return std::make_tuple(row.gpu, row.gpus_per_node, row.inter_gbps_per_node, row.plan.stack);
}

/// Calls of the device's allocator in a step; none when the row cannot be predicted.
std::optional<double> device_calls(const LedgerRow& row, const profiles::Profile& profile) {
  try {
    const double call_s = profile.stack.host.device_allocation_s;
    Predictor predictor(row.model, profile);
    const double alone_s = predictor.predict(row.plan, {.reserved = false}).time.iteration_s;
    if (call_s <= 0) return 0;
    return (predictor.predict(row.plan).time.iteration_s - alone_s) / call_s;
  } catch (const Error&) {
    return std::nullopt;  // validate() says why
  }
}

}  // namespace

LedgerModel::LedgerModel(const std::vector<LedgerRow>& rows,
                         const std::vector<StepParameter>& parameters,
                         const std::vector<std::string>& overrides, unsigned threads)
    : rows_(&rows) {
  const profiles::GpuCosts costs = profiles::load_gpu_costs();
  using Key = decltype(machine_key(rows.front()));
  std::map<Key, std::size_t> machines;
  std::vector<std::string> described_by;
  std::vector<std::size_t> machine_of;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto [at, is_new] = machines.try_emplace(machine_key(rows[i]), machines_.size());
    if (is_new) {
      const profiles::ClusterFile cluster = profiles::cluster_of(rows[i]);
      machines_.push_back({profiles::make_profile(cluster, profiles::load_stack(rows[i].plan.stack),
                                                  costs, overrides),
                           {}});
      machines_.back().profile.origins.clear();  // costly to copy, and nobody asks
      described_by.push_back(cluster.described_by);
    }
    machine_of.push_back(at->second);
  }
  std::vector<std::optional<double>> calls(rows.size());
  for_each_index(rows.size(), threads, [&](std::size_t i) {
    if (rows[i].iteration_s) calls[i] = device_calls(rows[i], machines_[machine_of[i]].profile);
  });
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!calls[i]) continue;
    places_.push_back(i);
    machine_of_.push_back(machine_of[i]);
    device_calls_.push_back(*calls[i]);
  }
  for (const StepParameter& parameter : parameters) {
    if (is_set(parameter, overrides)) continue;
    std::vector<bool> seen(machines_.size());
    for (std::size_t m = 0; m < machines_.size(); ++m) {
      seen[m] = profiles::sees(parameter, machines_[m].profile, described_by[m]);
    }
    if (std::none_of(machine_of_.begin(), machine_of_.end(),
                     [&](std::size_t m) { return seen[m]; })) {
      continue;
    }
    for (std::size_t m = 0; m < machines_.size(); ++m) {
      if (seen[m]) machines_[m].seen.push_back(parameters_.size());
    }
    parameters_.push_back(&parameter);
  }
}

bool LedgerModel::sees(std::size_t row, std::size_t parameter) const {
  const std::vector<std::size_t>& seen = machines_[machine_of_[row]].seen;
  return std::find(seen.begin(), seen.end(), parameter) != seen.end();
}

Prediction LedgerModel::predict(std::size_t row, const std::vector<double>& values) const {
  const Machine& machine = machines_[machine_of_[row]];
  profiles::Profile profile = machine.profile;
  std::vector<const StepParameter*> seen;
  std::vector<double> seen_values;
  for (const std::size_t j : machine.seen) {
    seen.push_back(parameters_[j]);
    seen_values.push_back(values[j]);
  }
  profiles::apply_steps(seen, seen_values, profile);
  const LedgerRow& r = this->row(row);
  Prediction prediction = sim::predict(r.model, profile, r.plan, {.reserved = false});
  const double pressure_s = device_calls_[row] * profile.stack.host.device_allocation_s;
  prediction.time.iteration_s += pressure_s;
  prediction.time.host_s += pressure_s;
  return prediction;
}

RobustProblem LedgerModel::problem(unsigned threads) const {
  RobustProblem problem;
  problem.threads = threads;
  problem.rows = size();
  for (const StepParameter* p : parameters_) {
    problem.parameters.push_back(
        {std::log(p->min), std::log(p->max), std::log(p->prior), p->prior_spread});
  }
  problem.residual = [this](std::size_t i, const std::vector<double>& x) {
    return std::log(predict(i, values_of(x)).time.iteration_s / *row(i).iteration_s);
  };
  problem.sees = [this](std::size_t i, std::size_t j) { return sees(i, j); };
  return problem;
}

std::vector<double> LedgerModel::weights() const {
  std::map<std::string, double> rows_of;
  for (std::size_t i = 0; i < size(); ++i) rows_of[row(i).source] += 1;
  std::vector<double> weights;
  double sum = 0;
  for (std::size_t i = 0; i < size(); ++i) {
    const double design_effect = 1 + (rows_of[row(i).source] - 1) * kCorrelationInSource;
    weights.push_back(1 / design_effect);
    sum += weights.back();
  }
  for (double& weight : weights) weight *= static_cast<double>(size()) / sum;
  return weights;
}

std::vector<double> logs_of(std::vector<double> values) {
  for (double& value : values) value = std::log(value);
  return values;
}

std::vector<double> values_of(std::vector<double> logs) {
  for (double& value : logs) value = std::exp(value);
  return logs;
}

}  // namespace shardwright::sim
