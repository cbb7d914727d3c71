// SPDX-License-Identifier: Apache-2.0
// What a plan asks of a framework follows from values: each feature from the least that asks for
// it, none from what would happen unsaid.
#include "sim/core/features.h"

#include <functional>

#include "tests/core/common.h"

namespace shardwright {
namespace {

Plan with(const std::function<void(Plan&)>& change) {
  Plan plan;
  change(plan);
  return plan;
}

TEST(Features, DefaultsThatAreSaidAskForNothing) {
  const Plan plan = with([](Plan& p) {
    p.parallel.sp = false;
    p.parallel.cp_comm = ContextComm::kRing;
    p.parallel.tp_overlap = TensorOverlap::kNone;
    p.parallel.cuda_graphs = CudaGraphs::kNone;
    p.parallel.ep_overlap = false;
    p.parallel.pp_schedule = PipelineKind::kOneForwardOneBackward;
    p.offload = Offload::kOptimizer;
  });
  EXPECT_FALSE(features_of(plan).any());
  EXPECT_FALSE(divides_replica(plan));
  EXPECT_EQ(beyond(plan, {}), "");
}

struct Asking {
  Feature feature;
  std::function<void(Plan&)> change;
  const char* words;
};

TEST(Features, AreNamedByTheSettingThatAsks) {
  const std::vector<Asking> all = {
      {Feature::kTensor, [](Plan& p) { p.parallel.tp = 3; }, "tp is 3"},
      {Feature::kPipeline, [](Plan& p) { p.parallel.pp = 5; }, "pp is 5"},
      {Feature::kPipeline, [](Plan& p) { p.parallel.pp_layout = "Et*2L"; }, "pp_layout is Et*2L"},
      {Feature::kContext, [](Plan& p) { p.parallel.cp = 2; }, "cp is 2"},
      {Feature::kExpert, [](Plan& p) { p.parallel.etp = 2; }, "etp is 2"},
      {Feature::kAdapters, [](Plan& p) { p.numerics.lora = 7; }, "lora is 7"},
      {Feature::kPrecision, [](Plan& p) { p.numerics.precision = Precision::kFp8; },
       "precision is fp8"},
      {Feature::kOptimizer, [](Plan& p) { p.numerics.optimizer = Optimizer::kMuon; },
       "optimizer is muon"},
      {Feature::kActivationOffload, [](Plan& p) { p.offload = Offload::kActivations; },
       "offload is activations"},
      {Feature::kBucketedStrategy, [](Plan& p) { p.strategy = Strategy::kMegatronFsdp; },
       "strategy is megatron-fsdp"},
      {Feature::kCudaGraphs, [](Plan& p) { p.parallel.cuda_graphs = CudaGraphs::kStep; },
       "cuda_graphs is step"},
      {Feature::kExpertChoices, [](Plan& p) { p.parallel.dispatcher = Dispatcher::kDeepEp; },
       "dispatcher is deepep"},
  };
  for (const Asking& one : all) {
    const Plan plan = with(one.change);
    EXPECT_TRUE(features_of(plan).has(one.feature)) << one.words;
    EXPECT_FALSE(features_of(plan).without({one.feature}).any()) << one.words;
    EXPECT_EQ(beyond(plan, {}), one.words);
    EXPECT_EQ(beyond(plan, {one.feature}), "");
    EXPECT_THROW(refuse_beyond(plan, {}, "nobody can", "less"), Error) << one.words;
  }
}

TEST(Features, FewBitsBesideGroupsAreAFeatureOfTheirOwn) {
  const Plan plan = with([](Plan& p) {
    p.numerics.precision = Precision::kFp8;
    p.parallel.pp = 2;
  });
  EXPECT_EQ(beyond(plan, {Feature::kPrecision, Feature::kPipeline}),
            "precision is fp8 and pp is 2");
}

TEST(Features, EveryWordNamesOne) {
  ASSERT_EQ(feature_words().size(), static_cast<std::size_t>(kFeatures));
  for (int i = 0; i < kFeatures; ++i)
    EXPECT_TRUE(features_named({feature_words()[static_cast<std::size_t>(i)]})
                    .has(static_cast<Feature>(i)));
}

}  // namespace
}  // namespace shardwright
