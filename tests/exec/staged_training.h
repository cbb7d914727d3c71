// SPDX-License-Identifier: Apache-2.0
// Trainings in tensor ranks x stages x replicas, and the same without tensor ranks and stages.
#pragma once

#include <fmt/core.h>

#include <string>

#include "tests/exec/training.h"

namespace shardwright::exec::testing {

struct StagedLayout {
  PipelineKind kind = PipelineKind::kOneForwardOneBackward;
  std::int64_t tp = 1, pp = 2, virtual_stages = 1, dp = 1, accum = 4;
};

inline std::string words_of(const StagedLayout& layout) {
  return fmt::format("{} tp {} pp {} v {} dp {} accum {}", name_of(layout.kind), layout.tp,
                     layout.pp, layout.virtual_stages, layout.dp, layout.accum);
}

inline void PrintTo(const StagedLayout& layout, std::ostream* out) {
  *out << words_of(layout);
}

inline Plan staged_plan(Strategy strategy, const StagedLayout& layout) {
  Plan plan = tiny_plan(strategy, layout.tp * layout.pp * layout.dp, layout.accum);
  plan.parallel.tp = layout.tp;
  plan.parallel.pp = layout.pp;
  plan.parallel.virtual_stages = layout.virtual_stages;
  if (layout.pp > 1) plan.parallel.pp_schedule = layout.kind;
  return plan;
}

/// Six layers of the model; where it is `tied` its embedding is its head.
inline Training staged(const Model& model, Strategy strategy, const StagedLayout& layout,
                       bool tied) {
  Training training;
  training.model = model;
  training.model.layers = 6;
  training.model.tied_head = tied;
  training.plan = staged_plan(strategy, layout);
  training.steps = 2;
  training.options.poison = true;
  return training;
}

/// Replicas of one rank each that sum their micro-batches and then add up, with the same shape of
/// sums.
inline Training without_parts(Training training) {
  Plan& plan = training.plan;
  const RankMesh mesh(plan, 1);
  plan.sum_features = plan.feature_parts();
  if (training.model.tied_head) plan.sum_uses = plan.use_parts();
  plan.gpus = mesh.dp;
  plan.parallel = {};
  plan.shard_group = 0;
  plan.strategy = mesh.dp > 1 ? Strategy::kDdp : Strategy::kSingle;
  training.mode = StreamMode::kInline;
  training.options = {};
  return training;
}

inline void expect_as_without_parts(const Training& training) {
  const auto expected = train(without_parts(training));
  ASSERT_GT(expected.back().result.gradient_norm, 0);
  expect_same_training(expected, train(training));
}

}  // namespace shardwright::exec::testing
