// SPDX-License-Identifier: Apache-2.0
// What products in fp8 change in a layer.
#include "sim/parallel/precision_body.h"

#include <gtest/gtest.h>

#include "profiles/parallel_kernels.h"
#include "tests/sim/divided_plans.h"

namespace shardwright::sim {
namespace {

Plan fp8_plan(int tp, Fp8Recipe recipe) {
  Plan plan = plan_of(8, tp, 1, 1);
  plan.numerics.precision = Precision::kFp8;
  plan.numerics.fp8_recipe = recipe;
  return plan;
}

// TransformerEngine pytorch/utils.py is_non_tn_fp8_gemm_supported: with one scale a tensor nothing
// is transposed there, and norms with delayed scaling leave nothing to cast. Block scales run along
// the inner dimension, so they are made both ways everywhere.
TEST(PrecisionBody, GpusThatMultiplyBothWaysNeedNoTransposes) {
  const Model model = llama_70b();
  const auto bytes = [&](Fp8Recipe recipe, const char* gpu) {
    const Plan plan = fp8_plan(1, recipe);
    double sum = 0;
    for (const BodyOp& op : BodyWriter(model, plan, h100().stack, gpu).layer(false).forward) {
      if (op.kind == OpKind::kQuantize) sum += static_cast<double>(op.work.bytes);
    }
    return sum;
  };
  const double norms = 8192.0 * 2 * 8192, others = 8192.0 * (8192 + 28672);
  EXPECT_DOUBLE_EQ(bytes(Fp8Recipe::kDelayed, "gb200"), 3 * others);
  EXPECT_DOUBLE_EQ(bytes(Fp8Recipe::kTensorwise, "gb200"), 5 * (norms + others));
  EXPECT_DOUBLE_EQ(bytes(Fp8Recipe::kTensorwise, "h100-80g"), 6 * (norms + others));
  EXPECT_EQ(bytes(Fp8Recipe::kTensorwise, "rtx-pro-6000"), bytes(Fp8Recipe::kTensorwise, ""))
      << "compute capability 12.0 does not";
  EXPECT_EQ(bytes(Fp8Recipe::kMxfp8, "gb200"), bytes(Fp8Recipe::kMxfp8, ""));
  const profiles::Profile torch = profiles::load_profile("gb200-nvl72", "torch-compile");
  EXPECT_TRUE(profiles::transposes_fp8(torch.stack, "gb200")) << "torchao copies all the same";
}

// The kernel that was measured casts with one scale and transposes.
TEST(PrecisionBody, CastsThatTransposeReachWhatWasMeasured) {
  const Model model = llama_70b();
  const auto efficiency = [&](Fp8Recipe recipe, const char* gpu) {
    const Plan plan = fp8_plan(1, recipe);
    for (const BodyOp& op : BodyWriter(model, plan, h100().stack, gpu).layer(false).backward) {
      if (op.kind == OpKind::kQuantize) return op.work.efficiency;
    }
    return 0.0;
  };
  const double measured = profiles::parallel_kernels().cast_transpose.efficiency;
  const double others = h100().stack.parallel.cast_efficiency;
  EXPECT_NE(measured, others);
  EXPECT_DOUBLE_EQ(efficiency(Fp8Recipe::kDelayed, "h100-80g"), measured);
  EXPECT_DOUBLE_EQ(efficiency(Fp8Recipe::kTensorwise, "h100-80g"), measured);
  EXPECT_DOUBLE_EQ(efficiency(Fp8Recipe::kTensorwise, "gb200"), others);
  EXPECT_DOUBLE_EQ(efficiency(Fp8Recipe::kBlock, "h100-80g"), others);
}

}  // namespace
}  // namespace shardwright::sim
