// SPDX-License-Identifier: Apache-2.0
#include "tuner/search/simulator.h"

#include "sim/memory/reserved.h"

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

const sim::FamilyBounds& Simulator::bounds(const Plan& plan, std::uint64_t family) {
  const auto [at, is_new] = families_.try_emplace(family);
  if (is_new) at->second = predictor().bounds().family(plan);
  return at->second;
}

double Simulator::least_step_s(const Plan& plan, std::uint64_t family) {
  if (plan.parallel.pp > 1) return predictor().bounds().least_pipeline_s(plan);
  return bounds(plan, family).least_s[static_cast<std::size_t>(plan.ckpt_layers)];
}

Bytes Simulator::least_bytes(const Plan& plan, std::uint64_t family) {
  if (plan.parallel.pp > 1) return least_bytes_or_too_many(plan);
  return bounds(plan, family).least_bytes[static_cast<std::size_t>(plan.ckpt_layers)];
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

}  // namespace shardwright::tuner
