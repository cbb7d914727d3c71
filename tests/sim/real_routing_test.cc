// SPDX-License-Identifier: Apache-2.0
// What uneven experts cost in time and memory.

#include <memory>

#include "sim/explain/explain.h"
#include "sim/program/expert_program.h"
#include "tests/sim/prediction.h"

namespace shardwright::sim {
namespace {

class RealRouting : public ::testing::Test {
 protected:
  RealRouting() {
    plan_.strategy = Strategy::kDistributedOptimizer;
    plan_.gpus = 8;
    plan_.seq_len = 1024;
    plan_.recompute = Recompute::kNone;
    plan_.stack = "megatron-core";
  }

  Prediction predicted(const Model& m) const { return predict(m, profile_, plan_); }
  void choose(Routing routing) { plan_.parallel.expert_load = ExpertLoad{routing, {}, {}}; }

  profiles::Profile profile_ = profiles::load_profile("dgx-h100", "megatron-core");
  Plan plan_;
  const Model lite_ = shipped("deepseek-v2-lite");
};

TEST_F(RealRouting, UnevenExpertsCostTimeAndMemoryAndAreWhatIsAssumed) {
  plan_.parallel.ep = 8;
  plan_.seq_len = 4096;
  const Prediction assumed = predicted(lite_);
  choose(Routing::kBalanced);
  const Prediction balanced = predicted(lite_);
  choose(Routing::kReal);
  const Prediction real = predicted(lite_);
  choose(Routing::kUnaided);
  const Prediction unaided = predicted(lite_);
  EXPECT_EQ(assumed.time.iteration_s, real.time.iteration_s);
  EXPECT_GT(real.time.iteration_s, 1.01 * balanced.time.iteration_s);
  EXPECT_GT(unaided.time.iteration_s, real.time.iteration_s);
  EXPECT_GT(real.memory.total_bytes, balanced.memory.total_bytes);
  EXPECT_EQ(balanced.sent[static_cast<std::size_t>(CommGroup::kExpert)].total(),
            real.sent[static_cast<std::size_t>(CommGroup::kExpert)].total())
      << "a rank sends what its own tokens chose";

  Predictor predictor(lite_, profile_);
  const std::optional<RoutingPrice> price = routing_price(predictor, unaided);
  ASSERT_TRUE(price);
  EXPECT_EQ(price->balanced_s, balanced.time.iteration_s);
  EXPECT_EQ(price->balanced_bytes, balanced.memory.total_bytes);
  EXPECT_GT(price->busiest.of_layer, price->busiest.of_layers);
  EXPECT_FALSE(routing_price(predictor, balanced));
}

TEST_F(RealRouting, MeasuredLoadsMustBeOfTheModelsExpertsAndLayers) {
  plan_.parallel.ep = 8;
  ExpertLoad load{Routing::kMeasured, "loads.json", nullptr};
  std::vector<double> rows(64, 1.0);
  rows[0] = 9;  // the first rank's eight experts have 16 of 72
  load.layers = std::make_shared<const ExpertLoad::Layers>(1, rows);
  plan_.parallel.expert_load = load;
  EXPECT_DOUBLE_EQ(busiest_of(lite_, plan_, profile_.stack).of_layer, 16.0 * 8 / 72);
  const auto problem = [&](std::size_t layers, std::size_t experts) {
    load.layers =
        std::make_shared<const ExpertLoad::Layers>(layers, std::vector<double>(experts, 1.0));
    plan_.parallel.expert_load = load;
    return refusal_of([&] { predicted(lite_); });
  };
  EXPECT_THAT(problem(1, 8), HasSubstr("rows of 8 experts, expected the 64"));
  const auto layers = static_cast<std::size_t>(lite_.expert_layers());
  EXPECT_EQ(problem(layers, 64), "accepted");
  EXPECT_THAT(problem(layers - 1, 64), HasSubstr(" layers, expected one or the "));
}

}  // namespace
}  // namespace shardwright::sim
