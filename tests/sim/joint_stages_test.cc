// SPDX-License-Identifier: Apache-2.0
// Pipelines whose kernels vary: without variation the plain step to the nanosecond, with more of it
// never faster in the mean.
#include "sim/pipeline/joint_stages.h"

#include "sim/cost/cost.h"
#include "sim/engine/stragglers.h"
#include "sim/explain/explain.h"
#include "sim/pipeline/pipeline_step.h"
#include "tests/sim/model_parallel_plans.h"

namespace shardwright::sim {

namespace {

std::vector<Plan> plans() {
  Plan sharded = plan_of(16, 2, 2, 4);
  sharded.strategy = Strategy::kFsdp2;
  sharded.stack = "torch-eager";
  Plan hidden = scheduled(PipelineKind::kInterleaved, 5);
  hidden.parallel.tp_overlap = TensorOverlap::kUserbuffers;
  Plan context = plan_of(64, 2, 4, 8);
  context.parallel.cp = 2;
  std::vector<Plan> all = {sharded, hidden, context, plan_of(2, 1, 2, 3)};
  for (const auto& [kind, chunks] :
       std::vector<std::pair<PipelineKind, int>>{{PipelineKind::kGpipe, 1},
                                                 {PipelineKind::kOneForwardOneBackward, 1},
                                                 {PipelineKind::kInterleaved, 5},
                                                 {PipelineKind::kZb1p, 1},
                                                 {PipelineKind::kZbv, 2},
                                                 {PipelineKind::kDualpipe, 2}})
    all.push_back(scheduled(kind, chunks));
  return all;
}

/// A simulator with its programs; profiles by the plan's stack.
struct Simulated {
  explicit Simulated(const Plan& p, const std::string& name = "")
      : model(name.empty() ? llama_70b() : shipped(name)),
        profile(profiles::load_profile("dgx-h100", p.stack)),
        programs(model, profile.stack, profile.cluster.gpu),
        simulator(model, profile, programs),
        plan(p) {}

  double plain_s() { return simulator.run(plan).step_s; }
  double varied_s(JointOptions options) {
    JointStages joint(options);
    const double step_s = simulator.run_varied(plan, joint).step_s;
    waiting_ns = joint.waiting_ns();
    bubble_longer_ns = joint.bubble_longer_ns();
    return step_s;
  }

  Model model;
  profiles::Profile profile;
  ProgramCache programs;
  PipelineSimulator simulator;
  Plan plan;
  Nanoseconds waiting_ns = 0, bubble_longer_ns = 0;
};

TEST(PipelineJitter, WithoutVariationTheStepIsThePlainOneToTheNanosecond) {
  for (const Plan& plan : plans()) {
    SCOPED_TRACE(std::string(name_of(plan.parallel.schedule())) + " of " +
                 std::to_string(plan.gpus));
    Simulated of(plan);
    JointOptions options = joint_options(plan);
    options.kernel_spread = 0;
    EXPECT_EQ(of.varied_s(options), of.plain_s());
    EXPECT_EQ(of.waiting_ns, 0);
    EXPECT_EQ(of.bubble_longer_ns, 0);
  }
}

TEST(PipelineJitter, ExpertsWithoutVariationAreThePlainStepToo) {
  Plan plan = plan_of(32, 2, 2, 8);
  plan.parallel.ep = 8;
  Simulated of(plan, "mixtral-8x7b");
  JointOptions options = joint_options(plan);
  EXPECT_EQ(options.pass_ranks, 8);
  EXPECT_EQ(options.replicas, 2);
  options.kernel_spread = 0;
  EXPECT_EQ(of.varied_s(options), of.plain_s());
}

TEST(PipelineJitter, MoreVariationIsNeverFasterInTheMean) {
  for (const Plan& plan : plans()) {
    SCOPED_TRACE(std::string(name_of(plan.parallel.schedule())) + " of " +
                 std::to_string(plan.gpus));
    // One rank a stage is as often faster as slower, but for what neighbours wait.
    if (plan.gpus == plan.parallel.pp) continue;
    Simulated of(plan);
    double before = of.plain_s();
    for (const double spread : {0.01, 0.03, 0.1}) {
      constexpr int kSeeds = 6;
      double mean = 0;
      for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
        JointOptions options = joint_options(plan);
        options.kernel_spread = spread;
        options.seed = seed;
        mean += of.varied_s(options) / kSeeds;
      }
      EXPECT_GT(mean, before) << spread;
      before = mean;
    }
    EXPECT_LT(before, 2 * of.plain_s());
  }
}

TEST(PipelineJitter, IsReproducibleAndOtherSeedsDiffer) {
  const Plan plan = plan_of(32, 2, 4, 8);
  Simulated of(plan);
  JointOptions options = joint_options(plan);
  options.seed = 7;
  const double once = of.varied_s(options);
  EXPECT_EQ(of.varied_s(options), once);
  EXPECT_EQ(Simulated(plan).varied_s(options), once);
  options.seed = 8;
  EXPECT_NE(of.varied_s(options), once);
}

// The reduction of gradients waits for the slowest of the replicas, layers for that of their ranks.
TEST(PipelineJitter, MoreRanksThatMeetAreSlower) {
  const Plan plan = plan_of(64, 2, 4, 8);
  Simulated of(plan);
  const auto mean = [&](int pass_ranks, int replicas) {
    constexpr int kSeeds = 6;
    double sum = 0;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      sum += of.varied_s({.pass_ranks = pass_ranks,
                          .replicas = replicas,
                          .kernel_spread = 0.04,
                          .seed = seed}) /
             kSeeds;
    }
    return sum;
  };
  const double one = mean(1, 1);
  EXPECT_EQ(of.waiting_ns, 0) << "one rank of a stage has nobody to wait for";
  EXPECT_GT(mean(1, 8), one);
  EXPECT_GT(of.waiting_ns, 0);
  EXPECT_GT(mean(8, 1), one);
  EXPECT_GT(of.waiting_ns, 0);
}

// The event engine, which joins ranks by iteration, is the reference of the walk.
TEST(PipelineJitter, RanksOfAPassMeetAsInTheEngine) {
  Plan plan = plan_of(16, 4, 2, 4);
  plan.stack = "torch-eager";
  plan.strategy = Strategy::kFsdp2;
  const Model model = shipped("llama-3.2-1b");
  const profiles::Profile profile = profiles::load_profile("dgx-h100", plan.stack);
  ProgramCache programs(model, profile.stack, profile.cluster.gpu);
  const std::vector<ChunkContent> parts = partition_layers(model, plan, profile.stack);
  TimedChunk chunk;
  lower_chunk(model, plan, profile.stack, profile.cluster, programs.at(plan), parts.front(),
              chunk.schedule);
  ChunkTimer timer(profile);
  timer.time(chunk, false);
  const PassGraph graph(chunk.schedule, timer.pass_operations(chunk, ChunkSection::kForward));
  Schedule one = chunk.schedule;
  Section pass = one.sections[static_cast<std::size_t>(ChunkSection::kForward)];
  pass.repeats = 1;
  one.sections = {pass};
  for (OpCost& cost : chunk.costs) cost.host_ns = 0;
  const Nanoseconds alone = Engine().run(one, chunk.costs).step_ns;
  double by_engine = 0, by_graph = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const StragglerOptions options{.ranks = 4, .kernel_spread = 0.05, .seed = seed};
    const StragglerResult joined = simulate_stragglers(one, chunk.costs, options);
    ASSERT_TRUE(joined.settled);
    by_engine += static_cast<double>(joined.slowest.step_ns - alone);
    std::vector<RankDraws> ranks;
    for (std::uint64_t r = 0; r < 4; ++r) ranks.emplace_back(0.05, seed, r);
    by_graph += static_cast<double>(graph.run(ranks, 0).longer_ns);
  }
  EXPECT_GT(by_engine, 0);
  EXPECT_NEAR(by_graph, by_engine, 0.1 * by_engine);
}

TEST(PipelineJitter, IsToldOfAPrediction) {
  const Plan plan = plan_of(32, 2, 4, 8);
  Predictor predictor(llama_70b(), h100());
  const Prediction prediction = predictor.predict(plan);
  const Jitter none = jitter_of(predictor, prediction, 0);
  EXPECT_EQ(none.slowdown, 0);
  EXPECT_EQ(none.iteration_s, prediction.time.iteration_s);
  const Jitter some = jitter_of(predictor, prediction, 0.03);
  EXPECT_EQ(some.ranks, 2 * 4 * 4);
  EXPECT_GT(some.slowdown, 0);
  EXPECT_GT(some.waiting_s, 0);
  EXPECT_GT(some.bubble_s, 0);
}

TEST(PipelineJitter, FewerGapsThanWithoutItAreNoNegativeTime) {
  Predictor predictor(llama_70b(), h100());
  for (const std::int64_t pp : {2, 8}) {
    const Prediction prediction = predictor.predict(plan_of(16, 1, pp, 8));
    EXPECT_GE(jitter_of(predictor, prediction, 0.1).bubble_s, 0) << pp;
  }
}

}  // namespace

// Several ranks joined by their collectives: identical ranks are one rank, variation only costs
// time.

namespace {

struct Lowered {
  Schedule schedule;
  std::vector<OpCost> costs;
};

Lowered lowered(Strategy strategy) {
  const Model model = shipped("llama-3.2-1b");
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
