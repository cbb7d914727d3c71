// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace shardwright {

namespace {

TEST(Quantile, LiesBetweenNeighboursInProportion) {
  EXPECT_EQ(quantile({30, 10, 20}, 0.5), 20);
  EXPECT_EQ(quantile({10, 40, 20, 30}, 0.5), 25);
  EXPECT_EQ(quantile({10, 40, 20, 30}, 0.25), 17.5);
  EXPECT_EQ(quantile({10, 40, 20, 30}, 0), 10);
  EXPECT_EQ(quantile({10, 40, 20, 30}, 1), 40);
  EXPECT_EQ(quantile({7}, 0.9), 7);
  EXPECT_EQ(quantile({}, 0.5), 0);
}

TEST(UpperMedian, IsAValueThatWasSeen) {
  EXPECT_EQ(upper_median({30, 10, 20}), 20);
  EXPECT_EQ(upper_median({10, 40, 20, 30}), 30);
  EXPECT_EQ(upper_median({}), 0);
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// How many doubles lie between what is and what the C library, itself within one, says.
double units_off(double value, double expected) {
  return std::abs(value - expected) /
         (std::nextafter(std::abs(expected), kInfinity) - std::abs(expected));
}

TEST(PortableMath, IsWithinThreeUnitsOfTheLibrarys) {
  for (int i = -4000; i <= 4000; ++i) {
    const double near = i * 0.00037, far = i * 0.17;
    EXPECT_LE(units_off(portable_exp(near), std::exp(near)), 3) << near;
    EXPECT_LE(units_off(portable_exp(far), std::exp(far)), 3) << far;
    EXPECT_LE(units_off(portable_expm1(near), std::expm1(near)), 3) << near;
    if (i == 0) continue;
    EXPECT_LE(units_off(portable_log(1 + near / 2), std::log(1 + near / 2)), 3) << near;
    EXPECT_LE(units_off(portable_log(std::exp(far)), std::log(std::exp(far))), 3) << far;
  }
  EXPECT_NEAR(portable_pow(3.7, -1.3), std::pow(3.7, -1.3), 1e-15);
}

TEST(PortableMath, KnowsTheEnds) {
  EXPECT_EQ(portable_exp(0), 1);
  EXPECT_EQ(portable_exp(1000), kInfinity);
  EXPECT_EQ(portable_exp(-1000), 0);
  EXPECT_EQ(portable_expm1(0), 0);
  EXPECT_EQ(portable_log(1), 0);
  EXPECT_EQ(portable_log(0), -kInfinity);
  EXPECT_EQ(portable_log(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(portable_log(-1)));
  EXPECT_TRUE(std::isnan(portable_exp(std::nan(""))));
}

// To the last bit, on any machine and with any compiler.
TEST(PortableMath, HasTheseBits) {
  EXPECT_EQ(portable_exp(0.1), 0x1.1aec7b35a00d4p+0);
  EXPECT_EQ(portable_exp(-0.0473), 0x1.e858a1fc9d0cfp-1);
  EXPECT_EQ(portable_exp(3.3), 0x1.b1cd5e7807b7bp+4);
  EXPECT_EQ(portable_expm1(0.07), 0x1.28fe56b2de69cp-4);
  EXPECT_EQ(portable_log(1.1), 0x1.8663f793c46ccp-4);
  EXPECT_EQ(portable_log(45.7), 0x1.e93a845bca0aap+1);
  EXPECT_EQ(portable_pow(2.7, 0.37), 0x1.71b222413b11ap+0);
}

}  // namespace

}  // namespace shardwright
