// SPDX-License-Identifier: Apache-2.0
#include "sim/fit/ledger_model.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "profiles/ledger/ledger_profile.h"
#include "sim/core/base/invalid_plan.h"
#include "sim/core/base/worker_pool.h"

namespace shardwright::sim {
namespace {

using profiles::LedgerRow;
using profiles::StepParameter;

/// What a step at the memory limit waits for the allocator; none when the row cannot be predicted.
std::optional<double> pressure_s(const LedgerRow& row, const profiles::Profile& profile) {
  try {
    Predictor predictor(row.model, profile);
    const Prediction prediction = predictor.predict(row.plan);
    if (prediction.memory.allocator_retries == 0) return 0;
    const double alone_s = predictor.predict(row.plan, {.reserved = false}).time.iteration_s;
    return prediction.time.iteration_s - alone_s;
  } catch (const InvalidPlan&) {
    return std::nullopt;  // validate() says why
  }
}

}  // namespace

LedgerModel::LedgerModel(const std::vector<LedgerRow>& rows,
                         const std::vector<StepParameter>& parameters,
                         const std::vector<std::string>& overrides, unsigned threads)
    : rows_(&rows) {
  const profiles::GpuCosts costs = profiles::load_gpu_costs();
  std::map<profiles::MachineKey, std::size_t> machines;
  std::vector<std::string> described_by, sources;
  std::vector<std::size_t> machine_of;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto [at, is_new] = machines.try_emplace(machine_key(rows[i]), machines_.size());
    if (is_new) {
      const profiles::ClusterFile cluster = profiles::cluster_of(rows[i]);
      machines_.push_back(
          {profiles::make_profile(cluster, profiles::stack_of(rows[i]), costs, overrides), {}});
      profiles::apply_circumstances(rows[i], overrides, machines_.back().profile);
      machines_.back().profile.origins.clear();  // costly to copy, and nobody asks
      described_by.push_back(cluster.described_by);
      sources.push_back(rows[i].source);
    }
    machine_of.push_back(at->second);
  }
  std::vector<std::optional<double>> pressures(rows.size());
  for_each_index(rows.size(), threads, [&](std::size_t i) {
    if (rows[i].iteration_s && rows[i].unsupported.empty())
      pressures[i] = pressure_s(rows[i], machines_[machine_of[i]].profile);
  });
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!pressures[i] || !rows[i].suspect.empty()) continue;
    places_.push_back(i);
    machine_of_.push_back(machine_of[i]);
    pressure_s_.push_back(*pressures[i]);
  }
  std::vector<const StepParameter*> free;
  for (const StepParameter& parameter : parameters) {
    if (!is_set_by(parameter, overrides)) free.push_back(&parameter);
  }
  std::vector<std::vector<const StepParameter*>> seen;
  for (std::size_t m = 0; m < machines_.size(); ++m) {
    seen.push_back(seen_by(free, machines_[m].profile, described_by[m], sources[m]));
  }
  for (const StepParameter* parameter : free) {
    const auto sees = [&](std::size_t m) {
      return std::find(seen[m].begin(), seen[m].end(), parameter) != seen[m].end();
    };
    if (std::none_of(machine_of_.begin(), machine_of_.end(), sees)) continue;
    for (std::size_t m = 0; m < machines_.size(); ++m) {
      if (sees(m)) machines_[m].seen.push_back(parameters_.size());
    }
    parameters_.push_back(parameter);
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
  prediction.time.iteration_s += pressure_s_[row];
  prediction.time.host_s += pressure_s_[row];
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

std::vector<double> values_of(std::vector<double> logs) {
  for (double& value : logs) value = std::exp(value);
  return logs;
}

}  // namespace shardwright::sim
