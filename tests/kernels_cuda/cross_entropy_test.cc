// SPDX-License-Identifier: Apache-2.0
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
using testing::unit_roundoff;

constexpr std::int32_t kIgnored = -100;

template <class T>
class CudaCrossEntropy : public testing::CudaTest {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CudaCrossEntropy, Types);

TYPED_TEST(CudaCrossEntropy, MatchesTheOracle) {
  using T = TypeParam;
  const std::int64_t rows = 13;
  // Rows of an odd length begin at every displacement.
  for (const std::int64_t vocab : {1, 5, 101, 700, 5003}) {
    const auto logits = random_data<T>(1, rows * vocab, 4.0);
    auto targets = testing::random_tokens(2, rows, vocab);
    targets[0] = targets[7] = kIgnored;
    const auto expected = reference::cross_entropy(logits.exact, targets, kIgnored, 1.0);
    const OnDevice<std::int32_t> on_targets(targets);
    const auto result = in_every_order([&] {
      const OnDevice<T> in(logits.typed), kept(logits.typed);
      const OnDevice<double> sum(std::vector<double>{100.0, 0.0}), losses(rows);
      const OnDevice<std::int64_t> count(std::vector<std::int64_t>{1000, 0});
      cross_entropy<T>(nullptr, {in.data(), rows, vocab}, on_targets.data(), kIgnored, true,
                       sum.data(), count.data(), losses.data());
      cross_entropy<T>(nullptr, {kept.data(), rows, vocab}, on_targets.data(), kIgnored, false,
                       sum.data() + 1, count.data() + 1, losses.data());
      return Outputs(in.get(), kept.get(), sum.get(), count.get());
    });
    expect_close(result.template get<0>(), expected.d_logits, unit_roundoff<T>() + 1e-6,
                 "d_logits");
    EXPECT_TRUE(testing::same_bits(result.template get<1>(), logits.typed));
    const auto& sums = result.template get<2>();
    EXPECT_NEAR(sums[1], expected.sum, 2e-6 * expected.sum + 1e-9) << vocab;
    EXPECT_NEAR(sums[0] - 100.0, sums[1], 1e-12 * sums[0]);
    EXPECT_EQ(result.template get<3>(),
              (std::vector<std::int64_t>{1000 + expected.count, expected.count}));
  }
}

TYPED_TEST(CudaCrossEntropy, CapsLogits) {
  using T = TypeParam;
  const std::int64_t rows = 9, vocab = 701;
  const auto logits = random_data<T>(1, rows * vocab, 3.0);
  auto targets = testing::random_tokens(2, rows, vocab);
  targets[4] = kIgnored;
  const auto expected = reference::cross_entropy(logits.exact, targets, kIgnored, 1.0, 5.0);
  const OnDevice<std::int32_t> on_targets(targets);
  const auto result = in_every_order([&] {
    const OnDevice<T> in(logits.typed);
    const OnDevice<double> sum(std::vector<double>{0.0}), losses(rows);
    const OnDevice<std::int64_t> count(std::vector<std::int64_t>{0});
    cross_entropy<T>(nullptr, {in.data(), rows, vocab}, on_targets.data(), kIgnored, true,
                     sum.data(), count.data(), losses.data(), 5.0);
    return Outputs(in.get(), sum.get());
  });
  expect_close(result.template get<0>(), expected.d_logits, unit_roundoff<T>() + 2e-6, "d_logits");
  EXPECT_NEAR(result.template get<1>()[0], expected.sum, 2e-6 * expected.sum);
}

TYPED_TEST(CudaCrossEntropy, LargeLogitsDoNotOverflow) {
  using T = TypeParam;
  std::vector<T> logits(600, from_float<T>(-1e30f));
  logits[77] = from_float<T>(1e30f);
  logits[300 + 5] = from_float<T>(200.0f);
  logits[300 + 6] = from_float<T>(-INFINITY);
  const OnDevice<T> in(logits);
  const OnDevice<std::int32_t> targets(std::vector<std::int32_t>{77, 5});
  const OnDevice<double> loss(std::vector<double>{0.0}), losses(2);
  const OnDevice<std::int64_t> count(std::vector<std::int64_t>{0});
  cross_entropy<T>(nullptr, {in.data(), 2, 300}, targets.data(), kIgnored, true, loss.data(),
                   count.data(), losses.data());
  EXPECT_EQ(loss.get()[0], 0.0);
  for (const T value : in.get()) EXPECT_EQ(to_float(value), 0.0f);
}

TYPED_TEST(CudaCrossEntropy, NansAndWrongTargetsReachTheLoss) {
  using T = TypeParam;
  for (const std::int32_t target : {2, -1, 9}) {
    auto logits = random_data<T>(1, 9);
    if (target == 2) logits.typed[4] = from_float<T>(NAN);
    const OnDevice<T> in(logits.typed);
    const OnDevice<std::int32_t> targets(std::vector<std::int32_t>{target});
    const OnDevice<double> loss(std::vector<double>{0.0}), losses(1);
    const OnDevice<std::int64_t> count(std::vector<std::int64_t>{0});
    cross_entropy<T>(nullptr, {in.data(), 1, 9}, targets.data(), kIgnored, true, loss.data(),
                     count.data(), losses.data());
    EXPECT_TRUE(std::isnan(loss.get()[0])) << target;
  }
}

}  // namespace
}  // namespace shardwright::kernels::cuda
