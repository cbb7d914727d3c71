// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/step_totals.h"

#include <bit>

#include "kernels/adamw.h"
#include "kernels/exact_sum.h"
#include "tests/kernels_cuda/support.h"

namespace shardwright::kernels::cuda {
namespace {

using testing::OnDevice;
using CudaStepTotals = testing::CudaTest;

struct Records {
  std::vector<std::int64_t> data;
  StepRecordsView view;
};

Records make_records(std::int64_t world, std::int64_t micro_steps, double scale) {
  Records r;
  const auto head = static_cast<std::int64_t>(ExactSum::kWords);
  r.view = {nullptr, head + 2 * micro_steps, world, micro_steps};
  const RandomStream stream{.seed = 11};
  for (std::int64_t rank = 0; rank < world; ++rank) {
    ExactSum sum;
    std::vector<float> values;
    for (std::uint64_t i = 0; i < 50; ++i) {
      values.push_back(
          static_cast<float>(scale * stream.normal(static_cast<std::uint64_t>(rank) * 50 + i)));
    }
    sum.add_squares(std::span<const float>(values));
    for (const std::int64_t word : sum.words()) r.data.push_back(word);
    for (std::int64_t m = 0; m < micro_steps; ++m) {
      const auto at = static_cast<std::uint64_t>(rank * 1000 + m);
      r.data.push_back(std::bit_cast<std::int64_t>(100.0 + stream.normal(at)));
      r.data.push_back(static_cast<std::int64_t>(stream.below(at, 50)));
    }
  }
  return r;
}

/// What exec/step_record.cc says.
StepTotalsView expected_totals(const Records& r, double max_norm, double skip_above) {
  StepTotalsView totals{0, 0, 0, 0};
  std::array<std::int64_t, ExactSum::kWords> words{};
  for (std::int64_t rank = 0; rank < r.view.world_ranks; ++rank) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] += r.data[static_cast<std::size_t>(rank * r.view.words) + i];
    }
  }
  for (std::int64_t m = 0; m < r.view.micro_steps; ++m) {
    for (std::int64_t rank = 0; rank < r.view.world_ranks; ++rank) {
      const auto at = static_cast<std::size_t>(rank * r.view.words + 2 * m) + ExactSum::kWords;
      totals.loss += std::bit_cast<double>(r.data[at]);
      totals.tokens += r.data[at + 1];
    }
  }
  const double divisor = totals.tokens > 0 ? static_cast<double>(totals.tokens) : 1.0;
  totals.gradient_norm = std::sqrt(ExactSum::from_words(words).value()) / divisor;
  totals.scale = clip_factor(totals.gradient_norm, max_norm) / divisor;
  const bool too_large = skip_above > 0 && totals.gradient_norm > skip_above;
  if (!std::isfinite(totals.gradient_norm) || !std::isfinite(totals.loss) || too_large) {
    totals.scale = std::numeric_limits<double>::quiet_NaN();
  }
  return totals;
}

void check(const Records& records, double max_norm, double skip_above) {
  const OnDevice<std::int64_t> data(records.data);
  const OnDevice<StepTotalsView> totals(1);
  StepRecordsView view = records.view;
  view.data = data.data();
  step_totals(nullptr, view, max_norm, skip_above, totals.data());
  const StepTotalsView got = totals.get()[0];
  const StepTotalsView expected = expected_totals(records, max_norm, skip_above);
  EXPECT_EQ(std::bit_cast<std::int64_t>(got.loss), std::bit_cast<std::int64_t>(expected.loss));
  EXPECT_EQ(got.tokens, expected.tokens);
  if (std::isnan(expected.gradient_norm)) {
    EXPECT_TRUE(std::isnan(got.gradient_norm));
  } else {
    EXPECT_EQ(got.gradient_norm, expected.gradient_norm);
  }
  if (std::isnan(expected.scale)) {
    EXPECT_TRUE(std::isnan(got.scale));
  } else {
    EXPECT_EQ(got.scale, expected.scale);
  }
}

TEST_F(CudaStepTotals, AreTheBitsOfTheHost) {
  for (const double scale : {1e-20, 1e-3, 1.0, 1e18}) {
    const Records records = make_records(8, 50, scale);  // more losses than one round
    check(records, 0, 0);
    check(records, 1e-4, 0);
    check(records, 1e6, 0);
    check(records, 1.0, 1e-30);
  }
}

TEST_F(CudaStepTotals, WithoutTokensOrWithNansThereIsNoUpdateByNonsense) {
  Records none = make_records(2, 1, 1.0);
  none.data[ExactSum::kWords + 1] = none.data[2 * ExactSum::kWords + 3] = 0;
  check(none, 1.0, 0);
  Records nan = make_records(2, 1, 1.0);
  nan.data[ExactSum::kWords - 1] = 1;
  check(nan, 1.0, 0);
  Records loss = make_records(2, 1, 1.0);
  loss.data[ExactSum::kWords] = std::bit_cast<std::int64_t>(static_cast<double>(INFINITY));
  check(loss, 1.0, 0);
}

}  // namespace
}  // namespace shardwright::kernels::cuda
