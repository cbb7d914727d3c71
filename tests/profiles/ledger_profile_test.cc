// SPDX-License-Identifier: Apache-2.0
// Guards profiles/ledger/ledger_profile.h and stack_of: what a row's circumstances and the name of
// its software make of its profile.
#include "profiles/ledger/ledger_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/profiles/published_run.h"
#include "tests/support/refusal.h"

namespace shardwright::profiles {
namespace {

using ::testing::HasSubstr;
using testing::refusal_of;

TEST(RowCircumstances, CappedBoardsLowerClocks) {
  LedgerRow row = published_run("b200", "NeMo 26.06");
  const Profile whole = profile_of(row);
  row.power_limit_w = 750;
  const Profile capped = profile_of(row);
  const double clocks =
      capped.cost.gemm.values.sustained_factor / whole.cost.gemm.values.sustained_factor;
  EXPECT_GT(clocks, 0.8);
  EXPECT_LT(clocks, 0.9);
  EXPECT_NEAR(capped.attention().forward_flops, clocks * whole.attention().forward_flops,
              1e-6 * whole.attention().forward_flops);
  EXPECT_EQ(profile_of(row, {"cost.gemm.sustained_factor=0.7"}).cost.gemm.values.sustained_factor,
            0.7);
  EXPECT_NE(machine_key(row), machine_key(published_run("b200", "NeMo 26.06")));
  row.power_limit_w = 1200;
  EXPECT_THAT(refusal_of([&] { profile_of(row); }), HasSubstr("1000, the board power of b200"));
}

TEST(RowSoftware, NamesOfSoftwareAndLaterReleasesHaveTheirPresets) {
  LedgerRow row = published_run("gb200", "NeMo 26.10");
  EXPECT_EQ(stack_of(row).stack.id, "megatron-core-nemo-26.06") << "what came with 26.06 stays";
  row.software = "NeMo 26.04.01";
  EXPECT_EQ(stack_of(row).stack.id, "megatron-core-nemo");
  row.software = "Megatron-LM 2026-08";
  EXPECT_EQ(stack_of(row).stack.id, "megatron-core");
  row.software = "";
  EXPECT_EQ(stack_of(row).stack.id, "megatron-core");
  row.stack_called = "megatron-bridge";
  EXPECT_EQ(stack_of(row).stack.id, "megatron-core-nemo") << "as its recipes set it";
}

}  // namespace
}  // namespace shardwright::profiles
