// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/vocabulary_loss.h"

#include "kernels/cuda/cross_entropy.h"
#include "tests/kernels_cuda/support.h"
#include "tests/oracle/cross_entropy.h"

namespace shardwright::kernels::cuda {
namespace {

using testing::expect_close;
using testing::in_every_order;
using testing::OnDevice;
using testing::Outputs;
using testing::random_data;
using testing::same_bits;
using testing::unit_roundoff;

constexpr std::int32_t kNoTarget = -100;
constexpr std::int64_t kLossRows = 9;
constexpr double kCaps[] = {0.0, 5.0};

template <class T>
class CudaVocabularyLoss : public testing::CudaTest {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CudaVocabularyLoss, Types);

std::vector<std::int32_t> some_targets(std::int64_t vocab) {
  auto targets = testing::random_tokens(2, kLossRows, vocab);
  targets[0] = targets[7] = kNoTarget;
  targets[1] = 0;
  targets[2] = static_cast<std::int32_t>(vocab - 1);
  return targets;
}

/// Logits, parts, loss and count, of whole rows in parts of some widths.
template <class T>
auto in_parts(const std::vector<T>& whole, const std::vector<std::int32_t>& targets,
              const std::vector<std::int64_t>& widths, double softcap) {
  const std::int64_t rows = std::ssize(targets), vocab = std::ssize(whole) / rows;
  const OnDevice<T> logits(whole);
  const OnDevice<std::int32_t> on_targets(targets);
  const OnDevice<VocabularyPart> parts(std::ssize(widths) * rows);
  const OnDevice<double> loss(std::vector<double>{0.0}), losses(rows);
  const OnDevice<std::int64_t> count(std::vector<std::int64_t>{0});
  const VocabularyParts table{parts.data(), std::ssize(widths), rows};
  std::int64_t first = 0;
  for (std::size_t p = 0; p < widths.size(); first += widths[p++]) {
    vocabulary_statistics<T>(nullptr, {logits.data() + first, rows, widths[p], vocab},
                             on_targets.data(), kNoTarget, first,
                             parts.data() + static_cast<std::int64_t>(p) * rows, softcap);
  }
  vocabulary_losses(nullptr, on_targets.data(), rows, kNoTarget, table, loss.data(), count.data(),
                    losses.data());
  first = 0;
  for (std::size_t p = 0; p < widths.size(); first += widths[p++]) {
    vocabulary_gradient<T>(nullptr, {logits.data() + first, rows, widths[p], vocab},
                           on_targets.data(), kNoTarget, first, table, softcap);
  }
  return Outputs(logits.get(), parts.get(), loss.get(), count.get());
}

// Rows begin at multiples of 16 bytes.
TYPED_TEST(CudaVocabularyLoss, OnePartIsCrossEntropyBitForBit) {
  using T = TypeParam;
  for (const std::int64_t vocab : {8, 704, 5000}) {
    const auto logits = random_data<T>(1, kLossRows * vocab, 3.0);
    const auto targets = some_targets(vocab);
    for (const double cap : kCaps) {
      const OnDevice<T> in(logits.typed);
      const OnDevice<std::int32_t> on_targets(targets);
      const OnDevice<double> sum(std::vector<double>{0.0}), losses(kLossRows);
      const OnDevice<std::int64_t> count(std::vector<std::int64_t>{0});
      cross_entropy<T>(nullptr, {in.data(), kLossRows, vocab}, on_targets.data(), kNoTarget, true,
                       sum.data(), count.data(), losses.data(), cap);
      const auto one = in_parts<T>(logits.typed, targets, {vocab}, cap);
      EXPECT_TRUE(same_bits(one.template get<0>(), in.get())) << vocab << " " << cap;
      EXPECT_EQ(one.template get<2>(), sum.get()) << vocab << " " << cap;
      EXPECT_EQ(one.template get<3>(), count.get());
    }
  }
}

TYPED_TEST(CudaVocabularyLoss, PartsMatchTheOracle) {
  using T = TypeParam;
  const std::int64_t vocab = 705;
  const auto logits = random_data<T>(1, kLossRows * vocab, 3.0);
  const auto targets = some_targets(vocab);
  for (const std::vector<std::int64_t>& widths :
       {std::vector<std::int64_t>{353, 352}, {1, 99, 3, 600, 2}, {705, 0}}) {
    for (const double cap : kCaps) {
      const auto expected = reference::cross_entropy(logits.exact, targets, kNoTarget, 1.0, cap);
      const auto result =
          in_every_order([&] { return in_parts<T>(logits.typed, targets, widths, cap); });
      expect_close(result.template get<0>(), expected.d_logits, unit_roundoff<T>() + 2e-6,
                   "d_logits");
      EXPECT_NEAR(result.template get<2>()[0], expected.sum, 2e-6 * expected.sum);
      EXPECT_EQ(result.template get<3>()[0], expected.count);
    }
  }
}

// Eight parts whose rows begin anywhere among whole logits, and alone on a rank.
TYPED_TEST(CudaVocabularyLoss, WhereRowsBeginDoesNotChangeBits) {
  using T = TypeParam;
  const std::int64_t width = 1301, vocab = 8 * width;
  const auto logits = random_data<T>(1, kLossRows * vocab, 3.0);
  const auto targets = some_targets(vocab);
  const auto whole = in_parts<T>(logits.typed, targets, std::vector<std::int64_t>(8, width), 0.0);
  const OnDevice<std::int32_t> on_targets(targets);
  const OnDevice<VocabularyPart> all(whole.template get<1>());
  for (std::int64_t p = 0; p < 8; ++p) {
    std::vector<T> mine, expected;
    for (std::int64_t i = 0; i < kLossRows * width; ++i) {
      const auto at = static_cast<std::size_t>(i / width * vocab + p * width + i % width);
      mine.push_back(logits.typed[at]);
      expected.push_back(whole.template get<0>()[at]);
    }
    const OnDevice<T> on_mine(mine, p % 3);
    const OnDevice<VocabularyPart> part(kLossRows);
    vocabulary_statistics<T>(nullptr, {on_mine.data(), kLossRows, width}, on_targets.data(),
                             kNoTarget, p * width, part.data());
    const auto first = whole.template get<1>().begin() + p * kLossRows;
    EXPECT_TRUE(same_bits(part.get(), std::vector<VocabularyPart>(first, first + kLossRows))) << p;
    vocabulary_gradient<T>(nullptr, {on_mine.data(), kLossRows, width}, on_targets.data(),
                           kNoTarget, p * width, {all.data(), 8, kLossRows});
    EXPECT_TRUE(same_bits(on_mine.get(), expected)) << p;
  }
}

// A part may be masked; a target's logit may be -0; what no part has is not a number.
TYPED_TEST(CudaVocabularyLoss, ZeroesAndInfinitiesAreNumbers) {
  using T = TypeParam;
  const auto narrow = [](const std::vector<float>& values) {
    std::vector<T> result;
    for (const float value : values) result.push_back(from_float<T>(value));
    return result;
  };
  const auto masked = in_parts<T>(narrow({-INFINITY, -INFINITY, -0.0f, -0.0f}), {2}, {2, 2}, 0.0);
  EXPECT_NEAR(masked.template get<2>()[0], std::log(2.0), 1e-6);
  EXPECT_TRUE(same_bits(masked.template get<0>(), narrow({0.0f, 0.0f, -0.5f, 0.5f})));
  const auto broken = in_parts<T>(narrow({0.0f, 0.0f, NAN, 0.0f}), {0}, {2, 2}, 0.0);
  EXPECT_TRUE(std::isnan(broken.template get<2>()[0]));
  for (const std::int32_t wrong : {-1, 4}) {
    const auto lost = in_parts<T>(narrow({0.0f, 1.0f, 2.0f, 3.0f}), {wrong}, {2, 2}, 0.0);
    EXPECT_TRUE(std::isnan(lost.template get<2>()[0])) << wrong;
  }
}

}  // namespace
}  // namespace shardwright::kernels::cuda
