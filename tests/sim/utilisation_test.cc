// SPDX-License-Identifier: Apache-2.0
#include "sim/trace/utilisation.h"

#include <gtest/gtest.h>

#include "tests/support/tiny_models.h"

namespace shardwright::sim {
namespace {

const profiles::SeenGpu kH200{"NVIDIA H200", 132, Bytes{139} << 30};

TEST(Utilisation, KnowsGpusByNameSizeAndUnits) {
  const auto id = [](const char* name, double gib, int units) {
    const auto gpu = profiles::known_gpu({name, units, static_cast<Bytes>(gib * (1 << 30))});
    return gpu ? gpu->id : std::string();
  };
  EXPECT_EQ(id("NVIDIA H200", 139.8, 132), "h200");
  EXPECT_EQ(id("NVIDIA H100 80GB HBM3", 79.1, 132), "h100-80g");
  EXPECT_EQ(id("NVIDIA A100-SXM4-80GB", 79.1, 108), "a100-80g");
  EXPECT_EQ(id("NVIDIA A100 80GB PCIe", 79.1, 108), "a100-pcie-80g");
  EXPECT_EQ(id("NVIDIA GeForce RTX 3060", 12, 28), "");
}

TEST(Utilisation, CountsTheGpusThatAreUsed) {
  const auto model = shardwright::testing::tiny_llama();
  auto plan = shardwright::testing::tiny_plan(Strategy::kYafsdp, 4);
  plan.param_dtype = DType::kBf16;
  const Utilisation shared = utilisation_of(model, plan, UsedGpus{kH200, 1});
  const Utilisation own = utilisation_of(model, plan, UsedGpus{kH200, 8});
  ASSERT_TRUE(shared.mfu(1.0) && own.mfu(1.0));
  EXPECT_DOUBLE_EQ(*shared.mfu(1.0), 4 * *own.mfu(1.0));
  EXPECT_DOUBLE_EQ(shared.peak_flops, 9.894e14);
  EXPECT_FALSE(shared.of_products(1.0)) << "nothing was measured";
  EXPECT_FALSE(utilisation_of(model, plan, {}).mfu(1.0)) << "the host has no data sheet";
  EXPECT_EQ(own.basis, "4 x NVIDIA H200, 989 TFLOP/s dense bf16 each");
  plan.numerics.precision = Precision::kFp8;
  const Utilisation fp8 = utilisation_of(model, plan, UsedGpus{kH200, 8});
  EXPECT_DOUBLE_EQ(fp8.peak_flops, 4 * 1.9789e15);
  EXPECT_EQ(fp8.basis, "4 x NVIDIA H200, 1979 TFLOP/s dense fp8 each");
}

}  // namespace
}  // namespace shardwright::sim
