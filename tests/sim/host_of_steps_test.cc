// SPDX-License-Identifier: Apache-2.0
// What the host needs to issue a layer, which of it graphs take away, and which of host and device
// a step waits for.

#include "sim/program/program_writer.h"
#include "tests/sim/prediction.h"
#include "tests/sim/timed_list.h"

namespace shardwright::sim {
namespace {

class HostOfSteps : public ::testing::Test {
 protected:
  HostOfSteps() {
    plan_.strategy = Strategy::kDistributedOptimizer;
    plan_.gpus = 8;
    plan_.seq_len = 1024;
    plan_.recompute = Recompute::kNone;
    plan_.stack = "megatron-core";
  }

  Ops forward(const Model& m) const {
    return ProgramWriter(m, plan_, profile_.stack).layer(false, m.kind(m.layers - 1)).forward;
  }
  double issued_s(const Ops& ops, CudaGraphs graphs = CudaGraphs::kNone) const {
    return timed_list(profile_, plan_, ops, graphs).host_s;
  }
  Prediction predicted(const Model& m) const { return predict(m, profile_, plan_); }

  profiles::Profile profile_ = profiles::load_profile("dgx-h100", "megatron-core");
  Plan plan_;
  const Model lite_ = shipped("deepseek-v2-lite");
};

TEST_F(HostOfSteps, EachModuleOfALayerCostsItsPython) {
  const Model dense = shipped("llama-3-8b");
  const Ops layer = forward(dense);
  const Ops backward = ProgramWriter(dense, plan_, profile_.stack).layer(false).backward;
  const double before = issued_s(layer), before_backward = issued_s(backward);
  profile_.stack.parallel.module_forward_s += 1e-3;
  // QKV, RoPE, attention, its output, FC1, activation, FC2.
  EXPECT_NEAR(issued_s(layer) - before, 7e-3, 1e-8);
  EXPECT_NEAR(issued_s(backward) - before_backward, 0, 1e-8);
  profile_.stack.parallel.module_backward_s += 1e-3;
  EXPECT_NEAR(issued_s(backward) - before_backward, 7e-3, 1e-8) << "weight gradients cost none";
  plan_.parallel.tp = 2;
  const Ops divided = forward(dense);
  const double launched = issued_s(divided);
  profile_.stack.parallel.module_forward_s += 1e-3;
  EXPECT_NEAR(issued_s(divided) - launched, 7e-3, 1e-8) << "modules gather and reduce themselves";
}

TEST_F(HostOfSteps, GraphsOfAttentionAndRouterTakeAwayWhatGraphsOfLayersDo) {
  plan_.parallel.ep = 8;
  const Ops layer = forward(lite_);
  profile_.stack.parallel.graph_launch_s = 0;
  const double all = issued_s(layer);
  const double of_attention = all - issued_s(layer, CudaGraphs::kAttention);
  const double of_router = all - issued_s(layer, CudaGraphs::kRouter);
  const double of_layers = all - issued_s(layer, CudaGraphs::kLayers);
  EXPECT_GT(of_attention, 0);
  EXPECT_GT(of_router, 0);
  EXPECT_LT(of_layers, all) << "rows of a number that only the device knows";
  EXPECT_NEAR(of_attention + of_router, of_layers, 1e-12);
  EXPECT_EQ(issued_s(layer, CudaGraphs::kStep), 0);
}

TEST_F(HostOfSteps, SmallMicroBatchesAreTheHostsAndLargeOnesTheDevices) {
  plan_.parallel.tp = 2;
  plan_.parallel.ep = 8;
  const HostShare small = predicted(lite_).host;
  EXPECT_EQ(small.regime(), HostRegime::kHost);
  EXPECT_GT(small.crossing_tokens(1024), 1024);
  EXPECT_GT(small.waited_s, 0);
  plan_.micro_batch = 64;
  const HostShare large = predicted(lite_).host;
  EXPECT_EQ(large.regime(), HostRegime::kDevice);
  EXPECT_LT(large.crossing_tokens(64 * 1024), 64 * 1024);
  EXPECT_NEAR(large.issues_s, small.issues_s, 0.01 * small.issues_s) << "the same operations";
}

TEST_F(HostOfSteps, AStepIsBoundByWhatItSpendsMostOn) {
  const Model dense = shipped("llama-3-8b");
  plan_.seq_len = 8192;
  EXPECT_EQ(predicted(dense).regime, StepRegime::kCompute);
  plan_.parallel.pp = 2;
  plan_.grad_accum = 8;
  EXPECT_EQ(predicted(dense).regime, StepRegime::kCompute) << "of a stage";
  plan_.parallel.pp = 1;
  plan_.grad_accum = 1;
  plan_.gpus = 16;
  profile_.cluster.nic_bytes_per_s /= 1e3;
  EXPECT_EQ(predicted(dense).regime, StepRegime::kCommunication);
  profile_ = profiles::load_profile("dgx-h100", "megatron-core");
  plan_.gpus = 8;
  profile_.cost.memory.values.stream_efficiency /= 30;
  EXPECT_EQ(predicted(dense).regime, StepRegime::kMemory);
  profile_ = profiles::load_profile("dgx-h100", "megatron-core");
  plan_.seq_len = 1024;
  plan_.parallel.tp = 2;
  plan_.parallel.ep = 8;
  EXPECT_EQ(predicted(lite_).regime, StepRegime::kHost);
}

TEST_F(HostOfSteps, APipelineSaysWhatItsHostIssuesToo) {
  const Model dense = shipped("llama-3-8b");
  plan_.grad_accum = 8;
  const HostShare whole = predicted(dense).host;
  plan_.parallel.pp = 2;
  const HostShare stage = predicted(dense).host;
  EXPECT_GT(stage.issues_s, 0.4 * whole.issues_s);
  EXPECT_LT(stage.issues_s, 0.6 * whole.issues_s);
}

}  // namespace
}  // namespace shardwright::sim
