// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a tied embedding that two stages have: written once, read by all that hold it, at
// every layout.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "exec/train/checkpoint.h"
#include "exec/train/safetensors.h"
#include "exec/train/train_state.h"
#include "tests/exec/train_fixture.h"
#include "tests/support/files.h"

namespace shardwright::exec {
namespace {

namespace fs = std::filesystem;
using namespace testing;
using shardwright::testing::get;

struct StageLayout {
  const char* name;
  Strategy strategy;
  PipelineKind kind;
  std::int64_t tp, pp, virtual_stages, dp;
};
constexpr StageLayout kStageLayouts[] = {
    {"pp2", Strategy::kYafsdp, PipelineKind::kOneForwardOneBackward, 1, 2, 1, 1},
    {"pp4-dp2", Strategy::kZero1, PipelineKind::kZb1p, 1, 4, 1, 2},
    {"pp2-v2-dp2", Strategy::kFsdp2, PipelineKind::kInterleaved, 1, 2, 2, 2},
    {"tp2-zbv", Strategy::kZero3, PipelineKind::kZbv, 2, 2, 2, 1},
    {"dp2", Strategy::kYafsdp, PipelineKind::kOneForwardOneBackward, 1, 1, 1, 2},
    {"one", Strategy::kSingle, PipelineKind::kOneForwardOneBackward, 1, 1, 1, 1}};

/// Four micro-batches a step, sums of two leaves, the uses apart. Layouts with replicas have other
/// sums over micro-batches than those without.
Plan plan_of_stages(const StageLayout& layout) {
  Plan plan = tiny_plan(layout.strategy, layout.tp * layout.pp * layout.dp, 4 / layout.dp);
  plan.parallel.tp = layout.tp;
  plan.parallel.pp = layout.pp;
  plan.parallel.virtual_stages = layout.virtual_stages;
  if (layout.pp > 1) plan.parallel.pp_schedule = layout.kind;
  plan.sum_features = 2;
  plan.sum_uses = 2;
  return plan;
}

class TiedCheckpoints : public TrainFixture {
 protected:
  void SetUp() override {
    TrainFixture::SetUp();
    model_ = divisible(tied(tiny_llama()));
    model_.layers = 4;
    model_.vocab = 100;
    options_.lr.total_steps = 4;
    options_.config = config_of(model_);
  }

  /// The last checkpoint of a run that begins at `from`'s second step.
  fs::path resumed(const StageLayout& from, const StageLayout& to) {
    const Checkpoint second(saved(from.name, 2));
    TrainOptions options = options_;
    options.resume = &second;
    const std::string name = fmt::format("{}-at-{}", from.name, to.name);
    run(name, plan_of_stages(to), options);
    return saved(name, 4);
  }
};

TEST_F(TiedCheckpoints, GoOnAtEveryLayout) {
  for (const StageLayout& layout : kStageLayouts)
    run(layout.name, plan_of_stages(layout), options_);
  for (const StageLayout& from : kStageLayouts) {
    for (const StageLayout& to : kStageLayouts) {
      if (&from == &to || (from.dp > 1) != (to.dp > 1)) continue;
      SCOPED_TRACE(fmt::format("{} at {}", from.name, to.name));
      expect_same_state(saved(from.name, 4), saved(to.name, 4));
      expect_same_state(saved(to.name, 4), resumed(from, to));
    }
  }
}

TEST_F(TiedCheckpoints, HoldTheTableOnceAndMakeOneModel) {
  std::string first;
  for (const StageLayout& layout : kStageLayouts) {
    if (layout.dp > 1) continue;
    SCOPED_TRACE(layout.name);
    run(layout.name, plan_of_stages(layout), options_);
    const Checkpoint checkpoint(saved(layout.name, 4));
    std::int64_t elements = 0;
    for (const CheckpointFile& file : checkpoint.manifest().files) {
      const SafetensorsFile opened(saved(layout.name, 4) / file.name);
      for (const StoredTensor& stored : opened.tensors()) {
        if (stored.spec.name.starts_with("parameter:model.embed_tokens.weight:"))
          elements += stored.spec.elements();
      }
    }
    EXPECT_EQ(elements, model_.vocab * model_.hidden);
    const fs::path folder = folder_ / fmt::format("{}-model", layout.name);
    export_model(checkpoint, folder, std::int64_t{1} << 30);
    const std::string bytes = get(folder / "model.safetensors");
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first);
    const SafetensorsModel model(folder);
    EXPECT_EQ(model.find("lm_head.weight"), nullptr);
    // What is read from it trains alike.
    TrainOptions options = options_;
    options.weights = &model;
    options.weights_name = folder.string();
    options.lr.total_steps = 1;
    options.lr.warmup_steps = 0;
    const std::string name = fmt::format("{}-loaded", layout.name);
    run(name, plan_of_stages(layout), options);
    expect_same_state(saved(fmt::format("{}-loaded", kStageLayouts[0].name), 1), saved(name, 1));
  }
}

}  // namespace
}  // namespace shardwright::exec
