// SPDX-License-Identifier: Apache-2.0
#include "sim/core/executed_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/core/base/error.h"
#include "sim/core/features.h"
#include "sim/core/model.h"
#include "tests/support/tiny_models.h"

namespace shardwright {

namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal(const Plan& plan) {
  try {
    check_executed(plan, "none");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ExecutedPlan, NamesTheSizeThatItRefusesFp8With) {
  Plan plan;
  plan.gpus = 8;
  plan.numerics.precision = Precision::kFp8;
  plan.parallel.tp = 2;
  plan.parallel.pp = 4;
  EXPECT_EQ(beyond_execution(plan), "precision is fp8 and tp is 2");
  EXPECT_THAT(refusal(plan), StartsWith("precision is fp8, but tp is 2, and the executor"));
  plan.parallel.tp = 1;
  EXPECT_EQ(beyond_execution(plan), "precision is fp8 and pp is 4");
  EXPECT_THAT(refusal(plan), StartsWith("precision is fp8, but pp is 4, and the executor"));
  EXPECT_THAT(refusal(plan), HasSubstr("expected none"));
}

TEST(ExecutedPlan, ShortAndLongRefuseTheSame) {
  Plan plan;
  plan.gpus = 4;
  plan.parallel.pp = 4;
  EXPECT_EQ(beyond_execution(plan), "");
  EXPECT_EQ(refusal(plan), "");
  plan.parallel.pp_schedule = PipelineKind::kDualpipe;
  EXPECT_EQ(beyond_execution(plan), "pp_schedule is dualpipe");
  EXPECT_THAT(refusal(plan), StartsWith("pp_schedule is dualpipe, which"));
}

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
  EXPECT_EQ(untrained_precision(model(), Plan{}), "");
  Plan fp8 = plan();
  EXPECT_EQ(untrained_precision(model(), fp8), "");
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensorwise, Fp8Recipe::kRowwise, Fp8Recipe::kMxfp8}) {
    fp8.numerics.fp8_recipe = recipe;
    EXPECT_EQ(untrained_precision(model(), fp8), "") << name_of(recipe);
  }
  for (const Fp8Recipe recipe : {Fp8Recipe::kDelayed, Fp8Recipe::kBlock}) {
    fp8.numerics.fp8_recipe = recipe;
    EXPECT_EQ(untrained_precision(model(), fp8),
              "fp8_recipe is " + std::string(name_of(recipe)) +
                  ", which run does not train with, expected tensorwise, rowwise or mxfp8");
  }
  Plan fp4 = plan();
  fp4.numerics.precision = Precision::kNvfp4;
  EXPECT_EQ(untrained_precision(model(), fp4),
            "precision is nvfp4, which run does not train in, expected bf16 or fp8");
}

TEST(TrainedPrecision, SaysWhatTheRestOfThePlanMustBe) {
  Plan fp8 = plan();
  fp8.numerics.fp8_params = true;
  EXPECT_EQ(untrained_precision(model(), fp8),
            "fp8_params is on, but run gathers parameters in bf16, expected off");
  fp8 = plan();
  fp8.param_dtype = DType::kFp32;
  EXPECT_EQ(untrained_precision(model(), fp8),
            "param_dtype is fp32, expected bf16, in which precision fp8 leaves the rest");
  fp8 = plan();
  fp8.seq_len = 17;
  EXPECT_EQ(untrained_precision(model(), fp8),
            "the number of tokens of a micro-batch is 17, expected a multiple of 16 for precision "
            "fp8 (tensorwise)");
  fp8 = plan();
  Model narrow = model();
  narrow.ffn = 112;
  EXPECT_EQ(untrained_precision(narrow, fp8), "");
  fp8.numerics.fp8_recipe = Fp8Recipe::kMxfp8;
  EXPECT_EQ(untrained_precision(narrow, fp8),
            "the intermediate size is 112, expected a multiple of 32 for precision fp8 (mxfp8)");
  EXPECT_THROW(check_trained_precision(narrow, fp8), Error);
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
