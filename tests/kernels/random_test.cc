// SPDX-License-Identifier: Apache-2.0
#include "kernels/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace shardwright::kernels {
namespace {

// Known answers of philox4x32-10 from the authors' Random123 distribution (kat_vectors).
TEST(Random, PhiloxMatchesItsAuthorsAnswers) {
  using Block = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, AnyCutOfAnArrayDrawsTheSameWords) {
  const RandomStream stream{
      .seed = 0x123456789abcdefull, .site = RandomSite::kRoundMoments, .step = 9};
  const std::uint64_t first = (std::uint64_t{1} << 36) - 130;  // crosses a carry into block high
  std::vector<std::uint32_t> whole(500);
  random_words(stream, first, whole);
  for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_EQ(whole[i], stream.word(first + i)) << i;
  for (const std::size_t cut : {1u, 63u, 64u, 65u, 129u, 499u}) {
    std::vector<std::uint32_t> parts(500);
    random_words(stream, first, std::span(parts).first(cut));
    random_words(stream, first + cut, std::span(parts).subspan(cut));
    EXPECT_EQ(parts, whole) << cut;
  }
}

TEST(Random, IndicesSeedsStepsAndSitesAreDistinct) {
  std::set<std::uint32_t> words;
  for (std::uint64_t i = 0; i < 4096; ++i) words.insert(RandomStream{.seed = 1}.word(i));
  EXPECT_GE(words.size(), 4094u);  // 4096 of 2^32: hardly any pair is equal
  const RandomStream base{.seed = 1, .site = RandomSite::kInit, .step = 1};
  EXPECT_NE(base.word(0), (RandomStream{.seed = 2, .site = RandomSite::kInit, .step = 1}).word(0));
  EXPECT_NE(base.word(0),
            (RandomStream{.seed = 1, .site = RandomSite::kShuffle, .step = 1}).word(0));
  EXPECT_NE(base.word(0), (RandomStream{.seed = 1, .site = RandomSite::kInit, .step = 2}).word(0));
}

TEST(Random, BelowIsUniform) {
  const RandomStream stream{.seed = 3, .site = RandomSite::kShuffle};
  constexpr std::uint64_t kBound = 7;
  std::vector<int> counts(kBound);
  for (std::uint64_t i = 0; i < 70000; ++i) {
    const std::uint64_t draw = stream.below(i, kBound);
    ASSERT_LT(draw, kBound);
    ++counts[draw];
  }
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);  // 5 standard deviations
  EXPECT_EQ(stream.below(5, 1), 0u);
}

TEST(Random, NormalHasItsMoments) {
  const RandomStream stream{.seed = 4};
  constexpr int kDraws = 200000;
  double sum = 0, squares = 0, fourth = 0, neighbours = 0, previous = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = stream.normal(static_cast<std::uint64_t>(i));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    neighbours += x * previous;
    previous = x;
  }
  EXPECT_NEAR(sum / kDraws, 0.0, 0.012);
  EXPECT_NEAR(squares / kDraws, 1.0, 0.02);
  EXPECT_NEAR(fourth / kDraws, 3.0, 0.12);
  EXPECT_NEAR(neighbours / kDraws, 0.0, 0.012);
}

TEST(Random, NormalInitialisationIgnoresTheCut) {
  const RandomStream stream{.seed = 6};
  std::vector<float> whole(101), parts(101);
  random_normal(stream, 1000, 0.5, 0.02, whole);
  random_normal(stream, 1000, 0.5, 0.02, std::span(parts).first(33));
  random_normal(stream, 1033, 0.5, 0.02, std::span(parts).subspan(33));
  EXPECT_EQ(whole, parts);
  EXPECT_NEAR(whole[0], 0.5f, 0.2f);
}

}  // namespace
}  // namespace shardwright::kernels
