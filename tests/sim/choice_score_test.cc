// SPDX-License-Identifier: Apache-2.0
#include "sim/score/choice_score.h"

#include <gtest/gtest.h>

namespace shardwright::sim {
namespace {

ValidatedRow row(const std::string& id, double measured_s, double predicted_s) {
  ValidatedRow row;
  row.row.id = id;
  row.row.source = "somebody";
  row.row.model.name = "7B";
  row.row.gpu = "h100-80g";
  row.row.plan.gpus = 64;
  row.row.plan.seq_len = 4096;
  row.row.iteration_s = measured_s;
  row.prediction.time.iteration_s = predicted_s;
  row.time_error = predicted_s / measured_s - 1;
  return row;
}

Validation of(std::vector<ValidatedRow> rows) {
  Validation validation;
  validation.rows = std::move(rows);
  return validation;
}

TEST(ChoiceScore, LosesWhatTheFirstChoiceTookMore) {
  const ChoiceScore score = score_choices(
      of({row("a", 1.0, 2.2), row("b", 1.1, 2.0), row("c", 2.0, 4.0), row("d", 1.3, 3.0)}));
  ASSERT_EQ(score.groups.size(), 1U);
  const ChoiceGroup& group = score.groups.front();
  EXPECT_EQ(group.layouts, 4);
  EXPECT_EQ(group.chosen, "b");
  EXPECT_EQ(group.best, "a");
  EXPECT_NEAR(group.regret, 0.1, 1e-12);
  EXPECT_NEAR(group.random_regret, (0 + 0.1 + 1.0 + 0.3) / 4, 1e-12);
  EXPECT_NEAR(group.kendall_tau, (5 - 1) / 6.0, 1e-12);  // of six pairs one is the wrong way round
  EXPECT_DOUBLE_EQ(score.regret_mean, group.regret);
  EXPECT_DOUBLE_EQ(score.regret_worst, group.regret);
}

TEST(ChoiceScore, OppositeOrdersHaveMinusOne) {
  const ChoiceScore score = score_choices(of({row("a", 1, 3), row("b", 2, 2), row("c", 3, 1)}));
  ASSERT_EQ(score.groups.size(), 1U);
  EXPECT_DOUBLE_EQ(score.kendall_tau, -1);
  EXPECT_DOUBLE_EQ(score.regret_worst, 2);
}

TEST(ChoiceScore, ComparesOnlyWhatSomebodyCouldHaveChosen) {
  ValidatedRow other_batch = row("b", 0.5, 0.5);
  other_batch.row.plan.grad_accum = 2;
  ValidatedRow other_cluster = row("c", 0.5, 0.4);
  other_cluster.row.plan.gpus = 128;
  ValidatedRow other_release = row("d", 0.5, 0.3);
  other_release.row.version = "next";
  ValidatedRow doubtful = row("e", 0.5, 0.2);
  doubtful.row.suspect = "contradicted by a";
  EXPECT_TRUE(
      score_choices(of({row("a", 1, 1), other_batch, other_cluster, other_release, doubtful}))
          .groups.empty());
}

// Two sequences of one rank, or one sequence of twice as many micro-batches, are the same batch.
TEST(ChoiceScore, BatchesAreCountedOverAllRanks) {
  ValidatedRow one = row("a", 1, 1), other = row("b", 2, 2);
  one.row.plan.micro_batch = 2;
  other.row.plan.parallel.tp = 2;
  other.row.plan.grad_accum = 4;
  const ChoiceScore score = score_choices(of({one, other}));
  ASSERT_EQ(score.groups.size(), 1U);
  EXPECT_EQ(score.groups.front().sequences, 128);
}

}  // namespace
}  // namespace shardwright::sim
