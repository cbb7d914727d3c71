// SPDX-License-Identifier: Apache-2.0
// Cross-entropy of whole logits, and of logits in parts of the vocabulary.
#include "sim/core/base/error.h"
#include "tests/kernels/contract.h"
#include "tests/oracle/cross_entropy.h"

namespace shardwright::kernels::contract {
namespace {

using exec::kIgnoreTarget;
using exec::LossSums;

constexpr double kCaps[] = {0.0, 5.0};
constexpr auto takes_logits = [](const Executor& executor, DType type) {
  return !executor.is_host || type == DType::kFp32;
};

class LossKernels : public Kernels {
 protected:
  std::int64_t rows() const { return executor().is_slow ? 9 : 50; }
  Tokens targets(std::int64_t vocab) const {
    Tokens all = random_tokens(3, rows(), vocab);
    all[0] = all[7] = all.back() = kIgnoreTarget;
    all[1] = 0;
    all[2] = static_cast<std::int32_t>(vocab - 1);
    return all;
  }
  double of_gradients() const { return roundoff(type()) + (executor().is_host ? 3e-6 : 2e-6); }

  struct Loss {
    Numbers logits, parts;
    LossSums sums;
    Results results() const {
      return {logits, parts, {sums.loss, static_cast<double>(sums.tokens)}};
    }
  };
  /// Of whole rows.
  Loss whole(const Place& on, const Numbers& logits, const Tokens& targets, double cap,
             bool gradient = true) const {
    const auto in = on.put(type(), logits);
    const auto at = on.raw(targets);
    const auto sums = on.raw(std::vector<LossSums>(1));
    const auto scratch = on.raw(std::vector<double>(targets.size(), NAN));
    on->cross_entropy(on.stream, in.matrix(std::ssize(logits) / std::ssize(targets)), at.data(),
                      cap, gradient, sums.data(), scratch.data());
    return {in.get(), {}, sums.get()[0]};
  }
  /// Of whole rows in parts of some widths, each a range of columns.
  Loss in_parts(const Place& on, const Numbers& logits, const Tokens& targets,
                const std::vector<std::int64_t>& widths, double cap, bool gradient = true) const {
    const std::int64_t count = std::ssize(targets);
    const auto in = on.put(type(), logits);
    const auto at = on.raw(targets);
    const auto sums = on.raw(std::vector<LossSums>(1));
    const auto scratch = on.raw(std::vector<double>(targets.size(), NAN));
    const auto parts = on.raw(std::vector<VocabularyPart>(widths.size() * targets.size()));
    const exec::Matrix all = in.matrix(std::ssize(logits) / count);
    const auto each = [&](auto body) {
      std::int64_t first = 0, part = 0;
      for (const std::int64_t width : widths) {
        body(part++, first, all.col_range(first, width));
        first += width;
      }
      EXPECT_EQ(first, all.cols);
    };
    each([&](std::int64_t part, std::int64_t first, const exec::Matrix& columns) {
      on->vocabulary_statistics(on.stream, columns, at.data(), first, cap,
                                parts.data() + part * count);
    });
    each([&](std::int64_t part, std::int64_t first, const exec::Matrix& columns) {
      on->vocabulary_loss(on.stream, columns, at.data(), first, cap, gradient,
                          {parts.data(), std::ssize(widths), count},
                          part == 0 ? sums.data() : nullptr, part == 0 ? scratch.data() : nullptr);
    });
    return {in.get(), flat(parts.get()), sums.get()[0]};
  }
  static Numbers flat(const std::vector<VocabularyPart>& parts) {
    Numbers all;
    for (const VocabularyPart& part : parts) {
      all.insert(all.end(), {part.maximum, part.exponents, part.target});
    }
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(On, LossKernels, ::testing::ValuesIn(cases(takes_logits)), parameter_name);

TEST_P(LossKernels, CrossEntropyMatchesTheOracle) {
  // Rows of an odd length begin at every displacement.
  for (const std::int64_t vocab : {1, 2, 5, 101, 700, 5003}) {
    const auto logits = random(type(), 1, rows() * vocab, 4.0);
    for (const double cap : kCaps) {
      if (cap != 0 && vocab > 700) continue;
      const auto expected = reference::cross_entropy(logits, targets(vocab), kIgnoreTarget, 1, cap);
      Numbers kept;
      const auto result = everywhere([&](const Place& on) {
        Results all = whole(on, logits, targets(vocab), cap).results();
        const Results evaluated = whole(on, logits, targets(vocab), cap, false).results();
        kept = evaluated[0];
        EXPECT_TRUE(same_bits({evaluated[2]}, {all[2]}));
        return all;
      });
      // The host may leave what it has made of them.
      EXPECT_TRUE(executor().is_host || cap != 0 || same_bits({kept}, {logits}));
      expect_close(result[0], expected.d_logits, of_gradients(), "d_logits",
                   executor().is_host && vocab == 1 ? 1 : 0);
      EXPECT_NEAR(result[2][0], expected.sum, 2e-6 * expected.sum + 1e-9) << vocab;
      EXPECT_EQ(result[2][1], static_cast<double>(expected.count));
    }
  }
}

TEST_P(LossKernels, CrossEntropyAddsToTheSums) {
  const auto logits = random(type(), 1, 9 * 40);
  const Tokens some = random_tokens(3, 9, 40);
  const auto in = first().put(type(), logits);
  const auto at = first().raw(some);
  const auto sums = first().raw(std::vector<LossSums>{{100.0, 1000}});
  const auto scratch = first().raw(std::vector<double>(9, NAN));
  first()->cross_entropy(first().stream, in.matrix(40), at.data(), 0, true, sums.data(),
                         scratch.data());
  EXPECT_NEAR(sums.get()[0].loss - 100, whole(first(), logits, some, 0).sums.loss, 1e-10);
  EXPECT_EQ(sums.get()[0].tokens, 1009);
}

TEST_P(LossKernels, AllIgnoredIsZero) {
  const Loss loss = whole(first(), Numbers(20, NAN), Tokens(4, kIgnoreTarget), 0);
  EXPECT_EQ(loss.sums.loss, 0.0);
  EXPECT_EQ(loss.sums.tokens, 0);
  EXPECT_EQ(loss.logits, Numbers(20, 0.0));
}

TEST_P(LossKernels, LargeLogitsDoNotOverflow) {
  Numbers logits(600, rounded(type(), -1e30));
  logits[77] = rounded(type(), 1e30);
  logits[300 + 5] = 200;
  logits[300 + 6] = -INFINITY;
  const Loss loss = whole(first(), logits, {77, 5}, 0);
  EXPECT_EQ(loss.sums.loss, 0.0);
  EXPECT_EQ(loss.logits, Numbers(600, 0.0));
}

TEST_P(LossKernels, NaNReachesTheLoss) {
  for (const std::int64_t vocab : {9, 50}) {
    auto logits = random(type(), 1, 4 * vocab);
    logits[static_cast<std::size_t>(vocab + 4)] = NAN;
    for (const bool gradient : {false, true}) {
      EXPECT_TRUE(std::isnan(whole(first(), logits, {0, 1, 2, 3}, 0, gradient).sums.loss)) << vocab;
    }
  }
}

// The host refuses them; elsewhere they show as NaN.
TEST_P(LossKernels, TargetsOutsideTheVocabularyShow) {
  for (const std::int32_t wrong : {-1, 6}) {
    for (const bool parts : {false, true}) {
      const Place on(executor().make(0));
      const Numbers logits(12, 1.0);
      const auto loss = [&] {
        return parts ? in_parts(on, logits, {0, wrong}, {3, 3}, 0)
                     : whole(on, logits, {0, wrong}, 0);
      };
      if (executor().is_host) {
        EXPECT_THROW(loss(), Error) << wrong;
      } else {
        EXPECT_TRUE(std::isnan(loss().sums.loss)) << wrong;
      }
    }
  }
}

TEST_P(LossKernels, OnePartIsCrossEntropyBitForBit) {
  // Where rows begin at multiples of 16 bytes; the host's may begin anywhere.
  std::vector<std::int64_t> sizes{8, 704, 5000};
  if (executor().is_host) sizes = {2, 33, 101, 700, 5000};
  for (const std::int64_t vocab : sizes) {
    const auto logits = random(type(), 1, rows() * vocab, 3.0);
    for (const double cap : kCaps) {
      const Loss one = in_parts(first(), logits, targets(vocab), {vocab}, cap);
      const Loss all = whole(first(), logits, targets(vocab), cap);
      EXPECT_TRUE(same_bits({one.logits, one.results()[2]}, {all.logits, all.results()[2]}))
          << vocab << " " << cap;
    }
  }
}

TEST_P(LossKernels, PartsMatchTheOracle) {
  const std::int64_t vocab = 705;
  const auto logits = random(type(), 1, rows() * vocab, 3.0);
  const Tokens at = targets(vocab);
  for (const std::vector<std::int64_t>& widths :
       {std::vector<std::int64_t>{353, 352}, {1, 99, 3, 600, 2}, {705, 0}}) {
    for (const double cap : kCaps) {
      const auto expected = reference::cross_entropy(logits, at, kIgnoreTarget, 1, cap);
      const auto result = everywhere(
          [&](const Place& on) { return in_parts(on, logits, at, widths, cap).results(); });
      expect_close(result[0], expected.d_logits, of_gradients(), "d_logits");
      EXPECT_NEAR(result[2][0], expected.sum, 2e-6 * expected.sum);
      EXPECT_EQ(result[2][1], static_cast<double>(expected.count));
      auto part = result[1].begin();
      std::int64_t first = 0;
      for (const std::int64_t width : widths) {
        for (std::int64_t row = 0; row < rows(); ++row, part += 3) {
          const std::int32_t target = at[static_cast<std::size_t>(row)];
          const bool mine = target >= first && target < first + width;
          EXPECT_EQ(std::signbit(part[2]) && part[2] == 0, !mine) << row << " from " << first;
          if (target == kIgnoreTarget || width == 0) continue;
          const auto begin = logits.begin() + row * vocab;
          const auto right =
              reference::vocabulary_part({begin, begin + vocab}, target, first, width, cap);
          EXPECT_NEAR(part[0], right.maximum, 1e-5);
          EXPECT_NEAR(part[1], right.exponents, 1e-5 * right.exponents);
          EXPECT_NEAR(part[2], right.target, 1e-5);
        }
        first += width;
      }
    }
  }
}

// Eight parts on 1, 2, 4 and 8 ranks, whose rows are as long as the rank's columns and begin
// anywhere.
TEST_P(LossKernels, RanksGiveTheBitsOfOne) {
  for (const std::int64_t width : {37, 1301}) {
    const std::int64_t vocab = 8 * width;
    const auto logits = random(type(), 1, rows() * vocab, 3.0);
    const Place& on = first();
    const auto at = on.raw(targets(vocab));
    const double cap = width == 37 ? 5.0 : 0.0;
    const Loss one = in_parts(on, logits, targets(vocab), std::vector<std::int64_t>(8, width), cap);
    std::vector<VocabularyPart> parts;
    for (std::size_t i = 0; i < one.parts.size(); i += 3) {
      parts.push_back({static_cast<float>(one.parts[i]), static_cast<float>(one.parts[i + 1]),
                       static_cast<float>(one.parts[i + 2])});
    }
    const auto all = on.raw(parts);
    for (const std::int64_t ranks : {2, 4, 8}) {
      const std::int64_t cols = vocab / ranks;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const auto mine = on.put(type(), columns(logits, vocab, rank * cols, cols), rank % 3);
        for (std::int64_t first = 0; first < cols; first += width) {
          const exec::Matrix columns = mine.matrix(cols).col_range(first, width);
          const auto part = on.raw(std::vector<VocabularyPart>(parts.size() / 8));
          const auto sums = on.raw(std::vector<LossSums>(1));
          const auto scratch = on.raw(std::vector<double>(parts.size() / 8, NAN));
          on->vocabulary_statistics(on.stream, columns, at.data(), rank * cols + first, cap,
                                    part.data());
          on->vocabulary_loss(on.stream, columns, at.data(), rank * cols + first, cap, true,
                              {all.data(), 8, rows()}, sums.data(), scratch.data());
          const auto begin = one.parts.begin() + (rank * cols + first) / width * 3 * rows();
          EXPECT_TRUE(same_bits({flat(part.get())}, {Numbers(begin, begin + 3 * rows())}));
          EXPECT_EQ(sums.get()[0].loss, one.sums.loss);
        }
        EXPECT_TRUE(same_bits({mine.get()}, {columns(one.logits, vocab, rank * cols, cols)}))
            << rank << " of " << ranks;
      }
    }
  }
}

TEST_P(LossKernels, PartsKeepLogitsWithoutGradient) {
  const auto logits = random(type(), 1, rows() * 40);
  const Loss kept = in_parts(first(), logits, targets(40), {40}, 0, false);
  EXPECT_TRUE(same_bits({kept.logits}, {logits}));
  EXPECT_EQ(kept.sums.loss, in_parts(first(), logits, targets(40), {40}, 0).sums.loss);
}

// A part may be masked; a target's logit may be -0.
TEST_P(LossKernels, ZeroesAndInfinitiesOfPartsAreNumbers) {
  const Loss masked = in_parts(first(), {-INFINITY, -INFINITY, -0.0, -0.0}, {2}, {2, 2}, 0);
  EXPECT_NEAR(masked.sums.loss, std::log(2.0), 1e-6);
  EXPECT_EQ(masked.logits, (Numbers{0, 0, -0.5, 0.5}));
  const double far = rounded(type(), 1e30);
  EXPECT_EQ(in_parts(first(), {far, 0, -far, -far}, {0}, {2, 2}, 0).sums.loss, 0.0);
  EXPECT_TRUE(std::isnan(in_parts(first(), {0, 0, NAN, 0}, {0}, {2, 2}, 0).sums.loss));
}

}  // namespace
}  // namespace shardwright::kernels::contract
