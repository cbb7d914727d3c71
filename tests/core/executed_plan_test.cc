// SPDX-License-Identifier: Apache-2.0
#include "sim/core/executed_plan.h"

#include "sim/core/features.h"
#include "tests/core/common.h"
#include "tests/support/tiny_models.h"

namespace shardwright {
namespace {

Model model() {
  Model m = testing::tiny_llama();
  m.ffn = 96;
  return m;
}

Plan plan() {
  Plan p;
  p.seq_len = 32;
  p.numerics.precision = Precision::kFp8;
  return p;
}

TEST(TrainedPrecision, IsBf16AndThreeRecipesOfFp8) {
  EXPECT_EQ(why_not_run(model(), Plan{}), "");
  Plan fp8 = plan();
  EXPECT_EQ(why_not_run(model(), fp8), "");
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensorwise, Fp8Recipe::kRowwise, Fp8Recipe::kMxfp8}) {
    fp8.numerics.fp8_recipe = recipe;
    EXPECT_EQ(why_not_run(model(), fp8), "") << name_of(recipe);
  }
  fp8.numerics.fp8_recipe = Fp8Recipe::kDelayed;
  EXPECT_EQ(why_not_run(model(), fp8),
            "fp8_recipe is delayed, which run does not train with, "
            "expected tensorwise, rowwise or mxfp8");
  fp8.numerics.precision = Precision::kNvfp4;
  EXPECT_THAT(why_not_run(model(), fp8), StartsWith("precision is nvfp4, which run does not"));
}

TEST(TrainedPrecision, SaysWhatTheRestOfThePlanMustBe) {
  Plan fp8 = plan();
  fp8.numerics.fp8_params = true;
  EXPECT_EQ(why_not_run(model(), fp8),
            "fp8_params is on, but run gathers parameters in bf16, expected off");
  fp8 = plan();
  fp8.param_dtype = DType::kFp32;
  EXPECT_THAT(why_not_run(model(), fp8), StartsWith("param_dtype is fp32, expected bf16, in"));
  fp8 = plan();
  fp8.seq_len = 17;
  EXPECT_EQ(why_not_run(model(), fp8),
            "the number of tokens of a micro-batch is 17, expected a multiple of 16 for precision "
            "fp8 (tensorwise)");
  fp8 = plan();
  Model narrow = model();
  narrow.ffn = 112;
  EXPECT_EQ(why_not_run(narrow, fp8), "");
  fp8.numerics.fp8_recipe = Fp8Recipe::kMxfp8;
  EXPECT_THAT(why_not_run(narrow, fp8), StartsWith("the intermediate size is 112, expected a mul"));
  EXPECT_THROW(check_run(fp8, narrow), InvalidPlan);
}

TEST(WhyNotRun, NamesTheKnobItsValueAndWhatRunTakes) {
  const auto why = [](const auto& change) {
    Plan asked;
    asked.gpus = 8;
    asked.seq_len = 32;
    change(asked);
    return why_not_run(model(), asked);
  };
  EXPECT_EQ(why([](Plan& p) { p.parallel.tp = 2; }), "");
  EXPECT_EQ(why([](Plan& p) {
              p.parallel.tp = 2;
              p.parallel.pp = 4;
              p.numerics.precision = Precision::kFp8;
            }),
            "precision is fp8, but tp is 2 and run multiplies so with data parallelism alone, "
            "expected bf16 or tp 1");
  EXPECT_EQ(why([](Plan& p) {
              p.parallel.pp = 4;
              p.parallel.pp_schedule = PipelineKind::kDualpipe;
            }),
            "pp_schedule is dualpipe, which run does not do, expected gpipe, 1f1b, interleaved, "
            "zb1p or zbv");
  EXPECT_THAT(why([](Plan& p) { p.parallel.cp = 2; }),
              StartsWith("cp is 2, which run does not do"));
  EXPECT_THAT(why([](Plan& p) { p.strategy = Strategy::kMegatronFsdp; }),
              StartsWith("strategy is megatron-fsdp, which has no schedule on the native stack, "
                         "expected single, ddp, zero1"));
  EXPECT_THAT(why([](Plan& p) { p.parallel.tp_overlap = TensorOverlap::kAsync; }),
              StartsWith("tp_overlap is async, expected none"));
}

TEST(TrainedPrecision, ASchedulesPlanSaysNothingOfFp8) {
  Plan fp8 = plan();
  fp8.numerics.fp8_recipe = Fp8Recipe::kMxfp8;
  fp8.numerics.fp8_params = true;
  EXPECT_EQ(beyond(with_products_in_bf16(fp8), {}), "");
  fp8.numerics.lora = 4;
  EXPECT_EQ(beyond(with_products_in_bf16(fp8), {}), "lora is 4");
}

}  // namespace
}  // namespace shardwright
