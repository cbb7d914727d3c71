// SPDX-License-Identifier: Apache-2.0
// Guards sim/score/framework_score.h: which release is newest, and what its runs' errors are.
#include "sim/score/framework_score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace shardwright::sim {
namespace {

using ::testing::ElementsAre;

ValidatedRow run_of(const std::string& id, const std::string& stack, const std::string& software,
                    double error) {
  ValidatedRow run;
  run.row.id = id;
  run.row.source = "somebody";
  run.row.plan.stack = stack;
  run.row.software = software;
  run.time_error = error;
  return run;
}

TEST(FrameworkScore, PutsTheNewestReleaseFirst) {
  Validation validation;
  validation.rows = {run_of("a", "old", "2021", 0.5), run_of("b", "undated", "", 0.25),
                     run_of("c", "new", "24.07", -0.125), run_of("d", "new", "26.02", 0.5),
                     run_of("e", "new", "26.11", 0.25)};
  validation.rows[3].inside_interval = false;
  ValidatedRow suspect = run_of("f", "new", "27.01", 9);
  suspect.row.suspect = "another preset contradicts it";
  ValidatedRow skipped = run_of("g", "new", "27.01", 9);
  skipped.skipped = "its GPU is not known";
  ValidatedRow untimed = run_of("h", "new", "27.01", 9);
  untimed.time_error.reset();
  validation.rows.insert(validation.rows.end(), {suspect, skipped, untimed});
  profiles::HeldOutRun held_out;
  held_out.id = "c";
  held_out.source = "somebody";
  held_out.log_error_source_out = std::log(0.75);
  profiles::HeldOutRun other = held_out;
  other.source = "somebody else";
  other.id = "d";

  const auto scores =
      score_frameworks(validation, std::vector<profiles::HeldOutRun>{held_out, other});
  ASSERT_EQ(scores.size(), 3U);
  EXPECT_EQ(scores[0].framework, "new");
  EXPECT_EQ(scores[1].framework, "old");
  EXPECT_EQ(scores[2].framework, "undated");
  EXPECT_EQ(scores[2].all.year, 0);
  const ReleaseScore& all = scores[0].all;
  EXPECT_THAT(all.releases, ElementsAre("26.11", "26.02", "24.07"));
  EXPECT_EQ(all.year, 2026);
  EXPECT_EQ(all.time.n, 3);
  EXPECT_DOUBLE_EQ(all.time.mape, (0.125 + 0.5 + 0.25) / 3);
  EXPECT_EQ(all.inside_interval, 2);
  EXPECT_EQ(all.source_left_out.n, 1);
  EXPECT_DOUBLE_EQ(all.source_left_out.mape, 0.25);
  ASSERT_EQ(scores[0].years.size(), 2U);
  EXPECT_EQ(scores[0].years[0].year, 2026);
  EXPECT_THAT(scores[0].years[0].releases, ElementsAre("26.11", "26.02"));
  EXPECT_EQ(scores[0].years[0].inside_interval, 1);
  EXPECT_EQ(scores[0].years[0].source_left_out.n, 0);
  EXPECT_EQ(scores[0].years[1].year, 2024);
  EXPECT_EQ(scores[0].years[1].source_left_out.n, 1);
}

TEST(FrameworkScore, CallsAFrameworkAsTheTableDoes) {
  Validation validation;
  validation.rows = {run_of("a", "megatron-core", "2023", 0.5)};
  validation.rows[0].row.stack_called = "megatron-lm";
  EXPECT_EQ(score_frameworks(validation, {})[0].framework, "megatron-lm");
}

}  // namespace
}  // namespace shardwright::sim
