// SPDX-License-Identifier: Apache-2.0
// Every strategy's schedule: bytes against the volume formulas, memory that returns to where it
// began, and the monotonies a planner relies on.

#include <array>

#include "sim/memory/memory.h"
#include "tests/sim/prediction.h"

namespace shardwright::sim {
namespace {

constexpr std::array kStacks = {"native", "hf-eager", "torch-eager", "torch-compile", "mpt-eager"};

std::vector<Strategy> strategies_of(const std::string& stack) {
  std::vector<Strategy> strategies = all_strategies();
  const Stack loaded = profiles::load_stack(stack).stack;
  std::erase_if(strategies, [&](Strategy s) { return !has_schedule(s, loaded); });
  return strategies;
}

Plan small_plan(Strategy strategy, const std::string& stack, std::int64_t gpus) {
  Plan plan;
  plan.strategy = strategy;
  plan.stack = stack;
  plan.gpus = strategy == Strategy::kSingle ? 1 : gpus;
  plan.seq_len = 2048;
  plan.recompute = Recompute::kNone;
  return plan;
}

Predictor predictor_of(const std::string& model, const std::string& stack,
                       const std::vector<std::string>& sets = {}) {
  return Predictor(shipped(model), profiles::load_profile("a100-80g-4xhdr200", stack, sets));
}

TEST(Strategies, MemoryReturnsToWhereTheStepBegan) {
  for (const char* model : {"llama-2-7b", "qwen2.5-0.5b"}) {
    for (const char* stack : kStacks) {
      for (Strategy strategy : strategies_of(stack)) {
        for (std::int64_t accumulation : {1, 2, 5}) {
          Plan plan = small_plan(strategy, stack, 16);
          plan.grad_accum = accumulation;
          plan.ckpt_layers = 3;
          plan.recompute = Recompute::kFull;
          const auto profile = profiles::load_profile("a100-80g-4xhdr200", stack);
          const Schedule schedule =
              executed_step(shipped(model), plan, profile.stack, 8).stages.front();
          const AllocatedPeak peak = allocated_peak(schedule);
          EXPECT_EQ(peak.start_bytes, peak.end_bytes)
              << model << " " << stack << " " << name_of(strategy) << " accumulation "
              << accumulation;
          EXPECT_GE(peak.level.bytes, peak.start_bytes);
        }
      }
    }
  }
}

TEST(Strategies, OneRankHasNoCommunication) {
  for (const char* stack : {"native", "hf-eager"}) {
    Predictor predictor = predictor_of("llama-3.2-1b", stack);
    for (Strategy strategy : strategies_of(stack)) {
      const Prediction p = predictor.predict(small_plan(strategy, stack, 1), {.reserved = false});
      EXPECT_EQ(
          p.communication.all_gather + p.communication.reduce_scatter + p.communication.all_reduce,
          0)
          << name_of(strategy);
      EXPECT_EQ(p.time.exposed_communication_s, 0) << name_of(strategy);
    }
  }
}

// Volumes per step and rank, with P parameters and r = (N-1)/N (YaFSDP README, ZeRO and FSDP
// papers): gathers in bf16, reductions in fp32.
TEST(Strategies, BytesFollowTheVolumeFormulas) {
  const Model model = shipped("llama-2-7b");
  const ParameterCounts counts = count_parameters(model);
  const double parameters = static_cast<double>(counts.total(model.layers));
  const double norms = static_cast<double>(model.layers * counts.layer_norms + counts.final_norm);
  const double r = 63.0 / 64.0;
  const double layer =
      static_cast<double>(counts.layer()) - static_cast<double>(counts.layer_norms);
  const double head = static_cast<double>(counts.head);
  struct Volumes {
    Strategy strategy;
    double gathered, reduced, all_reduced;  // bytes before the factor r
  };
  const std::array cases = {
      Volumes{Strategy::kDdp, 0, 0, 8 * parameters},
      Volumes{Strategy::kZero1, 2 * parameters, 4 * parameters, 0},
      Volumes{Strategy::kZero2, 2 * parameters, 4 * parameters, 0},
      Volumes{Strategy::kZero3, 4 * parameters, 4 * parameters, 0},
      Volumes{Strategy::kFsdp1, 4 * parameters, 4 * parameters, 0},
      Volumes{Strategy::kFsdp1GradOp, 2 * parameters, 4 * parameters, 0},
      Volumes{Strategy::kFsdp2, 4 * parameters, 4 * parameters, 0},
      Volumes{Strategy::kFsdp2NoReshard, 2 * parameters, 4 * parameters, 0},
      // The last layer and the head still hold their buffers, and norms are gathered once.
      Volumes{Strategy::kYafsdp, 4 * parameters - 2 * (layer + head) - 2 * norms, 4 * parameters,
              0},
      Volumes{Strategy::kYafsdpZero2, 2 * parameters, 4 * parameters, 0},
  };
  Predictor predictor = predictor_of("llama-2-7b", "hf-eager");
  for (const Volumes& c : cases) {
    const CommunicationBytes bytes =
        predictor.predict(small_plan(c.strategy, "hf-eager", 64), {.reserved = false})
            .communication;
    EXPECT_NEAR(bytes.all_gather, c.gathered * r, 1e-4 * parameters) << name_of(c.strategy);
    EXPECT_NEAR(bytes.reduce_scatter, c.reduced * r, 1e-4 * parameters) << name_of(c.strategy);
    EXPECT_NEAR(bytes.all_reduce, c.all_reduced * r, 1e-4 * parameters) << name_of(c.strategy);
  }
}

TEST(Strategies, HybridShardingAllReducesTheShards) {
  const Model model = shipped("llama-2-7b");
  const double parameters = static_cast<double>(count_parameters(model).total(model.layers));
  Predictor predictor = predictor_of("llama-2-7b", "torch-eager");
  Plan plan = small_plan(Strategy::kHsdp, "torch-eager", 64);
  plan.shard_group = 8;
  const CommunicationBytes bytes = predictor.predict(plan, {.reserved = false}).communication;
  EXPECT_NEAR(bytes.reduce_scatter, 4 * parameters * 7 / 8, 1e-3 * parameters);
  EXPECT_NEAR(bytes.all_reduce, 2 * 4 * parameters / 8 * 7 / 8, 1e-3 * parameters);
}

// hpZ (ZeRO++, section 3.2): forward gathers over all ranks, backward inside the node; what
// backward gathers from is held from forward to backward.
TEST(Strategies, ASecondShardKeepsBackwardGathersInsideTheNode) {
  const Model model = shipped("llama-2-7b");
  const ParameterCounts counts = count_parameters(model);
  const double parameters = static_cast<double>(counts.total(model.layers));
  // Embedding and head are the root, which keeps its parameters.
  const double root = static_cast<double>(counts.embedding + counts.head + counts.final_norm);
  Predictor predictor = predictor_of("llama-2-7b", "hf-eager");
  const auto predicted = [&](Strategy strategy) {
    return predictor.predict(small_plan(strategy, "hf-eager", 64), {.reserved = false});
  };
  const Prediction plain = predicted(Strategy::kFsdp2), hpz = predicted(Strategy::kFsdp2Hpz);
  const bool wraps = profiles::load_stack("hf-eager").stack.wraps_embedding_and_head;
  const double again = 2 * (wraps ? parameters : parameters - root);
  EXPECT_NEAR(plain.communication.all_gather, (2 * parameters + again) * 63 / 64,
              1e-4 * parameters);
  EXPECT_NEAR(hpz.communication.all_gather, 2 * parameters * 63 / 64 + again * 7 / 8,
              1e-4 * parameters);
  EXPECT_EQ(hpz.communication.reduce_scatter, plain.communication.reduce_scatter);
  EXPECT_LT(hpz.time.exposed_communication_s, plain.time.exposed_communication_s);
  // The peak comes at the end of forward, or after some of the shards have been given back.
  const double more =
      static_cast<double>(hpz.memory.peak_allocated_bytes - plain.memory.peak_allocated_bytes);
  EXPECT_GT(more, 0.8 * again / 8);
  EXPECT_LT(more, 1.01 * again / 8);
}

TEST(Strategies, ANativeStackRefusesWhatItHasNoScheduleOf) {
  const Stack native = profiles::load_stack("native").stack;
  for (const Strategy strategy : all_strategies()) {
    const Plan plan = small_plan(strategy, "native", 16);
    if (has_schedule(strategy, native)) {
      EXPECT_NO_THROW(executed_step(shipped("llama-3.2-1b"), plan, native, 8)) << name_of(strategy);
      continue;
    }
    EXPECT_THAT(refusal_of([&] { executed_step(shipped("llama-3.2-1b"), plan, native, 8); }),
                HasSubstr(std::string(name_of(strategy))));
  }
}

TEST(Strategies, TimeNeverFallsWhenTheNetworkGetsSlower) {
  for (Strategy strategy : strategies_of("hf-eager")) {
    double before = 0;
    for (const char* efficiency : {"1", "0.8", "0.5", "0.25", "0.1"}) {
      Predictor predictor = predictor_of("llama-2-7b", "hf-eager",
                                         {std::string("cluster.nic_efficiency=") + efficiency});
      const double time =
          predictor.predict(small_plan(strategy, "hf-eager", 32), {.reserved = false})
              .time.iteration_s;
      // Equal-priority kernels may change places when a collective ends later; that moves a step by
      // less than one kernel a layer.
      EXPECT_GE(time, before * 0.995) << name_of(strategy) << " at " << efficiency;
      before = time;
    }
  }
}

TEST(Strategies, MemoryNeverGrowsWithMoreShards) {
  for (const char* stack : {"native", "hf-eager", "torch-eager"}) {
    Predictor predictor = predictor_of("llama-2-13b", stack);
    for (Strategy strategy : strategies_of(stack)) {
      if (strategy == Strategy::kSingle || strategy == Strategy::kHsdp) continue;
      Bytes before = std::numeric_limits<Bytes>::max();
      for (std::int64_t gpus : {8, 16, 64, 256, 1024}) {
        const Bytes peak = predictor.predict(small_plan(strategy, stack, gpus), {.reserved = false})
                               .memory.peak_allocated_bytes;
        // Padding to the group adds at most some rows a matrix.
        EXPECT_LE(static_cast<double>(peak), static_cast<double>(before) * 1.005)
            << stack << " " << name_of(strategy) << " " << gpus;
        before = peak;
      }
    }
  }
}

TEST(Strategies, MoreCheckpointedLayersNeverRaiseTheActivationPeak) {
  for (const char* stack : kStacks) {
    Predictor predictor = predictor_of("llama-2-7b", stack);
    for (Strategy strategy :
         {Strategy::kYafsdp, Strategy::kFsdp1, Strategy::kFsdp2, Strategy::kZero2}) {
      for (Recompute recompute : {Recompute::kFull, Recompute::kSelectiveOp}) {
        Bytes before = std::numeric_limits<Bytes>::max();
        for (std::int64_t k = 0; k <= 32; k += 4) {
          Plan plan = small_plan(strategy, stack, 64);
          plan.ckpt_layers = k;
          plan.recompute = k == 0 ? Recompute::kNone : recompute;
          const Bytes peak =
              predictor.predict(plan, {.reserved = false}).memory.peak_allocated_bytes;
          EXPECT_LE(peak, before) << stack << " " << name_of(strategy) << " k " << k;
          before = peak;
        }
      }
    }
  }
}

TEST(Strategies, CheckpointingCostsTimeAndSavesMemory) {
  Predictor predictor = predictor_of("llama-2-7b", "hf-eager");
  Plan plan = small_plan(Strategy::kYafsdp, "hf-eager", 64);
  plan.seq_len = 8192;
  const Prediction none = predictor.predict(plan);
  plan.recompute = Recompute::kFull;
  plan.ckpt_layers = 32;
  const Prediction all = predictor.predict(plan);
  EXPECT_GT(all.time.iteration_s, none.time.iteration_s * 1.1);
  EXPECT_LT(all.memory.peak_allocated_bytes, none.memory.peak_allocated_bytes / 2);
  EXPECT_NEAR(all.time.mfu * all.time.iteration_s, none.time.mfu * none.time.iteration_s, 1e-9);
  EXPECT_GT(all.time.hfu * all.time.iteration_s, none.time.hfu * none.time.iteration_s * 1.2);
}

TEST(Strategies, ManyMicroStepsReserveWhatFewDo) {
  Predictor predictor = predictor_of("llama-3.2-1b", "hf-eager");
  Plan plan = small_plan(Strategy::kFsdp1, "hf-eager", 16);
  plan.grad_accum = 4;
  const Prediction few = predictor.predict(plan);
  plan.grad_accum = 64;
  const Prediction many = predictor.predict(plan);
  EXPECT_EQ(many.memory.peak_reserved_bytes, few.memory.peak_reserved_bytes);
  EXPECT_EQ(many.memory.peak_allocated_bytes, few.memory.peak_allocated_bytes);
  EXPECT_GT(many.time.iteration_s, few.time.iteration_s * 10);
}

}  // namespace
}  // namespace shardwright::sim
