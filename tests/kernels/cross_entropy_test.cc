// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/cross_entropy.h"

#include "sim/core/base/error.h"
#include "tests/kernels/support.h"
#include "tests/oracle/cross_entropy.h"

namespace shardwright::kernels::host {
namespace {

using testing::expect_close;
using testing::on_every_isa;
using testing::Outputs;
using testing::poisoned;
using testing::random_data;

TEST(CrossEntropy, MatchesTheOracle) {
  const std::int64_t n = 50;
  for (const std::int64_t vocab : {2, 101, 700}) {
    const auto logits = random_data<float>(1, n * vocab);
    auto targets = testing::random_tokens(3, n, vocab);
    targets[0] = targets[13] = targets[49] = kIgnoreTarget;
    const auto expected = reference::cross_entropy(logits.exact, targets, kIgnoreTarget, 1);
    on_every_isa(
        [&](Parallel& parallel) {
          std::vector<float> gradient = logits.typed, evaluated = logits.typed;
          std::vector<double> losses(static_cast<std::size_t>(n), NAN);
          const LmLoss loss =
              cross_entropy(parallel, {gradient.data(), n, vocab}, targets, true, losses);
          EXPECT_EQ(loss.count, expected.count);
          const LmLoss again =
              cross_entropy(parallel, {evaluated.data(), n, vocab}, targets, false, losses);
          EXPECT_EQ(again.sum, loss.sum);
          EXPECT_EQ(again.count, loss.count);
          return Outputs(gradient, std::vector<double>{loss.sum});
        },
        [&](const auto& result, const std::string& isa) {
          EXPECT_NEAR(result.template get<1>()[0], expected.sum, 1e-6 * expected.sum);
          expect_close(result.template get<0>(), expected.d_logits, 3e-6, isa + " d_logits");
        });
  }
}

TEST(CrossEntropy, CapsLogits) {
  const std::int64_t n = 20;
  for (const std::int64_t vocab : {2, 101, 700}) {
    const auto logits = random_data<float>(1, n * vocab, 3.0);
    auto targets = testing::random_tokens(3, n, vocab);
    targets[7] = kIgnoreTarget;
    const auto expected = reference::cross_entropy(logits.exact, targets, kIgnoreTarget, 1, 5.0);
    on_every_isa(
        [&](Parallel& parallel) {
          std::vector<float> gradient = logits.typed;
          std::vector<double> losses(static_cast<std::size_t>(n), NAN);
          const LmLoss loss =
              cross_entropy(parallel, {gradient.data(), n, vocab}, targets, true, losses, 5.0);
          return Outputs(gradient, std::vector<double>{loss.sum});
        },
        [&](const auto& result, const std::string& isa) {
          EXPECT_NEAR(result.template get<1>()[0], expected.sum, 1e-6 * expected.sum);
          expect_close(result.template get<0>(), expected.d_logits, 3e-6, isa + " d_logits");
        });
  }
}

TEST(CrossEntropy, AllIgnoredIsZero) {
  Parallel parallel(1);
  const std::vector<std::int32_t> targets(4, kIgnoreTarget);
  auto logits = poisoned<float>(20);
  std::vector<double> losses(4, NAN);
  const LmLoss loss = cross_entropy(parallel, {logits.data(), 4, 5}, targets, true, losses);
  EXPECT_EQ(loss.sum, 0.0);
  EXPECT_EQ(loss.count, 0);
  for (const float value : logits) EXPECT_EQ(value, 0.0f);
}

TEST(CrossEntropy, NaNReachesTheLoss) {
  for (const Isa isa : supported_isas()) {
    Parallel parallel(1, isa);
    auto logits = random_data<float>(1, 4 * 50);
    logits.typed[55] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<std::int32_t> targets = {0, 1, 2, 3};
    std::vector<double> losses(4, NAN);
    const LmLoss loss =
        cross_entropy(parallel, {logits.typed.data(), 4, 50}, targets, false, losses);
    EXPECT_TRUE(std::isnan(loss.sum)) << name_of(isa);
  }
}

TEST(CrossEntropy, TargetsOutsideTheVocabularyAreNamed) {
  Parallel parallel(1);
  std::vector<float> logits(10);
  std::vector<double> losses(2, NAN);
  for (const std::int32_t wrong : {-1, 5}) {
    const std::vector<std::int32_t> targets = {0, wrong};
    EXPECT_THROW(cross_entropy(parallel, {logits.data(), 2, 5}, targets, false, losses), Error);
  }
}

}  // namespace
}  // namespace shardwright::kernels::host
