// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/attention_cost.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "profiles/gpu_cost.h"
#include "sim/cost/op_cost.h"
#include "sim/program/layer_program.h"
#include "sim/program/program_writer.h"
#include "tests/sim/model_parallel_plans.h"
#include "tests/support/tiny_models.h"

namespace shardwright::sim {

namespace {

class AttentionCost : public ::testing::Test {
 protected:
  const profiles::GpuCosts costs_ = profiles::load_gpu_costs();
  const profiles::GpuCost& a100_ = costs_.at("a100-80g");
  const profiles::AttentionParams& params_ = a100_.attention.at("fa2").values;
  const profiles::GpuRates& gpu_ = a100_.rates.values;

  AttentionShape shape(std::int64_t seq_len, std::int64_t heads = 64) const {
    return {.batch_heads = heads,
            .kv_heads = heads,
            .query_length = seq_len,
            .kv_length = seq_len,
            .head_dim = 128,
            .causal = true};
  }
  double time(const AttentionShape& s, bool backward = false, int sms = 108) const {
    return attention_time_s(params_, gpu_, s, backward, sms);
  }
};

TEST_F(AttentionCost, FlopsCountHalfOfTheScoresWhenCausalAndBackwardTwoAndAHalfTimes) {
  AttentionShape s = shape(1024, 2);
  EXPECT_DOUBLE_EQ(attention_flops(s, false), 2.0 * 2 * 1024 * 1024 * 128);
  EXPECT_DOUBLE_EQ(attention_flops(s, true), 2.5 * attention_flops(s, false));
  s.causal = false;
  EXPECT_DOUBLE_EQ(attention_flops(s, false), 4.0 * 2 * 1024 * 1024 * 128);
}

TEST_F(AttentionCost, AWindowCostsWhatItAttendsToAndNarrowValuesLess) {
  AttentionShape s = shape(8192);
  const double full = time(s);
  s.attended = 0.25;
  EXPECT_DOUBLE_EQ(attention_flops(s, false), 0.25 * attention_flops(shape(8192), false));
  EXPECT_LT(time(s), 0.35 * full);
  EXPECT_GT(time(s), 0.25 * full);  // shorter inner loops are less efficient
  s = shape(8192);
  s.head_dim = 192;
  s.value_dim = 128;
  EXPECT_DOUBLE_EQ(attention_flops(s, true), 320.0 / 256 * attention_flops(shape(8192), true));
}

TEST_F(AttentionCost, ReachesThePublishedRatesOfFlashAttentionOnA100) {
  // Dao-AILab/flash-attention, forward and backward together, causal, head_dim 128.
  for (const auto& [seq_len, tflops] : {std::pair{2048, 155.0}, {8192, 182.0}, {16384, 189.0}}) {
    const AttentionShape s = shape(seq_len, 1024);
    const double flops = attention_flops(s, false) + attention_flops(s, true);
    EXPECT_NEAR(flops / (time(s) + time(s, true)) / 1e12 / tflops, 1, 0.04) << seq_len;
  }
}

TEST_F(AttentionCost, FewHeadsLeaveSmsIdle) {
  const double full = time(shape(2048, 108)) - params_.t0_s;
  const double few = time(shape(2048, 2)) - params_.t0_s;  // 32 blocks on 108 SMs
  EXPECT_NEAR(few / full, 2.0 / 108 * 108 / 32, 1e-9);
}

TEST_F(AttentionCost, SmsTakenByACollectiveSlowItInProportion) {
  const double all = time(shape(4096)) - params_.t0_s;
  EXPECT_NEAR((time(shape(4096), false, 92) - params_.t0_s) / all, 108.0 / 92, 1e-9);
}

TEST_F(AttentionCost, GrowsWithEveryDimensionAndSmallHeadsAreLessEfficient) {
  for (const bool backward : {false, true}) {
    const AttentionShape s = shape(1000, 7);
    const double t = time(s, backward);
    for (auto member : {&AttentionShape::batch_heads, &AttentionShape::query_length,
                        &AttentionShape::kv_length, &AttentionShape::head_dim}) {
      AttentionShape larger = s;
      larger.*member *= 2;
      EXPECT_GE(time(larger, backward), t);
    }
    EXPECT_GT(time(shape(2000, 7), backward), 1.2 * t);
    AttentionShape small = s;
    small.head_dim = 64;
    EXPECT_GT(time(small, backward) - params_.t0_s, 0.5 * (t - params_.t0_s));
    EXPECT_LT(time(small, backward), t);
  }
  EXPECT_EQ(time(shape(0)), 0);
}

/// Seconds of a layer's attention, forward and backward, and the form that the plan names.
struct PricedAttention {
  AttentionForm form;
  double seconds = 0;
};

PricedAttention priced(const Model& model, DType dtype, const char* cluster,
                       bool packs_documents = false) {
  Plan plan = shardwright::testing::tiny_plan(Strategy::kSingle, 1);
  plan.param_dtype = dtype;
  plan.seq_len = 4096;
  profiles::Profile profile = profiles::load_profile(cluster, "native");
  profile.stack.packs_documents = packs_documents;
  const KernelCosts costs = kernel_costs(profile);
  PricedAttention result{planned_attention(model, plan, profile).value().form, 0};
  bool forward = false, backward = false;
  const StepProgram step = executed_step(model, plan, profile.stack, 8);
  for (const Op& op : step.stages.front().ops) {
    bool& seen = op.work.backward ? backward : forward;
    if (op.kind != OpKind::kAttention || seen) continue;
    seen = true;
    EXPECT_EQ(costs.other_attention.form_of(op.work), result.form);
    result.seconds += kernel_time_s(costs, op.work);
  }
  EXPECT_TRUE(forward && backward);
  return result;
}

Model wide_heads() {
  Model model = shardwright::testing::tiny_llama();
  model.heads = 16;
  model.kv_heads = 16;
  model.head_dim = 256;
  model.hidden = 4096;
  model.max_positions = 4096;
  return model;
}

Model usual_heads() {
  Model model = wide_heads();
  model.heads = model.kv_heads = 32;
  model.head_dim = 128;
  return model;
}

// What runs is priced, not what the library would have done.
TEST(NativeAttention, IsPricedInTheFormThatRuns) {
  const PricedAttention usual = priced(usual_heads(), DType::kBf16, "dgx-h100");
  EXPECT_EQ(usual.form, AttentionForm::kCudnn);
  const PricedAttention fp32 = priced(usual_heads(), DType::kFp32, "dgx-h100");
  EXPECT_EQ(fp32.form, AttentionForm::kNaive);
  EXPECT_GT(fp32.seconds, 10 * usual.seconds);

  const PricedAttention on_hopper = priced(wide_heads(), DType::kBf16, "dgx-h100");
  EXPECT_EQ(on_hopper.form, AttentionForm::kCudnn);
  EXPECT_EQ(priced(wide_heads(), DType::kBf16, "dgx-a100-80g").form, AttentionForm::kNaive);

  const PricedAttention packed = priced(usual_heads(), DType::kBf16, "dgx-h100", true);
  EXPECT_EQ(packed.form, AttentionForm::kFlash);
  EXPECT_GT(packed.seconds, usual.seconds);
  Model capped = usual_heads();
  capped.attention_softcap = 50;
  EXPECT_EQ(priced(capped, DType::kBf16, "dgx-h100").form, AttentionForm::kCudnn);
  const PricedAttention both = priced(capped, DType::kBf16, "dgx-h100", true);
  EXPECT_EQ(both.form, AttentionForm::kNaive);
  EXPECT_GT(both.seconds, packed.seconds);
}

// A warp's instructions for each pair of a query and a key it may see, at the rate of the GPU.
TEST(NativeAttention, NaiveTakesItsInstructions) {
  const profiles::Profile profile = profiles::load_profile("dgx-h100", "native");
  const KernelCosts costs = kernel_costs(profile);
  Work work;
  work.kind = WorkKind::kAttention;
  work.dtype_bytes = 4;
  work.m = 32;
  work.n = 4096;
  work.k = 128;
  const double pairs = 32.0 * 4096 * 4097 / 2;
  const double a_second = profile.cluster.gpu.peak_fp32_flops / 64;
  const NaiveAttention& naive = profile.stack.naive_attention;
  EXPECT_NEAR(kernel_time_s(costs, work) / (pairs * naive.forward_fp32_instructions / a_second), 1,
              1e-3);
  work.backward = true;
  EXPECT_NEAR(kernel_time_s(costs, work) / (pairs * naive.backward_fp32_instructions / a_second), 1,
              1e-3);
  // Frameworks have other kernels.
  EXPECT_FALSE(planned_attention(usual_heads(),
                                 shardwright::testing::tiny_plan(Strategy::kSingle, 1),
                                 profiles::load_profile("dgx-h100", "torch-eager")));
}

// The numbers of the stack are those of the machine code.
TEST(NativeAttention, InstructionsAreThoseOfTheMachineCode) {
  const NaiveAttention& naive = profiles::load_stack("native").stack.naive_attention;
  std::ifstream file(SHARDWRIGHT_TEST_DATA "/../../kernels/cuda/machine_code.json");
  const auto kernels = nlohmann::json::parse(file).at("sm_90a").at("kernels");
  const auto loop = [&](const std::string& name) {
    return kernels.at(name).at("loop_instructions").get<double>();
  };
  EXPECT_EQ(naive.forward_instructions, loop("naive_forward_kernel<BFloat16>"));
  EXPECT_EQ(naive.forward_fp32_instructions, loop("naive_forward_kernel<float>"));
  EXPECT_EQ(naive.backward_instructions, loop("naive_query_gradient_kernel<BFloat16>") +
                                             loop("naive_key_gradient_kernel<BFloat16>"));
  EXPECT_EQ(naive.backward_fp32_instructions,
            loop("naive_query_gradient_kernel<float>") + loop("naive_key_gradient_kernel<float>"));
}

}  // namespace

// Documents that are packed in a sequence attend to themselves alone.

namespace {

Plan packed(std::int64_t length) {
  Plan plan = plan_of(64, 8, 1, 4);
  plan.packed_length = length;
  return plan;
}

double attended_by(const Plan& plan) {
  const UnitProgram layer = ProgramWriter(llama_70b(), plan, h100().stack).layer(false);
  for (const Op& op : layer.forward) {
    if (op.kind == OpKind::kAttention) return op.work.attended;
  }
  return 0;
}

// Causal scores of S / L documents of L tokens: S L / 2 of S^2 / 2.
TEST(PackedSequences, AttentionIsThatOfTheDocuments) {
  EXPECT_DOUBLE_EQ(attended_by(packed(0)), 1);
  EXPECT_DOUBLE_EQ(attended_by(packed(1024)), 1024.0 / 8192);
  EXPECT_DOUBLE_EQ(attended_by(packed(8192)), 1);
}

TEST(PackedSequences, StepsAreThoseOfAsManyTokensInShortSequences) {
  const Model model = llama_70b();
  Plan apart = packed(0);
  apart.seq_len = 1024;
  apart.micro_batch = 8;
  const Plan together = packed(1024);
  EXPECT_DOUBLE_EQ(model_flops(model, together), model_flops(model, apart));
  const double together_s = predict(model, h100(), together).time.iteration_s;
  EXPECT_LT(together_s, 0.97 * predict(model, h100(), packed(0)).time.iteration_s);
  EXPECT_NEAR(together_s, predict(model, h100(), apart).time.iteration_s, 0.03 * together_s);
}

TEST(PackedSequences, DocumentsLongerThanTheSequenceAreRefused) {
  EXPECT_THAT(refusal_of([] { check_plan(packed(9000), 80, 8); }),
              HasSubstr("packed_length is 9000"));
}

}  // namespace

}  // namespace shardwright::sim
