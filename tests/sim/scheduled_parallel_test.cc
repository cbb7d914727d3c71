// SPDX-License-Identifier: Apache-2.0
// Steps with tensor, context and expert parallelism, low precision and adapters, written down by
// the strategies and simulated like any other: strategies act, bounds hold, and with one rank of
// every kind but data both writers of layers say the same.

#include "sim/bounds/bounds.h"
#include "sim/program/list_pass.h"
#include "sim/program/program_writer.h"
#include "tests/sim/model_parallel_plans.h"

namespace shardwright::sim {
namespace {

const profiles::Profile& compiled() {
  static const profiles::Profile profile = profiles::load_profile("dgx-h100", "torch-compile");
  return profile;
}

Model eight_layers() {
  Model model = llama_70b();
  model.layers = 8;
  return model;
}

Plan torch_plan(Strategy strategy, std::int64_t tp, std::int64_t grad_accum = 1) {
  Plan plan = plan_of(64, tp, 1, grad_accum);
  plan.strategy = strategy;
  plan.stack = "torch-compile";
  plan.seq_len = 4096;
  return plan;
}

constexpr Strategy kTold[] = {
    Strategy::kDdp,   Strategy::kZero1,       Strategy::kZero2,  Strategy::kZero3,
    Strategy::kFsdp1, Strategy::kFsdp1GradOp, Strategy::kFsdp2,  Strategy::kFsdp2NoReshard,
    Strategy::kHsdp,  Strategy::kFsdp2Hpz,    Strategy::kYafsdp, Strategy::kYafsdpZero2};

// ZeRO-1 and ZeRO-2 differ where there are several micro-batches.
TEST(ScheduledParallel, NoTwoStrategiesAreOneNumberBesideTensorParallelism) {
  Predictor predictor(eight_layers(), compiled());
  std::map<double, Strategy> found;
  for (const Strategy strategy : kTold) {
    const Prediction p = predictor.predict(torch_plan(strategy, 2, 4));
    EXPECT_EQ(predictor.program().stages.size(), 1U);
    const auto [at, is_new] = found.try_emplace(p.time.iteration_s, strategy);
    EXPECT_TRUE(is_new) << name_of(strategy) << " and " << name_of(at->second);
    for (const std::string& word : p.extrapolated)
      EXPECT_EQ(word.find("priced as those of"), std::string::npos) << word;
  }
}

TEST(ScheduledParallel, MegatronsOwnThreeStrategiesDifferBesideTensorParallelism) {
  Predictor predictor(eight_layers(), h100());
  std::set<double> found;
  for (const Strategy strategy :
       {Strategy::kDdp, Strategy::kDistributedOptimizer, Strategy::kMegatronFsdp}) {
    Plan plan = plan_of(64, 2, 1, 4);
    plan.strategy = strategy;
    found.insert(predictor.predict(plan).time.iteration_s);
    EXPECT_LE(predictor.bounds().least_s_of_family(plan).front(), *found.rbegin());
  }
  EXPECT_EQ(found.size(), 3U);
}

TEST(ScheduledParallel, PartsOfTheStepAndOfItsCommunicationAddUp) {
  Predictor predictor(eight_layers(), compiled());
  for (const Strategy strategy : kTold) {
    Plan plan = torch_plan(strategy, 4, 2);
    plan.parallel.cp = 2;
    const Prediction p = predictor.predict(plan);
    EXPECT_EQ(p.time.other_s(), 0) << name_of(strategy);
    double waited = 0, sent = 0;
    for (std::size_t group = 0; group < p.exposed_s.size(); ++group) {
      waited += p.exposed_s[group];
      sent += p.sent[group].total();
    }
    EXPECT_NEAR(waited, p.time.exposed_communication_s, 1e-9) << name_of(strategy);
    EXPECT_DOUBLE_EQ(sent, p.communication.total()) << name_of(strategy);
    EXPECT_GT(p.sent[static_cast<std::size_t>(CommGroup::kTensor)].total(), 0);
    EXPECT_GT(p.sent[static_cast<std::size_t>(CommGroup::kContext)].total(), 0);
    EXPECT_GT(p.sent[static_cast<std::size_t>(CommGroup::kData)].total(), 0);
  }
}

TEST(ScheduledParallel, TheLeastTimeIsOne) {
  Predictor predictor(eight_layers(), compiled());
  double closest = 0;
  for (const Strategy strategy : kTold) {
    for (const std::int64_t tp : {1, 2, 8}) {
      for (const Precision precision : {Precision::kBf16, Precision::kFp8}) {
        for (const std::int64_t accum : {1, 3}) {
          Plan plan = torch_plan(strategy, tp, accum);
          plan.numerics.precision = precision;
          const double least = predictor.bounds().least_s_of_family(plan).front();
          const double step = predictor.predict(plan).time.iteration_s;
          EXPECT_LE(least, step) << name_of(strategy) << " tp " << tp;
          closest = std::max(closest, least / step);
        }
      }
    }
  }
  EXPECT_GT(closest, 0.9);
}

TEST(ScheduledParallel, FewerRanksThatHoldTheSameExpertsSendLess) {
  Model model = shipped("mixtral-8x7b");
  model.layers = 4;
  Predictor predictor(model, compiled());
  double before = 0;
  for (const std::int64_t ep : {1, 2, 8}) {
    Plan plan = torch_plan(Strategy::kFsdp2, 1);
    plan.parallel.ep = ep;
    const Prediction p = predictor.predict(plan);
    const double sent = p.sent[static_cast<std::size_t>(CommGroup::kData)].total();
    if (before > 0) {
      EXPECT_LT(sent, 0.9 * before) << "ep " << ep;
    }
    before = sent;
    EXPECT_EQ(p.sent[static_cast<std::size_t>(CommGroup::kExpert)].total() > 0, ep > 1);
  }
}

TEST(ScheduledParallel, FrozenWeightsAreGatheredAndNotReduced) {
  Predictor predictor(eight_layers(), compiled());
  Plan plan = torch_plan(Strategy::kFsdp2, 2);
  const Prediction full = predictor.predict(plan);
  plan.numerics.lora = 16;
  const Prediction lora = predictor.predict(plan);
  EXPECT_GE(lora.communication.all_gather, full.communication.all_gather);
  EXPECT_LT(lora.communication.reduce_scatter -
                lora.sent[static_cast<std::size_t>(CommGroup::kTensor)].reduce_scatter,
            0.05 * full.communication.reduce_scatter);
  EXPECT_LT(lora.time.optimizer_s, 0.1 * full.time.optimizer_s);
}

// A pass waits for nothing that was not recorded before, and hands the stream of kernels on.
TEST(ListPass, EveryWaitFollowsItsRecordAndPassesBeginAndEndOnTheComputeStream) {
  Model moe = shipped("mixtral-8x7b");
  for (const bool experts : {false, true}) {
    Plan plan = torch_plan(Strategy::kFsdp2, 2);
    plan.parallel.cp = 2;
    plan.parallel.ep = experts ? 2 : 1;
    plan.recompute = Recompute::kFull;
    plan.ckpt_layers = 1;
    const Model model = experts ? moe : eight_layers();
    const LayerPrograms programs(model, plan, compiled().stack, compiled().cluster.gpu);
    const LayerKind kind = {Mixer::kAttention, experts ? Channels::kExperts : Channels::kMlp};
    for (const UnitPass* pass :
         {&programs.embedding_forward(), &programs.embedding_backward(), &programs.head_forward(),
          &programs.head_backward(), &programs.layer_forward(true, kind),
          &programs.layer_backward(true, kind)}) {
      ASSERT_FALSE(pass->ops.empty());
      EXPECT_EQ(pass->ops.front().stream, 0);
      EXPECT_EQ(pass->ops.back().stream, 0);
      EXPECT_FALSE(pass->ops.front().waits[0]);
      EXPECT_FALSE(pass->ops.back().record);
      std::set<std::uint8_t> recorded;
      for (const Op& op : pass->ops) {
        for (const EventRef& wait : op.waits)
          EXPECT_TRUE(!wait || recorded.contains(wait.name)) << name_of(op.kind);
        if (op.record) recorded.insert(op.record.name);
      }
    }
  }
}

}  // namespace
}  // namespace shardwright::sim
