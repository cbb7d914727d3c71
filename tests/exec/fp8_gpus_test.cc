// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "exec/model_ops.h"

namespace shardwright::exec {
namespace {

TEST(Fp8Gpus, SayWhatTheyLack) {
  EXPECT_EQ(why_no_fp8("NVIDIA A100", 8, 0, Fp8Recipe::kTensorwise),
            "precision is fp8, but NVIDIA A100 has compute capability 8.0 and no tensor cores for "
            "it, expected 8.9 or newer or precision bf16");
  EXPECT_EQ(why_no_fp8("NVIDIA L40S", 8, 9, Fp8Recipe::kRowwise),
            "fp8_recipe is rowwise, but NVIDIA L40S has compute capability 8.9 and cuBLASLt scales "
            "rows on 9.0 (H100, H200) only, expected tensorwise");
  EXPECT_EQ(why_no_fp8("NVIDIA B200", 10, 0, Fp8Recipe::kRowwise),
            "fp8_recipe is rowwise, but NVIDIA B200 has compute capability 10.0 and cuBLASLt "
            "scales rows on 9.0 (H100, H200) only, expected tensorwise or mxfp8");
  EXPECT_EQ(why_no_fp8("NVIDIA H100", 9, 0, Fp8Recipe::kMxfp8),
            "fp8_recipe is mxfp8, but NVIDIA H100 has compute capability 9.0, expected 10.0 or "
            "newer or tensorwise or rowwise");
}

TEST(Fp8Gpus, OfAdaAndLaterMultiplyTensorwise) {
  for (const auto& [major, minor] : {std::pair{8, 9}, {9, 0}, {10, 0}, {10, 3}, {12, 0}})
    EXPECT_EQ(why_no_fp8("GPU", major, minor, Fp8Recipe::kTensorwise), "") << major;
  EXPECT_EQ(why_no_fp8("GPU", 9, 0, Fp8Recipe::kRowwise), "");
  EXPECT_EQ(why_no_fp8("GPU", 10, 0, Fp8Recipe::kMxfp8), "");
  EXPECT_EQ(why_no_fp8("GPU", 12, 0, Fp8Recipe::kMxfp8), "");
  EXPECT_TRUE(multiplies_fp8_both_ways(10));
  EXPECT_FALSE(multiplies_fp8_both_ways(9));
  EXPECT_FALSE(multiplies_fp8_both_ways(12));
}

}  // namespace
}  // namespace shardwright::exec
