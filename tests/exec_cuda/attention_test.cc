// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/core/base/error.h"

namespace shardwright::exec::cuda {
namespace {

using kernels::cuda::Attention;
using kernels::cuda::AttentionBackward;
using kernels::cuda::AttentionForward;
using kernels::cuda::AttentionProblem;

/// One that only says whether it takes documents.
class Named : public Attention {
 public:
  Named(std::string name, bool takes_documents, bool repeatable = true)
      : name_(std::move(name)), takes_documents_(takes_documents), repeatable_(repeatable) {}
  std::string_view name() const override { return name_; }
  bool repeatable() const override { return repeatable_; }
  std::string refusal(const AttentionProblem& problem) override {
    return problem.documents && !takes_documents_ ? "cannot mask packed documents" : "";
  }
  // The one that does not repeat needs more than the others.
  Bytes forward_workspace_bytes(const AttentionProblem&) override { return repeatable_ ? 0 : 10; }
  Bytes backward_workspace_bytes(const AttentionProblem&) override { return repeatable_ ? 0 : 100; }
  void forward(const AttentionProblem&, const AttentionForward&, cudaStream_t) override {}
  void backward(const AttentionProblem&, const AttentionBackward&, cudaStream_t) override {}

 private:
  std::string name_;
  bool takes_documents_, repeatable_;
};

AttentionSet example() {
  AttentionSet::Implementations all;
  all.push_back(std::make_unique<Named>("hasty", false, false));
  all.push_back(std::make_unique<Named>("fast", false));
  all.push_back(std::make_unique<Named>("general", true));
  all.push_back(std::make_unique<Named>("slow", true));
  return AttentionSet(std::move(all));
}

std::string why(const AttentionProblem& problem, const AttentionPolicy& policy = {}) {
  AttentionSet set = example();
  return set.choose(problem, policy).why;
}

TEST(AttentionSet, TheFastestThatTakesTheProblemIsChosen) {
  AttentionProblem problem;
  EXPECT_EQ(why(problem), "attention by hasty: the fastest of this build");
  problem.documents = true;
  EXPECT_EQ(why(problem),
            "attention by general: hasty cannot mask packed documents; "
            "fast cannot mask packed documents");
}

TEST(AttentionSet, AWishIsGrantedOrTheReasonSaid) {
  AttentionProblem problem;
  EXPECT_EQ(why(problem, {.wish = "slow"}), "attention by slow: as asked");
  problem.documents = true;
  EXPECT_EQ(why(problem, {.wish = "fast"}),
            "attention by general: fast cannot mask packed documents; hasty cannot mask packed "
            "documents");
}

TEST(AttentionSet, WhereBitsMustRepeatOnlyWhatRepeatsIsTaken) {
  EXPECT_EQ(why({}, {.deterministic = true}),
            "attention by fast: the fastest that repeats to the bit");
  EXPECT_EQ(why({}, {.wish = "hasty", .deterministic = true}),
            "attention by fast: hasty does not repeat to the bit");
  EXPECT_FALSE(example().repeats("hasty"));
  EXPECT_TRUE(example().repeats("fast"));
}

TEST(AttentionSet, WhatNeedsMoreRoomThanThereIsSaysSo) {
  AttentionProblem problem;
  problem.most_workspace_bytes = 99;
  EXPECT_EQ(why(problem),
            "attention by fast: hasty needs 10 and 100 bytes of workspace, more than the plan has");
  problem.most_workspace_bytes = 100;
  EXPECT_EQ(why(problem), "attention by hasty: the fastest of this build");
  EXPECT_EQ(why(problem, {.most_forward_bytes = 9}),
            "attention by fast: hasty needs 10 and 100 bytes of workspace, more than the plan has");
}

TEST(AttentionSet, UnknownNamesListTheKnownOnes) {
  try {
    why({}, {.wish = "flsh"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "attention is 'flsh', expected auto or one of hasty, fast, general, slow");
  }
}

TEST(AttentionSet, ThisBuildHasItsOwnKernels) {
  EXPECT_THAT(AttentionSet().names(), ::testing::IsSupersetOf({"flash", "naive"}));
}

// The rule that the simulator reads says what is chosen, as far as this build has what it names.
TEST(AttentionSet, ChoosesByTheRuleThatIsPriced) {
  AttentionSet set;
  int own = 0;
  for (const DType dtype : {DType::kBf16, DType::kFp32}) {
    for (const std::int64_t head_dim : {16, 20, 64, 96, 128, 256}) {
      for (const double softcap : {0.0, 30.0}) {
        for (const bool documents : {false, true}) {
          AttentionProblem problem{.shape = {.batch = 1,
                                             .seq = 64,
                                             .heads = 2,
                                             .kv_heads = 2,
                                             .head_dim = head_dim,
                                             .scale = 0.1,
                                             .softcap = softcap},
                                   .dtype = dtype,
                                   .documents = documents};
          problem.packed_stride = 6 * head_dim;
          problem.out_stride = 2 * head_dim;
          const AttentionForm form = attention_form(kernels::cuda::needs_of(problem));
          if (form < AttentionForm::kFlash) continue;
          ++own;
          EXPECT_EQ(set.choose(problem).implementation->name(), name_of(form))
              << name_of(dtype) << ' ' << head_dim << ' ' << softcap << ' ' << documents;
        }
      }
    }
  }
  EXPECT_GT(own, 20);
}

// Kernels are made for these numbers before the first step; a micro-batch takes the least that
// holds its documents.
TEST(AttentionSet, IsAskedForAFewNumbersOfDocuments) {
  EXPECT_EQ(document_bound(2, 0), 0);
  EXPECT_EQ(document_bound(2, 2), 8);
  EXPECT_EQ(document_bound(2, 8), 8);
  EXPECT_EQ(document_bound(2, 9), 32);
  EXPECT_EQ(document_bound(1, 64), 64);
  EXPECT_EQ(document_bound(1, 65), 0);
  for (const std::int64_t bound : document_bounds(3)) EXPECT_EQ(document_bound(3, bound), bound);
}

TEST(AttentionSet, WhenAllRefuseEveryReasonIsSaid) {
  AttentionSet::Implementations all;
  all.push_back(std::make_unique<Named>("one", false));
  AttentionSet set(std::move(all));
  AttentionProblem problem{.shape = {.seq = 8, .heads = 2, .head_dim = 64}, .documents = true};
  try {
    set.choose(problem);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "no attention takes 8 tokens with 2 heads of 64: one cannot mask packed documents");
  }
}

}  // namespace
}  // namespace shardwright::exec::cuda
