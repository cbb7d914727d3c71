// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/vocabulary_loss.h"

#include <bit>

#include "sim/core/base/error.h"
#include "tests/kernels/support.h"
#include "tests/oracle/cross_entropy.h"

namespace shardwright::kernels::host {
namespace {

using testing::Data;
using testing::expect_close;
using testing::on_every_isa;
using testing::Outputs;
using testing::random_data;
using testing::same_bits;

constexpr std::int64_t kRows = 21;
constexpr double kCaps[] = {0.0, 5.0};

std::vector<std::int32_t> some_targets(std::int64_t vocab) {
  auto targets = testing::random_tokens(3, kRows, vocab);
  targets[0] = targets[13] = kIgnoreTarget;
  targets[1] = 0;
  targets[2] = static_cast<std::int32_t>(vocab - 1);
  return targets;
}

/// The loss of whole logits in parts of some widths, each a range of columns.
struct InParts {
  std::vector<float> logits;
  std::vector<VocabularyPart> parts;  // [parts][rows]
  LmLoss loss;

  InParts(Parallel& parallel, std::vector<float> whole, const std::vector<std::int32_t>& targets,
          const std::vector<std::int64_t>& widths, double softcap)
      : logits(std::move(whole)), parts(widths.size() * targets.size()) {
    const std::int64_t rows = std::ssize(targets), vocab = std::ssize(logits) / rows;
    std::vector<double> losses(targets.size(), NAN);
    const VocabularyParts table{parts.data(), std::ssize(widths), rows};
    const auto each = [&](auto body) {
      std::int64_t first = 0;
      for (std::size_t p = 0; p < widths.size(); first += widths[p++]) {
        body(p, first, Matrix<float>(logits.data() + first, rows, widths[p], vocab));
      }
      EXPECT_EQ(first, vocab);
    };
    each([&](std::size_t p, std::int64_t first, Matrix<float> columns) {
      vocabulary_statistics(parallel, columns, targets, first,
                            std::span(parts).subspan(p * targets.size(), targets.size()), softcap);
    });
    each([&](std::size_t p, std::int64_t first, Matrix<float> columns) {
      const LmLoss counted =
          vocabulary_loss(parallel, columns, targets, first, table, true,
                          p == 0 ? std::span(losses) : std::span<double>(), softcap);
      if (p == 0) {
        loss = counted;
      } else {
        EXPECT_EQ(counted.count, 0);
      }
    });
  }
};

TEST(VocabularyLoss, OnePartIsCrossEntropyBitForBit) {
  for (const std::int64_t vocab : {2, 33, 101, 700}) {
    for (const double cap : kCaps) {
      const auto logits = random_data<float>(1, kRows * vocab, 3.0);
      const auto targets = some_targets(vocab);
      for (const Isa isa : supported_isas()) {
        Parallel parallel(2, isa);
        std::vector<float> expected = logits.typed;
        std::vector<double> losses(targets.size(), NAN);
        const LmLoss loss =
            cross_entropy(parallel, {expected.data(), kRows, vocab}, targets, true, losses, cap);
        const InParts one(parallel, logits.typed, targets, {vocab}, cap);
        EXPECT_EQ(one.loss.sum, loss.sum) << vocab << " " << cap << " " << name_of(isa);
        EXPECT_EQ(one.loss.count, loss.count);
        EXPECT_TRUE(same_bits(one.logits, expected)) << vocab << " " << cap << " " << name_of(isa);
      }
    }
  }
}

void expect_parts(const std::vector<VocabularyPart>& parts, const Data<float>& logits,
                  const std::vector<std::int32_t>& targets, const std::vector<std::int64_t>& widths,
                  double cap) {
  const std::size_t rows = targets.size(), vocab = logits.exact.size() / rows;
  std::int64_t first = 0;
  for (std::size_t p = 0; p < widths.size(); first += widths[p++]) {
    for (std::size_t r = 0; r < rows; ++r) {
      const VocabularyPart& part = parts[p * rows + r];
      const bool mine = targets[r] >= first && targets[r] < first + widths[p];
      EXPECT_EQ(std::signbit(part.target) && part.target == 0, !mine) << p << " " << r;
      if (targets[r] == kIgnoreTarget) continue;
      const auto begin = logits.exact.begin() + static_cast<std::ptrdiff_t>(r * vocab);
      const auto expected = reference::vocabulary_part(
          {begin, begin + static_cast<std::ptrdiff_t>(vocab)}, targets[r], first, widths[p], cap);
      EXPECT_NEAR(part.maximum, expected.maximum, 1e-5);
      EXPECT_NEAR(part.exponents, expected.exponents, 1e-5 * expected.exponents);
      EXPECT_NEAR(part.target, expected.target, 1e-5);
    }
  }
}

TEST(VocabularyLoss, PartsMatchTheOracle) {
  const std::int64_t vocab = 700;
  const auto logits = random_data<float>(1, kRows * vocab, 3.0);
  const auto targets = some_targets(vocab);
  for (const std::vector<std::int64_t>& widths :
       {std::vector<std::int64_t>{350, 350}, {1, 99, 3, 500, 97}, {700, 0}}) {
    for (const double cap : kCaps) {
      const auto expected = reference::cross_entropy(logits.exact, targets, kIgnoreTarget, 1, cap);
      on_every_isa(
          [&](Parallel& parallel) {
            const InParts run(parallel, logits.typed, targets, widths, cap);
            EXPECT_EQ(run.loss.count, expected.count);
            return Outputs(run.logits, std::vector<double>{run.loss.sum}, run.parts);
          },
          [&](const auto& result, const std::string& isa) {
            EXPECT_NEAR(result.template get<1>()[0], expected.sum, 1e-6 * expected.sum);
            expect_close(result.template get<0>(), expected.d_logits, 3e-6, isa + " d_logits");
            if (widths.back() > 0) {
              expect_parts(result.template get<2>(), logits, targets, widths, cap);
            }
          });
    }
  }
}

// Eight parts on 1, 2, 4 and 8 ranks, whose rows are as long as the rank's columns.
TEST(VocabularyLoss, RanksGiveTheBitsOfOne) {
  const std::int64_t width = 37, vocab = 8 * width;
  const auto logits = random_data<float>(1, kRows * vocab, 3.0);
  const auto targets = some_targets(vocab);
  for (const double cap : kCaps) {
    Parallel parallel(2);
    const InParts one(parallel, logits.typed, targets, std::vector<std::int64_t>(8, width), cap);
    const VocabularyParts table{one.parts.data(), 8, kRows};
    for (const std::int64_t ranks : {2, 4, 8}) {
      const std::int64_t cols = vocab / ranks;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        std::vector<float> mine, expected;
        for (std::int64_t i = 0; i < kRows * cols; ++i) {
          const auto at = static_cast<std::size_t>(i / cols * vocab + rank * cols + i % cols);
          mine.push_back(logits.typed[at]);
          expected.push_back(one.logits[at]);
        }
        for (std::int64_t first = 0; first < cols; first += width) {
          const Matrix<float> columns(mine.data() + first, kRows, width, cols);
          std::vector<VocabularyPart> part(targets.size());
          vocabulary_statistics(parallel, columns, targets, rank * cols + first, part, cap);
          const std::int64_t index = (rank * cols + first) / width;
          EXPECT_EQ(0, std::memcmp(part.data(), one.parts.data() + index * kRows,
                                   part.size() * sizeof part[0]));
          std::vector<double> losses(targets.size(), NAN);
          const LmLoss loss = vocabulary_loss(parallel, columns, targets, rank * cols + first,
                                              table, true, losses, cap);
          EXPECT_EQ(loss.sum, one.loss.sum);
        }
        EXPECT_TRUE(same_bits(mine, expected)) << rank << " of " << ranks;
      }
    }
  }
}

TEST(VocabularyLoss, KeepsLogitsWithoutGradient) {
  const auto logits = random_data<float>(1, kRows * 40);
  const auto targets = some_targets(40);
  std::vector<float> kept = logits.typed;
  std::vector<VocabularyPart> parts(targets.size());
  std::vector<double> losses(targets.size());
  Parallel parallel(1);
  vocabulary_statistics(parallel, {kept.data(), kRows, 40}, targets, 0, parts);
  const LmLoss loss = vocabulary_loss(parallel, {kept.data(), kRows, 40}, targets, 0,
                                      {parts.data(), 1, kRows}, false, losses);
  EXPECT_TRUE(same_bits(kept, logits.typed));
  EXPECT_EQ(loss.sum, InParts(parallel, logits.typed, targets, {40}, 0).loss.sum);
}

// A part may be masked; a target's logit may be -0.
TEST(VocabularyLoss, ZeroesAndInfinitiesAreNumbers) {
  for (const Isa isa : supported_isas()) {
    Parallel parallel(1, isa);
    const InParts masked(parallel, {-INFINITY, -INFINITY, -0.0f, -0.0f}, {2}, {2, 2}, 0);
    EXPECT_NEAR(masked.loss.sum, std::log(2.0), 1e-6);
    EXPECT_EQ(masked.logits, (std::vector<float>{0.0f, 0.0f, -0.5f, 0.5f}));
    const InParts far(parallel, {1e30f, 0.0f, -1e30f, -1e30f}, {0}, {2, 2}, 0);
    EXPECT_EQ(far.loss.sum, 0.0);
    const InParts broken(parallel, {0.0f, 0.0f, NAN, 0.0f}, {0}, {2, 2}, 0);
    EXPECT_TRUE(std::isnan(broken.loss.sum)) << name_of(isa);
  }
}

TEST(VocabularyLoss, TargetsThatNoPartHasAreNamed) {
  Parallel parallel(1);
  for (const std::int32_t wrong : {-1, 6}) {
    EXPECT_THROW(InParts(parallel, std::vector<float>(12), {0, wrong}, {3, 3}, 0), Error);
  }
}

}  // namespace
}  // namespace shardwright::kernels::host
