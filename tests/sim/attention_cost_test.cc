// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/attention_cost.h"

#include <gtest/gtest.h>

#include "profiles/gpu_cost.h"

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

}  // namespace
}  // namespace shardwright::sim
