// SPDX-License-Identifier: Apache-2.0
#include "tuner/search/simulator.h"

#include "sim/core/features.h"
#include "sim/cost/scale.h"

namespace shardwright::tuner {

bool has_closed_form(const Plan& plan, const Model& model, const Stack& stack) {
  return !stack.optimizer.bucketed && model.is_plain() && !features_of(plan).any();
}

Simulator::Simulator(const Model& model, const profiles::Profile& profile, Predictors predictors)
    : model_(model), profile_(profile), predictors_(std::move(predictors)) {}

sim::Predictor& Simulator::predictor() {
  if (!predictors_.predictor)
    predictors_.predictor = std::make_unique<sim::Predictor>(model_, profile_);
  return *predictors_.predictor;
}

sim::Prediction Simulator::predict(const Plan& plan, const sim::PredictOptions& options) {
  return predictor().predict(plan, options);
}

sim::ClosedForm& Simulator::closed() {
  if (!predictors_.closed) predictors_.closed = std::make_unique<sim::ClosedForm>(model_, profile_);
  return *predictors_.closed;
}

const sim::FamilyBounds& Simulator::bounds(const Plan& plan, std::uint64_t family) {
  const auto [at, is_new] = families_.try_emplace(family);
  if (is_new) at->second = closed().family(plan);
  return at->second;
}

double Simulator::least_step_s(const Plan& plan, std::uint64_t family) {
  if (!has_closed_form(plan, model_, profile_.stack)) return predictor().least_s(plan);
  const sim::FamilyBounds& known = bounds(plan, family);
  return static_cast<double>(known.step_ns[static_cast<std::size_t>(plan.ckpt_layers)]) * 1e-9 *
         sim::scale_factor(profile_, plan);
}

Bytes Simulator::least_bytes(const Plan& plan, std::uint64_t family) {
  if (!has_closed_form(plan, model_, profile_.stack))
    return predictor().parallel_memory_bytes(plan);
  const sim::FamilyBounds& known = bounds(plan, family);
  return known.allocated_bytes[static_cast<std::size_t>(plan.ckpt_layers)] +
         profile_.cluster.gpu.runtime_bytes;
}

Bytes Simulator::least_bytes(const Plan& plan) {
  if (!has_closed_form(plan, model_, profile_.stack))
    return predictor().parallel_memory_bytes(plan);
  return closed().allocated_bytes(plan) + profile_.cluster.gpu.runtime_bytes;
}

bool Simulator::knows_bytes(const Plan& plan) const {
  return sim::knows_reserved(plan, profile_.stack);
}

}  // namespace shardwright::tuner
