// SPDX-License-Identifier: Apache-2.0
#include "tuner/search/evaluator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "sim/core/base/check.h"
#include "sim/memory/memory.h"

namespace shardwright::tuner {

Simulator::Simulator(const Model& model, const profiles::Profile& profile,
                     std::unique_ptr<sim::Predictor> predictor)
    : model_(model), profile_(profile), predictor_(std::move(predictor)) {}

sim::Predictor& Simulator::predictor() {
  if (!predictor_) predictor_ = std::make_unique<sim::Predictor>(model_, profile_);
  return *predictor_;
}

sim::Prediction Simulator::predict(const Plan& plan, const sim::PredictOptions& options) {
  return predictor().predict(plan, options);
}

double Simulator::least_step_s(const Plan& plan, std::uint64_t family) {
  if (plan.parallel.pp > 1) return predictor().bounds().least_pipeline_s(plan);
  const auto [at, is_new] = families_.try_emplace(family);
  if (is_new) at->second = predictor().bounds().least_s_of_family(plan);
  return at->second[static_cast<std::size_t>(plan.ckpt_layers)];
}

Bytes Simulator::least_bytes(const Plan& plan) {
  return predictor().bounds().least_bytes(plan);
}

Bytes Simulator::least_bytes_or_too_many(const Plan& plan) {
  return predictor().bounds().least_bytes_or_too_many(plan);
}

bool Simulator::knows_bytes(const Plan& plan) const {
  return sim::knows_reserved(plan, profile_.stack);
}

std::unique_ptr<sim::Predictor> SimulatorPool::take(const std::string& physics) {
  const std::lock_guard lock(mutex_);
  std::vector<std::unique_ptr<sim::Predictor>>& free = at_rest_[physics];
  if (free.empty()) return nullptr;
  std::unique_ptr<sim::Predictor> predictor = std::move(free.back());
  free.pop_back();
  return predictor;
}

void SimulatorPool::give_back(const std::string& physics,
                              std::unique_ptr<sim::Predictor> predictor) {
  if (!predictor) return;
  const std::lock_guard lock(mutex_);
  at_rest_[physics].push_back(std::move(predictor));
}

namespace {

Bytes scaled(Bytes bytes, double factor) {
  return factor == 1 ? bytes : static_cast<Bytes>(std::ceil(static_cast<double>(bytes) * factor));
}

}  // namespace

Evaluator::Evaluator(const Model& model, const std::vector<Scenario>& scenarios,
                     const Criteria& criteria, SimulatorPool* pool, const SearchEnd* end)
    : scenarios_(scenarios), criteria_(criteria), pool_(pool), end_(end) {
  SHARDWRIGHT_CHECK(!scenarios.empty(), "no scenario to judge plans in");
  for (const Scenario& scenario : scenarios) {
    const bool shares = pool != nullptr && !scenario.physics.empty();
    simulators_.emplace_back(model, scenario.profile,
                             shares ? pool->take(scenario.physics) : nullptr);
  }
}

Evaluator::~Evaluator() {
  if (pool_ == nullptr) return;
  for (std::size_t s = 0; s < simulators_.size(); ++s) {
    if (!scenarios_[s].physics.empty())
      pool_->give_back(scenarios_[s].physics, simulators_[s].give_up());
  }
}

double Evaluator::score(std::size_t scenario, const Plan& plan, double step_s,
                        Bytes total_bytes) const {
  return score_of(criteria_.objective, plan, step_s, total_bytes,
                  scenarios_[scenario].profile.cluster.usd_per_gpu_hour);
}

Bytes Evaluator::allowed_bytes(std::size_t scenario, std::int64_t ranks) const {
  const Bytes usable = scenarios_[scenario].profile.cluster.memory_bytes_per_rank(ranks);
  return static_cast<Bytes>(std::floor(static_cast<double>(usable) * (1 - criteria_.headroom)));
}

double Evaluator::least_score(const Plan& plan, std::uint64_t family) {
  if (criteria_.objective == Objective::kHeadroom)
    return static_cast<double>(least_memory_or_too_much(plan).bytes);
  check_end();
  double worst = 0;
  for (std::size_t s = 0; s < scenarios_.size(); ++s)
    worst = std::max(worst, score(s, plan, simulators_[s].least_step_s(plan, family), 0));
  return worst;
}

/// `least_bytes(s)`: what is certain in scenario s.
template <typename LeastBytes>
Evaluator::LeastMemory Evaluator::worst_memory(const Plan& plan,
                                               const LeastBytes& least_bytes) const {
  check_end();
  LeastMemory least{0, std::numeric_limits<Bytes>::min()};
  for (std::size_t s = 0; s < scenarios_.size(); ++s) {
    const Bytes total = scaled(least_bytes(s), scenarios_[s].memory_factor);
    if (s == 0) least.bytes = total;
    least.excess_bytes = std::max(least.excess_bytes, total - allowed_bytes(s, plan.gpus));
  }
  return least;
}

Evaluator::LeastMemory Evaluator::least_memory_or_too_much(const Plan& plan) {
  return worst_memory(plan,
                      [&](std::size_t s) { return simulators_[s].least_bytes_or_too_many(plan); });
}

Evaluator::LeastMemory Evaluator::least_memory(const Plan& plan) {
  return worst_memory(plan, [&](std::size_t s) { return simulators_[s].least_bytes(plan); });
}

double Evaluator::simulate(const Plan& plan) {
  check_end();
  double worst = 0;
  for (std::size_t s = 0; s < scenarios_.size(); ++s) {
    const sim::Prediction p = simulators_[s].predict(plan, {.reserved = false});
    const Bytes total = scaled(p.memory.total_bytes, scenarios_[s].memory_factor);
    worst = std::max(worst, score(s, plan, p.time.iteration_s, total));
  }
  return worst;
}

Judgement Evaluator::judge(const Plan& plan) {
  if (end_ != nullptr) end_->check_given_up();
  return judge(plan, false);
}

Judgement Evaluator::judge_whether_fits(const Plan& plan) {
  check_end();
  return judge(plan, true);
}

Judgement Evaluator::judge(const Plan& plan, bool gives_up) {
  Judgement judgement;
  judgement.excess_bytes = std::numeric_limits<Bytes>::min();
  for (std::size_t s = 0; s < scenarios_.size(); ++s) {
    sim::PredictOptions options;
    if (gives_up && scenarios_[s].memory_factor >= 1)
      options.most_bytes = allowed_bytes(s, plan.gpus);
    sim::Prediction p = simulators_[s].predict(plan, options);
    if (p.memory.given_up) {
      judgement.fits = judgement.complete = false;
      return judgement;
    }
    const Bytes total = scaled(p.memory.total_bytes, scenarios_[s].memory_factor);
    const Bytes excess = total - allowed_bytes(s, plan.gpus);
    judgement.excess_bytes = std::max(judgement.excess_bytes, excess);
    judgement.fits = judgement.fits && excess <= 0 && p.memory.fits;
    judgement.thrashes = judgement.thrashes || p.memory.allocator_retries > 0;
    judgement.score = std::max(judgement.score, score(s, plan, p.time.iteration_s, total));
    if (s == 0) judgement.prediction = std::move(p);
  }
  judgement.thrashes = judgement.thrashes && judgement.fits;
  judgement.fits = judgement.fits && !judgement.thrashes;
  return judgement;
}

}  // namespace shardwright::tuner
