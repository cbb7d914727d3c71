// SPDX-License-Identifier: Apache-2.0
// The closed form against what it stands for, the event simulation, never above, and the least
// memory against the simulation's, to the byte; on plans of every strategy, stack and kind of
// cluster.

#include "sim/bounds/bounds.h"
#include "tests/sim/prediction.h"
#include "tests/support/parameter_name.h"

namespace shardwright::sim {
namespace {

std::string in_words(const Plan& plan) {
  return plan.stack + " " + std::string(name_of(plan.strategy)) + " gpus " +
         std::to_string(plan.gpus) + " micro-batch " + std::to_string(plan.micro_batch) +
         " accum " + std::to_string(plan.grad_accum) + " recompute " + recompute_name(plan) +
         " k " + std::to_string(plan.ckpt_layers) + " stride " + std::to_string(plan.ckpt_stride) +
         " buffers " + std::to_string(plan.buffers);
}

class RandomPlans {
 public:
  explicit RandomPlans(unsigned seed) : random_(seed) {}

  template <class T>
  T pick(std::vector<T> values) {
    return values[random_() % values.size()];
  }
  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(end));
  }
  Plan plan(const Stack& stack, const Cluster& cluster, std::int64_t layers) {
    Plan plan;
    plan.stack = stack.id;
    do {
      plan.strategy = static_cast<Strategy>(below(kStrategyCount));
    } while (!has_schedule(plan.strategy, stack));
    plan.gpus = pick<std::int64_t>({1, 2, 8, 16, 64, 512});
    if (cluster.nics_per_node == 0) plan.gpus = std::min(plan.gpus, cluster.gpus_per_node);
    if (plan.strategy == Strategy::kSingle) plan.gpus = 1;
    if (plan.strategy == Strategy::kHsdp && plan.gpus >= 64)
      plan.shard_group = pick<std::int64_t>({0, 4, 8, 16, 32});
    plan.seq_len = pick<std::int64_t>({512, 2048, 4096});
    plan.micro_batch = 1 + below(4);
    plan.grad_accum = pick<std::int64_t>({1, 1, 2, 3, 4, 8, 20});
    set_recompute(
        plan, pick<std::string>({"none", "full", "selective-op", "norm", "swiglu", "norm,swiglu",
                                 "ffn", "attention", "norm,attention", "block"}));
    plan.ckpt_stride = pick<std::int64_t>({1, 1, 1, 2, 3});
    if (plan.recompute != Recompute::kNone) plan.ckpt_layers = below(layers / plan.ckpt_stride + 1);
    plan.reduce_dtype = pick<DType>({DType::kFp32, DType::kBf16});
    plan.moment_dtype = pick<DType>({DType::kFp32, DType::kBf16});
    plan.param_dtype = pick<DType>({DType::kBf16, DType::kBf16, DType::kFp32});
    plan.buffers = pick<int>({2, 2, 3, 5});
    plan.attention =
        pick<AttentionKind>({AttentionKind::kFlash, AttentionKind::kFlash, AttentionKind::kEager});
    plan.offload = pick<Offload>({Offload::kNone, Offload::kNone, Offload::kOptimizer});
    return plan;
  }

 private:
  std::mt19937 random_;
};

/// Checks `trials` random plans and returns by how much the bound falls short of the simulation.
std::vector<double> check_random_plans(unsigned seed, int trials, const char* stack,
                                       const char* cluster, Model model) {
  RandomPlans random(seed);
  const profiles::Profile profile = profiles::load_profile(cluster, stack);
  std::vector<double> gaps;
  for (int shape = 0; shape < 4; ++shape) {
    model.layers = 5 + random.below(36);
    Predictor predictor(model, profile);
    for (int trial = 0; trial < trials; ++trial) {
      const Plan plan = random.plan(profile.stack, profile.cluster, model.layers);
      Prediction simulated;
      try {
        simulated = predictor.predict(plan, {.reserved = false});
      } catch (const Error&) {
        continue;  // not a plan for this cluster
      }
      const std::vector<double> least_s = predictor.bounds().least_s_of_family(plan);
      const auto k = static_cast<std::size_t>(plan.ckpt_layers);
      EXPECT_EQ(predictor.bounds().least_bytes(plan), simulated.memory.total_bytes)
          << in_words(plan);
      const double bound_s = least_s.at(k);
      EXPECT_LE(bound_s, simulated.time.iteration_s) << in_words(plan);
      gaps.push_back(1 - bound_s / simulated.time.iteration_s);
    }
  }
  std::sort(gaps.begin(), gaps.end());
  return gaps;
}

struct Case {
  const char* stack;
  const char* cluster;
  const char* model;
  double median_gap;  // by how much the bound of half of the plans may fall short
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.stack << " on " << c.cluster << ", " << c.model;
}

class ClosedFormCase : public ::testing::TestWithParam<Case> {};

TEST_P(ClosedFormCase, MemoryIsExactAndTimeIsALowerBound) {
  const Case& c = GetParam();
  const std::vector<double> gaps = check_random_plans(7, 60, c.stack, c.cluster, shipped(c.model));
  ASSERT_GT(gaps.size(), 60U);
  // Tight enough to prune with: half of all plans within a few percent.
  EXPECT_LT(gaps[gaps.size() / 2], c.median_gap);
}

INSTANTIATE_TEST_SUITE_P(Stacks, ClosedFormCase,
                         ::testing::Values(Case{"native", "a100-80g-4xhdr200", "llama-2-70b", 0.02},
                                           Case{"native", "dgx-h100", "llama-3-8b", 0.04},
                                           Case{"native", "l40s-pcie8", "gemma-2-2b", 0.05},
                                           Case{"hf-eager", "a100-80g-4xhdr200", "llama-2-34b",
                                                0.04},
                                           Case{"torch-eager", "dgx-h100", "llama-3-8b", 0.04},
                                           Case{"torch-compile", "p4d", "qwen2.5-7b", 0.05},
                                           Case{"mpt-eager", "dgx-a100-80g", "mpt-7b", 0.06},
                                           Case{"hf-eager", "l40s-pcie8", "gpt2-medium", 0.40}),
                         parameter_name);

TEST(ClosedForm, CoversEveryLengthOfTheCheckpointedPrefix) {
  const Model model = shipped("llama-3-8b");
  for (const char* stack : {"native", "torch-eager"}) {
    const profiles::Profile profile = profiles::load_profile("dgx-h100", stack);
    Predictor predictor(model, profile);
    Plan plan;
    plan.stack = stack;
    plan.gpus = 16;
    plan.grad_accum = 4;
    const std::vector<double> least_s = predictor.bounds().least_s_of_family(plan);
    ASSERT_EQ(least_s.size(), static_cast<std::size_t>(model.layers) + 1);
    for (plan.ckpt_layers = 0; plan.ckpt_layers <= model.layers; ++plan.ckpt_layers) {
      const Prediction simulated = predictor.predict(plan, {.reserved = false});
      const auto k = static_cast<std::size_t>(plan.ckpt_layers);
      EXPECT_EQ(predictor.bounds().least_bytes(plan), simulated.memory.total_bytes)
          << in_words(plan);
      EXPECT_LE(least_s[k], simulated.time.iteration_s);
    }
  }
}

// Whatever a step of one stage is asked for beside sharding.
TEST(ClosedForm, BoundsEveryPlanOfOneStage) {
  struct Asked {
    const char *stack, *model;
  };
  for (const Asked& c :
       {Asked{"megatron-core", "mixtral-8x7b"}, Asked{"megatron-core", "llama-3-8b"},
        Asked{"torch-compile", "llama-3-8b"}, Asked{"native", "llama-3-8b"}}) {
    Model model = shipped(c.model);
    model.layers = 6;
    const profiles::Profile profile = profiles::load_profile("dgx-h100", c.stack);
    Predictor predictor(model, profile);
    RandomPlans random(11);
    int bounded = 0;
    for (int trial = 0; trial < 600; ++trial) {
      Plan plan = random.plan(profile.stack, profile.cluster, model.layers);
      if (random.below(4) > 0) set_recompute(plan, random.pick<std::string>({"none", "full"}));
      plan.ckpt_layers = plan.recompute == Recompute::kNone ? 0 : plan.ckpt_layers;
      plan.attention = AttentionKind::kFlash;
      plan.offload = Offload::kNone;
      plan.parallel.tp = random.pick<std::int64_t>({1, 2, 8});
      plan.parallel.cp = random.pick<std::int64_t>({1, 1, 2});
      plan.parallel.ep = model.is_moe() ? random.pick<std::int64_t>({1, 2, 8}) : 1;
      if (random.below(3) == 0) plan.numerics.precision = Precision::kFp8;
      if (random.below(3) == 0) plan.numerics.lora = 16;
      Prediction simulated;
      try {
        simulated = predictor.predict(plan, {.reserved = false});
      } catch (const Error&) {
        continue;  // not a plan for this framework or cluster
      }
      ++bounded;
      const std::vector<double> least_s = predictor.bounds().least_s_of_family(plan);
      const auto k = static_cast<std::size_t>(plan.ckpt_layers);
      EXPECT_EQ(predictor.bounds().least_bytes(plan), simulated.memory.total_bytes)
          << in_words(plan);
      EXPECT_LE(least_s.at(k), simulated.time.iteration_s)
          << in_words(plan) << " tp " << plan.parallel.tp << " cp " << plan.parallel.cp << " ep "
          << plan.parallel.ep << " lora " << plan.numerics.lora;
    }
    EXPECT_GT(bounded, 15) << c.stack << " " << c.model;
  }
}

TEST(ClosedForm, APlanThatRecomputesNothingIsAFamilyOfOne) {
  Plan plan;
  plan.gpus = 8;
  plan.recompute = Recompute::kNone;
  Predictor predictor(shipped("llama-3-8b"), profiles::load_profile("dgx-h100", "native"));
  Bounds& bounds = predictor.bounds();
  const std::vector<double> of_none = bounds.least_s_of_family(plan);
  EXPECT_EQ(of_none.size(), 1U);
  const Bytes with_none = bounds.least_bytes(plan);
  plan.recompute = Recompute::kFull;
  EXPECT_NEAR(bounds.least_s_of_family(plan).front(), of_none.front(), 1e-4 * of_none.front());
  EXPECT_EQ(bounds.least_bytes(plan), with_none);
}

TEST(ClosedForm, ImpossiblePlansAreErrors) {
  Plan plan;
  plan.gpus = 12;  // a node and a half
  Predictor predictor(shipped("llama-3-8b"), profiles::load_profile("dgx-h100", "native"));
  EXPECT_THROW(predictor.bounds().least_s_of_family(plan), Error);
}

}  // namespace
}  // namespace shardwright::sim
