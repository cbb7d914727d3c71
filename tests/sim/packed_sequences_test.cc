// SPDX-License-Identifier: Apache-2.0
// Documents that are packed in a sequence attend to themselves alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/core/base/error.h"
#include "sim/predict.h"
#include "sim/program/layer_program.h"
#include "sim/program/program_writer.h"
#include "tests/sim/model_parallel_plans.h"

namespace shardwright::sim {
namespace {

using ::testing::HasSubstr;

Plan packed(std::int64_t length) {
  Plan plan = plan_of(64, 8, 1, 4);
  plan.packed_length = length;
  return plan;
}

double attended_by(const Plan& plan) {
  const UnitProgram layer = ProgramWriter(llama_70b(), plan, h100().stack).layer(false);
  for (const Op& op : layer.forward) {
    if (op.kind == OpKind::kAttention) return op.work.attended;
  }
  return 0;
}

// Causal scores of S / L documents of L tokens: S L / 2 of S^2 / 2.
TEST(PackedSequences, AttentionIsThatOfTheDocuments) {
  EXPECT_DOUBLE_EQ(attended_by(packed(0)), 1);
  EXPECT_DOUBLE_EQ(attended_by(packed(1024)), 1024.0 / 8192);
  EXPECT_DOUBLE_EQ(attended_by(packed(8192)), 1);
}

TEST(PackedSequences, StepsAreThoseOfAsManyTokensInShortSequences) {
  const Model model = llama_70b();
  Plan apart = packed(0);
  apart.seq_len = 1024;
  apart.micro_batch = 8;
  const Plan together = packed(1024);
  EXPECT_DOUBLE_EQ(model_flops(model, together), model_flops(model, apart));
  const double together_s = predict(model, h100(), together).time.iteration_s;
  EXPECT_LT(together_s, 0.97 * predict(model, h100(), packed(0)).time.iteration_s);
  EXPECT_NEAR(together_s, predict(model, h100(), apart).time.iteration_s, 0.03 * together_s);
}

TEST(PackedSequences, DocumentsLongerThanTheSequenceAreRefused) {
  try {
    check_plan(packed(9000), 80, 8);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("packed_length is 9000"));
  }
}

}  // namespace
}  // namespace shardwright::sim
