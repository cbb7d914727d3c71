// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/lm_head.h"

#include "sim/core/error.h"
#include "tests/kernels/support.h"
#include "tests/oracle/cross_entropy.h"
#include "tests/oracle/linear.h"

namespace shardwright::kernels::host {
namespace {

using testing::expect_close;
using testing::on_every_isa;
using testing::Outputs;
using testing::poisoned;
using testing::random_data;
using testing::unit_roundoff;

std::vector<std::byte> workspace_for(std::int64_t chunk, std::int64_t vocab) {
  return std::vector<std::byte>(static_cast<std::size_t>(lm_head_workspace_bytes(chunk, vocab)),
                                std::byte{0xff});
}

template <class T>
class LmHead : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(LmHead, Types);

TYPED_TEST(LmHead, MatchesTheOracle) {
  using T = TypeParam;
  const std::int64_t n = 50, cols = 24;
  for (const std::int64_t vocab : {2, 101, 700}) {
    const auto hidden = random_data<T>(1, n * cols), w = random_data<T>(2, vocab * cols);
    auto targets = testing::random_tokens(3, n, vocab);
    targets[0] = targets[13] = targets[49] = kIgnoreTarget;
    const double scale = 1.0 / 47.0;
    const auto expected =
        reference::cross_entropy(reference::linear_forward(hidden.exact, w.exact, n, cols, vocab),
                                 targets, kIgnoreTarget, scale);
    for (const std::int64_t chunk : {1, 16, 50, 64}) {
      const LmHeadOptions options{.chunk = chunk, .grad_scale = scale};
      on_every_isa(
          [&](Parallel& parallel) {
            auto workspace = workspace_for(std::min(chunk, n), vocab);
            // In place of the hidden states, as the executor does.
            std::vector<T> d_hidden = hidden.typed;
            auto d_w = poisoned<float>(vocab * cols);
            const LmLoss loss = lm_head_backward<T, float>(
                parallel, options, {d_hidden.data(), n, cols}, {w.data(), vocab, cols}, targets,
                {d_hidden.data(), n, cols}, {d_w.data(), vocab, cols}, workspace);
            EXPECT_EQ(loss.count, 47);
            const LmLoss evaluated = lm_head_loss<T>(parallel, options, {hidden.data(), n, cols},
                                                     {w.data(), vocab, cols}, targets, workspace);
            EXPECT_EQ(evaluated.sum, loss.sum);
            EXPECT_EQ(evaluated.count, loss.count);
            return Outputs(d_hidden, d_w, std::vector<double>{loss.sum});
          },
          [&](const auto& result, const std::string& isa) {
            EXPECT_NEAR(result.template get<2>()[0], expected.sum, 1e-6 * expected.sum);
            expect_close(
                result.template get<0>(),
                reference::linear_input_gradient(expected.d_logits, w.exact, n, cols, vocab),
                unit_roundoff<T>() + 3e-6, isa + " d_hidden");
            expect_close(
                result.template get<1>(),
                reference::linear_weight_gradient(expected.d_logits, hidden.exact, n, cols, vocab),
                3e-6, isa + " d_w");
          });
    }
  }
}

TEST(LmHeadLimits, AllIgnoredIsZero) {
  Parallel parallel(1);
  const auto hidden = random_data<float>(1, 4 * 3), w = random_data<float>(2, 5 * 3);
  const std::vector<std::int32_t> targets(4, kIgnoreTarget);
  auto d_hidden = poisoned<float>(12), d_w = poisoned<float>(15);
  auto workspace = workspace_for(4, 5);
  const LmLoss loss =
      lm_head_backward<float, float>(parallel, {}, {hidden.data(), 4, 3}, {w.data(), 5, 3}, targets,
                                     {d_hidden.data(), 4, 3}, {d_w.data(), 5, 3}, workspace);
  EXPECT_EQ(loss.sum, 0.0);
  EXPECT_EQ(loss.count, 0);
  for (const float value : d_hidden) EXPECT_EQ(value, 0.0f);
  for (const float value : d_w) EXPECT_EQ(value, 0.0f);
}

TEST(LmHeadLimits, NaNReachesTheLoss) {
  for (const Isa isa : supported_isas()) {
    Parallel parallel(1, isa);
    auto hidden = random_data<float>(1, 4 * 3), w = random_data<float>(2, 50 * 3);
    hidden.typed[5] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<std::int32_t> targets = {0, 1, 2, 3};
    auto workspace = workspace_for(4, 50);
    const LmLoss loss = lm_head_loss<float>(parallel, {}, {hidden.data(), 4, 3}, {w.data(), 50, 3},
                                            targets, workspace);
    EXPECT_TRUE(std::isnan(loss.sum)) << name_of(isa);
  }
}

TEST(LmHeadLimits, TargetsOutsideTheVocabularyAreNamed) {
  Parallel parallel(1);
  const std::vector<float> hidden(6), w(15);
  auto workspace = workspace_for(2, 5);
  for (const std::int32_t wrong : {-1, 5}) {
    const std::vector<std::int32_t> targets = {0, wrong};
    EXPECT_THROW(lm_head_loss<float>(parallel, {}, {hidden.data(), 2, 3}, {w.data(), 5, 3}, targets,
                                     workspace),
                 Error);
  }
}

}  // namespace
}  // namespace shardwright::kernels::host
