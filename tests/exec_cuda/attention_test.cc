// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/core/error.h"

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
  Bytes forward_workspace_bytes(const AttentionProblem&) override { return 0; }
  Bytes backward_workspace_bytes(const AttentionProblem&) override { return 0; }
  void forward(const AttentionProblem&, const AttentionForward&, cudaStream_t) override {}
  void backward(const AttentionProblem&, const AttentionBackward&, cudaStream_t) override {}

 private:
  std::string name_;
  bool takes_documents_, repeatable_;
};

AttentionSet example() {
  AttentionSet::Implementations all;
  all.push_back(std::make_unique<Named>("hasty", true, false));
  all.push_back(std::make_unique<Named>("fast", false));
  all.push_back(std::make_unique<Named>("general", true));
  all.push_back(std::make_unique<Named>("slow", true));
  return AttentionSet(std::move(all));
}

std::string why(const AttentionProblem& problem, std::string_view wish = "auto") {
  AttentionSet set = example();
  return set.choose(problem, wish).why;
}

TEST(AttentionSet, TheFastestThatTakesTheProblemIsChosen) {
  AttentionProblem problem;
  EXPECT_EQ(why(problem), "attention by fast: the fastest of this build");
  problem.documents = true;
  EXPECT_EQ(why(problem), "attention by general: fast cannot mask packed documents");
}

TEST(AttentionSet, AWishIsGrantedOrTheReasonSaid) {
  AttentionProblem problem;
  EXPECT_EQ(why(problem, "slow"), "attention by slow: as asked");
  problem.documents = true;
  EXPECT_EQ(why(problem, "fast"), "attention by general: fast cannot mask packed documents");
}

TEST(AttentionSet, WhatDoesNotRepeatIsTakenOnlyWhenWishedFor) {
  EXPECT_EQ(why({}, "hasty"), "attention by hasty: as asked");
}

TEST(AttentionSet, UnknownNamesListTheKnownOnes) {
  try {
    why({}, "flsh");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "attention is 'flsh', expected auto or one of hasty, fast, general, slow");
  }
}

TEST(AttentionSet, ThisBuildHasItsOwnKernels) {
  EXPECT_THAT(AttentionSet().names(), ::testing::IsSupersetOf({"flash", "naive"}));
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
