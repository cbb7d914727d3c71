// SPDX-License-Identifier: Apache-2.0
#include "kernels/bf16.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/random.h"

namespace shardwright::kernels {
namespace {

TEST(BFloat16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const BFloat16 value{static_cast<std::uint16_t>(bits)};
    if (std::isnan(to_float(value))) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(to_float(value)))));
    } else {
      EXPECT_EQ(to_bf16(to_float(value)), value) << bits;
    }
  }
}

TEST(BFloat16, RoundsToNearestAndTiesToEven) {
  const RandomStream stream{.seed = 11};
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const float value = std::bit_cast<float>(stream.word(i));
    if (!std::isfinite(value) || std::abs(value) > 3e38f) continue;
    const BFloat16 below{static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16)};
    const BFloat16 above{static_cast<std::uint16_t>(below.bits + 1)};
    const double to_below = std::abs(static_cast<double>(value) - to_float(below));
    const double to_above = std::abs(static_cast<double>(to_float(above)) - value);
    const BFloat16 nearest = to_below < to_above   ? below
                             : to_above < to_below ? above
                             : below.bits % 2 == 0 ? below
                                                   : above;
    ASSERT_EQ(to_bf16(value), nearest) << value;
  }
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f).bits, to_bf16(1.0f).bits);  // tie, even below
  EXPECT_TRUE(std::isinf(to_float(to_bf16(3.4e38f))));
}

TEST(BFloat16, StochasticRoundingIsUnbiased) {
  for (const float value : {1.0f + 0x1p-10f, -3.1415927f, 1e-5f, 0.0f, 2.0f}) {
    double sum = 0;
    constexpr int kDraws = 65536;
    for (int draw = 0; draw < kDraws; ++draw) {
      sum += to_float(to_bf16_stochastic(value, static_cast<std::uint16_t>(draw)));
    }
    // All 2^16 draws once: the mean is exact up to the last of the 16 bits.
    EXPECT_NEAR(sum / kDraws, value, std::abs(value) * 0x1p-22);
  }
  EXPECT_TRUE(std::isnan(to_float(to_bf16_stochastic(NAN, 0xffff))));
  EXPECT_TRUE(std::isinf(to_float(to_bf16_stochastic(INFINITY, 0xffff))));
}

}  // namespace
}  // namespace shardwright::kernels
