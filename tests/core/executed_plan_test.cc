// SPDX-License-Identifier: Apache-2.0
#include "sim/core/executed_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/core/base/error.h"

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

}  // namespace
}  // namespace shardwright
