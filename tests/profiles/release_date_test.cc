// SPDX-License-Identifier: Apache-2.0
// Guards profiles/release_date.h: the dates that names of releases tell.
#include "profiles/release_date.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardwright::profiles {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ReleaseDate, ReadsTheDatesThatReleasesName) {
  EXPECT_THAT(release_date("NeMo 26.08"), ElementsAre(2026, 8));
  EXPECT_THAT(release_date("NeMo 26.04.01"), ElementsAre(2026, 4, 1));
  EXPECT_THAT(release_date("NeMo 24.07 with vboost"), ElementsAre(2024, 7));
  EXPECT_THAT(release_date("torchtitan before 2024-06-12"), ElementsAre(2024, 6, 12));
  EXPECT_THAT(release_date("2025"), ElementsAre(2025));
  EXPECT_THAT(release_date("llm-foundry 2023-05, bf16 PURE"), ElementsAre(2023, 5));
  EXPECT_THAT(release_date("TE 2.11, torch 2.10"), IsEmpty());
  EXPECT_THAT(release_date("mcore 0.24.07"), IsEmpty());
  EXPECT_THAT(release_date("torchtitan #382, loss in 20 chunks"), IsEmpty());
  EXPECT_THAT(release_date("99999999999999999999"), IsEmpty());
  EXPECT_THAT(release_date("5.0"), IsEmpty());
  EXPECT_THAT(release_date(""), IsEmpty());
}

}  // namespace
}  // namespace shardwright::profiles
