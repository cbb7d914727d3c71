// SPDX-License-Identifier: Apache-2.0
// Guards the rules of vendors (exec/libraries/rules.json): each is whole, and what follows from one
// is computed as the vendor does.
#include "exec/libraries/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "exec/model_ops.h"
#include "profiles/stack_file.h"
#include "tests/support/not_empty.h"

namespace shardwright::exec::libraries {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(VendorRules, AreWholeAndNamedOnce) {
  std::set<std::string> ids;
  for (const VendorRule& rule : not_empty(vendor_rules())) {
    EXPECT_TRUE(ids.insert(rule.id).second) << rule.id;
    EXPECT_THAT(rule.id, StartsWith(rule.library + "."));
    EXPECT_FALSE(is_older(rule.to, rule.from)) << rule.id;
    EXPECT_GT(rule.rule.size(), 20u) << rule.id;
    EXPECT_GT(rule.source.size(), 10u) << rule.id;
  }
}

TEST(VendorRules, ReleasesCompareByTheirPartsAsNumbers) {
  EXPECT_TRUE(is_older("2.9.9", "2.28.3"));
  EXPECT_FALSE(is_older("2.28.3", "2.9.9"));
  EXPECT_FALSE(is_older("13.0", "13.0.88")) << "a release is not newer by its patch";
  EXPECT_FALSE(is_older("2.28.9", "2.28.9"));
}

TEST(VendorRules, EndAtTheNewestReleaseThatWasRead) {
  EXPECT_EQ(beyond_rules("nccl", "2.28.9"), "");
  EXPECT_EQ(beyond_rules("nccl", "2.31.0"),
            "its rules were read up to 2.30.7, so what 2.31.0 does otherwise is not known");
  EXPECT_EQ(beyond_rules("cuda_toolkit", "13.0.88"), "");
  EXPECT_THAT(beyond_rules("cuda_toolkit", "13.6"), HasSubstr("up to 13.5"));
  EXPECT_EQ(beyond_rules("mpi", "99"), "") << "of which no rule speaks";
  EXPECT_EQ(beyond_rules("nccl", ""), "") << "an unknown release";
}

TEST(VendorRules, NameTheDriversOfACuda) {
  EXPECT_EQ(drivers_of(13), "R580 or newer, or on data-centre GPUs the package cuda-compat-13-0");
  EXPECT_THAT(drivers_of(12), StartsWith("R525 or newer"));
  EXPECT_EQ(drivers_of(11), "");
}

TEST(VendorRules, NameTheFabricManagerWhereTheSystemIsNotReady) {
  EXPECT_THAT(way_out_of_status(802), HasSubstr("'sudo systemctl start nvidia-fabricmanager'"));
  EXPECT_EQ(way_out_of_status(100), "");
}

// NCCL 2.28.9, ncclTopoComputeP2pChannels: 18 links of an H100 would be 36 channels.
TEST(VendorRules, MessagesTakeAPowerOfTwoOfChannels) {
  EXPECT_EQ(message_channels(18, 0), 64);
  EXPECT_EQ(message_channels(12, 0), 32);
  EXPECT_EQ(message_channels(18, 16), 16);
  EXPECT_EQ(message_channels(18, 12), 16) << "rounded up after it was capped";
  EXPECT_EQ(message_channels(0, 16), 2) << "by PCIe";
}

TEST(VendorRules, MessagesStayWithinWhatCollectivesMayTake) {
  EXPECT_EQ(message_ctas(0), 8);
  EXPECT_EQ(message_ctas(64), 8);
  EXPECT_EQ(message_ctas(6), 4) << "of six NCCL would make eight";
  EXPECT_EQ(message_ctas(1), 1);
}

TEST(VendorRules, MessagesAreAsFastAsTheirChannels) {
  const Stack stack = profiles::load_stack("native").stack;
  EXPECT_EQ(stack.parallel.message_bytes_per_s,
            static_cast<double>(message_ctas(0) *
                                rule_number("nccl.message_rate", "channel_bytes_per_s")));
}

TEST(VendorRules, RanksOfAProcessShareTheQueueOfLaunches) {
  EXPECT_EQ(run_ahead_of(1), 8);
  EXPECT_EQ(run_ahead_of(4), 6);
  EXPECT_EQ(run_ahead_of(8), 3);
  EXPECT_EQ(run_ahead_of(64), 2);
}

TEST(VendorRules, RowsAreScaledWhereCublasDoes) {
  EXPECT_EQ(why_no_fp8("H100", 9, 0, Fp8Recipe::kRowwise), "");
  EXPECT_THAT(why_no_fp8("B200", 10, 0, Fp8Recipe::kRowwise), HasSubstr("9.0 (H100, H200) only"));
}

}  // namespace
}  // namespace shardwright::exec::libraries
