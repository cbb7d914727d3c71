// SPDX-License-Identifier: Apache-2.0
#include "profiles/known_gpu.h"

#include <gtest/gtest.h>

namespace shardwright::profiles {
namespace {

TEST(KnownGpu, IsToldByItsNameWhereAFileHasNoCounts) {
  EXPECT_TRUE(is_named_as("NVIDIA A100-SXM4-80GB", "a100-80g"));
  EXPECT_FALSE(is_named_as("NVIDIA A100-SXM4-80GB", "a100-40g"));
  EXPECT_TRUE(is_named_as("NVIDIA H100 80GB HBM3", "h100-80g"));
  EXPECT_FALSE(is_named_as("NVIDIA H100 PCIe", "h100-80g"));
  EXPECT_TRUE(is_named_as("NVIDIA H100 PCIe", "h100-pcie"));
  EXPECT_FALSE(is_named_as("NVIDIA L40S", "l4"));
  EXPECT_FALSE(is_named_as("NVIDIA GB200", "b200"));
  EXPECT_EQ(kind_named("NVIDIA GeForce RTX 5090"), "rtx-5090");
  EXPECT_EQ(kind_named("NVIDIA GeForce RTX 5060 Ti"), "rtx-5060ti");
  EXPECT_EQ(kind_named("AMD Instinct MI300X"), "mi300x");
  EXPECT_EQ(kind_named("Tesla V100-SXM2-16GB"), "");
}

}  // namespace
}  // namespace shardwright::profiles
