// SPDX-License-Identifier: Apache-2.0
#include "exec/train/replicas.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/exec/train_fixture.h"

namespace shardwright::exec {
namespace {

using namespace testing;
using ::testing::HasSubstr;

class Replicas : public TrainFixture {
 protected:
  /// What a training says in which, after `step`, one value of a tensor is another on `rank`.
  std::string said_of(const Plan& plan, std::int64_t rank, const std::string& tensor,
                      std::int64_t step = 3) const {
    TrainOptions options = options_;
    options.compare_every = compare_every_;
    static thread_local Executor* mine = nullptr;
    options.prepare = [](Executor& executor, const Batch&) { mine = &executor; };
    options.annotate = [=](const StepMetrics& metrics) {
      if (metrics.step != step || mine->world().rank() != rank) return;
      for (const OwnedState& state : mine->owned_state()) {
        if (mine->layout().tensor(state.tensor).name != tensor) continue;
        std::vector<float> values = mine->read(state.parameter);
        values.back() = std::nextafter(values.back(), 10.0f);
        mine->write(values, state.parameter);
      }
    };
    try {
      run("run", plan, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  static Plan of(Strategy strategy, std::int64_t ranks, std::int64_t tp = 1, std::int64_t pp = 1) {
    Plan plan = tiny_plan(strategy, ranks, pp > 1 ? 4 : 1);
    plan.parallel.tp = tp;
    plan.parallel.pp = pp;
    return plan;
  }

  std::int64_t compare_every_ = 1;
};

TEST_F(Replicas, OneThatDiffersEndsTheRunWithItsRankAndTensor) {
  EXPECT_EQ(said_of(of(Strategy::kDdp, 3), 2, "model.norm.weight"),
            "after step 3 model.norm.weight differs between rank 2 and ranks 0, 1, which must hold "
            "the same: a processor, a memory or a link has failed; go on from a checkpoint");
  Plan hsdp = of(Strategy::kHsdp, 4);
  hsdp.shard_group = 2;
  EXPECT_THAT(said_of(hsdp, 0, "model.embed_tokens.weight"),
              HasSubstr("model.embed_tokens.weight differs between rank 0 and rank 2,"));
}

TEST_F(Replicas, WhatTensorRanksAndTiedStagesShareIsCompared) {
  model_ = divisible(model_);
  EXPECT_THAT(said_of(of(Strategy::kDdp, 2, 2), 1, "model.norm.weight"),
              HasSubstr("after step 3 model.norm.weight differs between rank "));
  model_.tied_head = true;
  EXPECT_THAT(said_of(of(Strategy::kDdp, 2, 1, 2), 1, "model.embed_tokens.weight"),
              HasSubstr("model.embed_tokens.weight differs between rank "));
  // Of a matrix each tensor rank has its own part.
  model_.tied_head = false;
  EXPECT_EQ(said_of(of(Strategy::kYafsdp, 2, 2), 1, "model.layers.0.mlp.down_proj.weight"), "");
}

TEST_F(Replicas, AreComparedBeforeACheckpointIsWritten) {
  compare_every_ = 0;
  options_.save_every = 4;
  EXPECT_THAT(said_of(of(Strategy::kDdp, 2), 1, "model.norm.weight", 4), HasSubstr("after step 4"));
  EXPECT_FALSE(std::filesystem::exists(saved("run", 4)));
  options_.saves = false;
  EXPECT_EQ(said_of(of(Strategy::kDdp, 2), 1, "model.norm.weight", 4), "");
}

}  // namespace
}  // namespace shardwright::exec
