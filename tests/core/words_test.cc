// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/words.h"

#include <gtest/gtest.h>

namespace shardwright {

namespace {

const std::vector<std::string> kVerbs{"predict", "tune", "run", "doctor", "--micro-batch"};

TEST(Nearest, FindsSlipsOfTheFinger) {
  EXPECT_EQ(nearest("predct", kVerbs), "predict");
  EXPECT_EQ(nearest("rpedict", kVerbs), "predict") << "neighbours swapped count once";
  EXPECT_EQ(nearest("doctor", kVerbs), "doctor");
  EXPECT_EQ(nearest("--microbatch", kVerbs), "--micro-batch");
  EXPECT_EQ(nearest("rum", kVerbs), "run");
}

TEST(Nearest, SaysNothingRatherThanNonsense) {
  EXPECT_EQ(nearest("frobnicate", kVerbs), std::nullopt);
  EXPECT_EQ(nearest("", kVerbs), std::nullopt);
  EXPECT_EQ(nearest("predict", {}), std::nullopt);
}

TEST(Nearest, TheFirstOfEquallyNearWins) {
  EXPECT_EQ(nearest("cat", {"cut", "car", "cat1"}), "cut");
}

TEST(Nearest, CaseDoesNotCount) {
  EXPECT_EQ(nearest("PREDICT", kVerbs), "predict");
  EXPECT_EQ(nearest("fsdp", {"DDP", "FSDP1"}), "FSDP1");
}

TEST(Nearest, APartOfAWordSuggestsIt) {
  EXPECT_EQ(nearest("--batch", {"--model", "--global-batch", "--micro-batch"}), "--micro-batch");
  EXPECT_EQ(nearest("--ckpt", {"--ckpt-layers", "--gpus"}), "--ckpt-layers");
  EXPECT_EQ(nearest("-m", {"--m-model"}), std::nullopt) << "two letters are part of too much";
}

TEST(NearestFew, LooksAtPartsWithoutCase) {
  const std::vector<std::string> clusters{
      "a100-80g-4xhdr200", "a100-pcie8", "azure-mi300x", "dgx-h100",
      "h100-nvl8",         "host",       "p4d",          "p5"};
  EXPECT_EQ(nearest_few("H100", clusters, 2), (std::vector<std::string>{"dgx-h100", "h100-nvl8"}));
  EXPECT_EQ(nearest_few("A100-80GB", clusters, 1).front(), "a100-80g-4xhdr200");
  EXPECT_EQ(nearest_few("mi355x", clusters, 1).front(), "azure-mi300x");
  EXPECT_EQ(nearest_few("p6", clusters, 1).front(), "p5");
}

// Comparing all of it would take hours and tens of gigabytes.
TEST(NearestFew, AWordOfMegabytesIsCut) {
  std::string word = "dgx-h100";
  while (word.size() < (std::size_t{1} << 26)) word += word;
  EXPECT_EQ(nearest_few(word, {"host", "dgx-h100"}, 1).front(), "dgx-h100");
  EXPECT_EQ(nearest(word, {"host", "dgx-h100"}), std::nullopt);
}

TEST(DidYouMean, CompletesASentence) {
  EXPECT_EQ(did_you_mean("tun", kVerbs), ", did you mean 'tune'?");
  EXPECT_EQ(did_you_mean("frobnicate", kVerbs), "");
}

}  // namespace

}  // namespace shardwright
