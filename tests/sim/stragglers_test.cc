// SPDX-License-Identifier: Apache-2.0
// Several ranks joined by their collectives: identical ranks are one rank, variation only costs
// time.
#include "sim/engine/stragglers.h"

#include <gtest/gtest.h>

#include "profiles/data_dir.h"
#include "profiles/profile.h"
#include "sim/core/hf/config.h"
#include "sim/cost/cost.h"
#include "sim/pipeline/step_program.h"
#include "sim/strategies/lower.h"

namespace shardwright::sim {
namespace {

struct Lowered {
  Schedule schedule;
  std::vector<OpCost> costs;
};

Lowered lowered(Strategy strategy) {
  const Model model = load_model(profiles::data_dir() / "models", "llama-3.2-1b");
  const auto profile = profiles::load_profile("a100-80g-4xhdr200", "hf-eager");
  Plan plan;
  plan.strategy = strategy;
  plan.gpus = 32;
  plan.seq_len = 2048;
  plan.recompute = Recompute::kNone;
  plan.stack = "hf-eager";
  Lowered out;
  out.schedule = executed_step(model, plan, profile.stack, 8).stages.front();
  CostModel(profile).cost(out.schedule, out.costs);
  return out;
}

TEST(Stragglers, IdenticalRanksAreOneRank) {
  for (Strategy strategy :
       {Strategy::kYafsdp, Strategy::kFsdp1, Strategy::kFsdp2, Strategy::kZero2}) {
    const Lowered step = lowered(strategy);
    const StepTime alone = Engine().run(step.schedule, step.costs);
    const StragglerResult together =
        simulate_stragglers(step.schedule, step.costs, {.ranks = 3, .kernel_spread = 0});
    EXPECT_TRUE(together.settled);
    EXPECT_EQ(together.slowest.step_ns, alone.step_ns) << name_of(strategy);
    EXPECT_EQ(together.waiting_ns, 0);
  }
}

TEST(Stragglers, VariationCostsTimeAndIsReproducible) {
  const Lowered step = lowered(Strategy::kYafsdp);
  const StepTime alone = Engine().run(step.schedule, step.costs);
  const StragglerOptions options{.ranks = 6, .kernel_spread = 0.05, .seed = 7};
  const StragglerResult varied = simulate_stragglers(step.schedule, step.costs, options);
  EXPECT_TRUE(varied.settled);
  EXPECT_GT(varied.slowest.step_ns, alone.step_ns);
  EXPECT_LT(varied.slowest.step_ns, alone.step_ns * 5 / 4);
  EXPECT_GT(varied.waiting_ns, 0);
  const StragglerResult again = simulate_stragglers(step.schedule, step.costs, options);
  EXPECT_EQ(varied.slowest.step_ns, again.slowest.step_ns);
  EXPECT_EQ(varied.waiting_ns, again.waiting_ns);
}

// Streams that have a processor each do not take turns here either.
TEST(Stragglers, RunOnTheDeviceThatTheyAreOf) {
  const Lowered step = lowered(Strategy::kFsdp2);
  EngineOptions device;
  device.independent_streams = true;
  const StepTime alone = Engine().run(step.schedule, step.costs, device);
  ASSERT_NE(alone.step_ns, Engine().run(step.schedule, step.costs).step_ns);
  const StragglerResult together = simulate_stragglers(
      step.schedule, step.costs, {.ranks = 2, .kernel_spread = 0, .engine = device});
  EXPECT_EQ(together.slowest.step_ns, alone.step_ns);
  EXPECT_EQ(together.exposed_ns, alone.exposed_ns);
}

TEST(Stragglers, WaitOnlyForTheRanksOfTheirGroup) {
  const Lowered step = lowered(Strategy::kFsdp2);
  const auto waiting = [&](int pass_ranks) {
    return simulate_stragglers(
               step.schedule, step.costs,
               {.ranks = 4, .pass_ranks = pass_ranks, .kernel_spread = 0.05, .seed = 3})
        .waiting_ns;
  };
  EXPECT_EQ(waiting(4), 0) << "no layer communicates, and nobody else is at a rank's place";
  EXPECT_GT(waiting(2), 0);
  EXPECT_GT(waiting(1), waiting(2));
  EXPECT_EQ(waiting(1), waiting(0));
}

TEST(Stragglers, WaitingIsExposed) {
  const Lowered step = lowered(Strategy::kYafsdp);
  const auto exposed = [&](double spread) {
    Nanoseconds sum = 0;
    for (const Nanoseconds of_group :
         simulate_stragglers(step.schedule, step.costs, {.ranks = 4, .kernel_spread = spread})
             .exposed_ns)
      sum += of_group;
    return sum;
  };
  EXPECT_GT(exposed(0.05), exposed(0));
}

}  // namespace
}  // namespace shardwright::sim
