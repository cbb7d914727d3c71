// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/quantile.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace shardwright
