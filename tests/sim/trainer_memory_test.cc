// SPDX-License-Identifier: Apache-2.0
// What a trainer keeps beyond what its kernels need, in bytes that can be counted by hand.

#include "tests/sim/prediction.h"

namespace shardwright::sim {
namespace {

class TrainerMemory : public ::testing::Test {
 protected:
  TrainerMemory() {
    model_.name = "small";
    model_.family = "llama";
    model_.layers = 6;
    model_.hidden = 1024;
    model_.heads = model_.kv_heads = 8;
    model_.head_dim = 128;
    model_.ffn = 2816;
    model_.vocab = 128256;
    model_.max_positions = 4096;
    plan_.strategy = Strategy::kFsdp2;
    plan_.gpus = 8;
    plan_.seq_len = 4096;
    plan_.micro_batch = 2;
    plan_.ckpt_layers = 6;
    plan_.stack = "torch-eager";
  }

  MemoryPrediction memory(const std::string& set = "") const {
    std::vector<std::string> overrides;
    if (!set.empty()) overrides.push_back(set);
    return predict(model_, profiles::load_profile("dgx-a100-80g", plan_.stack, overrides), plan_)
        .memory;
  }
  double tokens() const { return static_cast<double>(plan_.seq_len * plan_.micro_batch); }
  static double more(const MemoryPrediction& a, const MemoryPrediction& b) {
    return static_cast<double>(a.peak_allocated_bytes - b.peak_allocated_bytes);
  }

  Model model_;
  Plan plan_;
};

TEST_F(TrainerMemory, LogitsThatAreKeptAddFourBytesEach) {
  EXPECT_DOUBLE_EQ(more(memory("stack.keeps_logits=true"), memory()),
                   4 * tokens() * static_cast<double>(model_.vocab));
}

TEST_F(TrainerMemory, LossInChunksHoldsOnlyAChunksLogits) {
  const MemoryPrediction whole = memory();
  const auto loss = static_cast<std::size_t>(MemoryCategory::kLoss);
  plan_.loss_chunks = 8;
  const MemoryPrediction chunked = memory();
  EXPECT_LT(chunked.peak_allocated_bytes, whole.peak_allocated_bytes);
  EXPECT_LE(8 * chunked.breakdown_bytes[loss], whole.breakdown_bytes[loss] + 8);
  plan_.loss_chunks = 1;
  EXPECT_EQ(memory().peak_allocated_bytes, whole.peak_allocated_bytes);
}

TEST_F(TrainerMemory, LossInChunksDoesTheSameWork) {
  const auto time = [&] {
    return predict(model_, profiles::load_profile("dgx-a100-80g", plan_.stack), plan_)
        .time.iteration_s;
  };
  const double whole = time();
  plan_.loss_chunks = 4;
  EXPECT_NEAR(time() / whole, 1, 0.05);
}

TEST_F(TrainerMemory, CachedKeysAndValuesOfCheckpointedLayersStay) {
  const double cache = 2 * 2 * tokens() * static_cast<double>(model_.kv_dim());
  EXPECT_DOUBLE_EQ(more(memory("stack.keeps_key_values=true"), memory()),
                   static_cast<double>(model_.layers) * cache);
}

TEST_F(TrainerMemory, GradientsThatWaitForTheLastMicroStepAreWhole) {
  plan_.grad_accum = 4;
  const double parameters = static_cast<double>(count_parameters(model_).total(model_.layers));
  // Whole ones in fp32 instead of an eighth of them, which comes with the last micro-batch.
  const double kept = more(memory("stack.no_sync=true"), memory());
  EXPECT_GT(kept, 4 * parameters * 0.8);
  EXPECT_LT(kept, 4 * parameters * 1.01);
  // These reduce after the last micro-batch anyway.
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1}) {
    plan_.strategy = strategy;
    EXPECT_EQ(more(memory("stack.no_sync=true"), memory()), 0);
  }
  // FSDP1 adds them up in bf16; they take the place of buffers that come and go.
  plan_.strategy = Strategy::kFsdp1;
  const double kept_by_fsdp1 = more(memory("stack.no_sync=true"), memory());
  EXPECT_GT(kept_by_fsdp1, 2 * parameters * 0.7);
  EXPECT_LT(kept_by_fsdp1, 2 * parameters * 1.01);
  for (const Strategy strategy : {Strategy::kZero2, Strategy::kZero3, Strategy::kFsdp1GradOp}) {
    plan_.strategy = strategy;
    EXPECT_THROW(memory("stack.no_sync=true"), Error);
  }
  plan_.grad_accum = 1;
  EXPECT_EQ(more(memory("stack.no_sync=true"), memory()), 0);
}

TEST_F(TrainerMemory, ThePlanChoosesTheAllocator) {
  plan_.allocator = AllocatorKind::kExpandable;
  const Bytes expandable = memory("stack.allocator.expandable_segments=false").peak_reserved_bytes;
  plan_.allocator = AllocatorKind::kNative;
  const Bytes native = memory("stack.allocator.expandable_segments=true").peak_reserved_bytes;
  EXPECT_LT(expandable, native);
  plan_.allocator = AllocatorKind::kStack;
  EXPECT_EQ(memory("stack.allocator.expandable_segments=true").peak_reserved_bytes, expandable);
  EXPECT_EQ(memory("stack.allocator.expandable_segments=false").peak_reserved_bytes, native);
}

// The host holds masters and moments; what is computed with stays, in its own type.
TEST_F(TrainerMemory, ParametersStayWhereTheOptimizerLeaves) {
  plan_.offload = Offload::kOptimizer;
  const auto parameters = static_cast<double>(count_parameters(model_).total(model_.layers));
  const auto kept = [&](const std::string& stack, DType master) {
    plan_.stack = stack;
    plan_.master_dtype = plan_.moment_dtype = master;
    const Prediction p = predict(model_, profiles::load_profile("dgx-a100-80g", stack), plan_);
    return static_cast<double>(
        p.memory.breakdown_bytes[static_cast<std::size_t>(MemoryCategory::kParameters)]);
  };
  const double padding = 1.001;
  for (const std::string stack : {"torch-compile", "native"}) {
    for (const DType master : {DType::kFp32, DType::kBf16}) {
      plan_.strategy = Strategy::kZero1;
      EXPECT_GE(kept(stack, master), 2 * parameters);
      plan_.strategy = Strategy::kFsdp2;
      EXPECT_GE(kept(stack, master), 2 * parameters / 8);
      EXPECT_LE(kept(stack, master), 2 * parameters / 8 * padding);
    }
  }
}

TEST_F(TrainerMemory, AWholeRecomputationTakesLongerAndNoMoreMemoryThanItsLastTensors) {
  const auto time = [&](const std::string& whole) {
    return predict(model_,
                   profiles::load_profile("dgx-a100-80g", plan_.stack,
                                          {"stack.recomputes_whole_layers=" + whole}),
                   plan_)
        .time;
  };
  EXPECT_GT(time("true").backward_s, 1.02 * time("false").backward_s);
  EXPECT_DOUBLE_EQ(time("true").forward_s, time("false").forward_s);
}

TEST_F(TrainerMemory, TheVerdictHasThreeAnswers) {
  profiles::Profile profile = profiles::load_profile("dgx-a100-80g", plan_.stack);
  profile.uncertainty.memory = {.more = 0.1, .less = 0};
  const Bytes total = predict(model_, profile, plan_).memory.total_bytes;
  const auto verdict = [&](double share) {
    profile.cluster.gpu.memory_bytes = static_cast<Bytes>(share * static_cast<double>(total));
    return predict(model_, profile, plan_).memory.verdict;
  };
  EXPECT_EQ(verdict(1.2), MemoryVerdict::kFits);
  EXPECT_EQ(verdict(1.02), MemoryVerdict::kTight);
  EXPECT_EQ(verdict(0.5), MemoryVerdict::kDoesNotFit);
}

}  // namespace
}  // namespace shardwright::sim
