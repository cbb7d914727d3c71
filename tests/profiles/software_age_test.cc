// SPDX-License-Identifier: Apache-2.0
// Guards profiles/ledger/software_age.h: older releases reach less of a young GPU's products in few
// bits.
#include "profiles/ledger/software_age.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "profiles/ledger/ledger_profile.h"
#include "tests/profiles/published_run.h"

namespace shardwright::profiles {
namespace {

double fp8_share(const LedgerRow& row, const std::vector<std::string>& overrides = {}) {
  return profile_of(row, overrides).cost.low_precision.values.fp8_share;
}

TEST(SoftwareAge, OlderReleasesReachLessOfAYoungGpu) {
  const double newest = fp8_share(published_run("gb200", "NeMo 26.06"));
  const double older = fp8_share(published_run("gb200", "NeMo 25.09"));
  const double lost = software_age().lost_a_month;
  EXPECT_GT(lost, 0);
  EXPECT_NEAR(older, newest * (1 - 9 * lost), 1e-12);
  EXPECT_EQ(fp8_share(published_run("gb200", "NeMo 27.01")), newest) << "nothing grows unseen";
  EXPECT_EQ(fp8_share(published_run("gb200", "NeMo 24.09")),
            fp8_share(published_run("gb200", "NeMo 25.04")))
      << "nor is anything lost before the oldest that was seen";
  EXPECT_EQ(fp8_share(published_run("gb200", "")), newest) << "no month is today";
}

TEST(SoftwareAge, GrownGpusHaveNoAge) {
  EXPECT_EQ(fp8_share(published_run("h100-80g", "NeMo 25.09")),
            fp8_share(published_run("h100-80g", "NeMo 26.06")));
}

TEST(SoftwareAge, ReleasesWithoutAMonthAreKnownByTheirStack) {
  LedgerRow row = published_run("gb200", "5.0");
  row.plan.stack = "nemo-mlperf";
  EXPECT_NEAR(software_age().kept(row), 1 - 14 * software_age().lost_a_month, 1e-12);
  row.software = "7.0";
  EXPECT_EQ(software_age().kept(row), 1);
}

TEST(SoftwareAge, OverridesWin) {
  EXPECT_EQ(fp8_share(published_run("gb200", "NeMo 25.09"), {"cost.low_precision.fp8_share=0.5"}),
            0.5);
}

}  // namespace
}  // namespace shardwright::profiles
