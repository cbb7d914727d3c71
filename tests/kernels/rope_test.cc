// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/rope.h"

#include "sim/core/base/error.h"
#include "tests/kernels/support.h"
#include "tests/oracle/rope.h"

namespace shardwright::kernels::host {
namespace {

using testing::expect_close;
using testing::on_every_isa;
using testing::Outputs;
using testing::random_data;
using testing::unit_roundoff;

std::vector<Rope> scalings() {
  return {Rope{.theta = 10000.0},
          Rope{.theta = 10000.0, .scaling = RopeScaling::kLinear, .factor = 4.0},
          Rope{.theta = 500000.0,
               .scaling = RopeScaling::kLlama3,
               .factor = 8.0,
               .low_freq_factor = 1.0,
               .high_freq_factor = 4.0,
               .original_max_positions = 8192}};
}

TEST(RopeTable, FrequenciesMatchTheOracle) {
  for (const Rope& parameters : scalings()) {
    for (const std::int64_t d : {2, 16, 64, 128}) {
      const std::vector<float> frequencies = rope_frequencies(parameters, d);
      ASSERT_EQ(std::ssize(frequencies), d / 2);
      for (std::int64_t j = 0; j < d / 2; ++j) {
        const double expected = reference::rope_frequency(parameters, d, j);
        EXPECT_NEAR(frequencies[static_cast<std::size_t>(j)], expected, 3e-7 * expected);
      }
    }
  }
}

TEST(RopeTable, Llama3KeepsHighAndStretchesLowFrequencies) {
  const Rope parameters = scalings()[2];
  const std::vector<float> scaled = rope_frequencies(parameters, 128);
  const std::vector<float> plain = rope_frequencies(Rope{.theta = 500000.0}, 128);
  EXPECT_EQ(scaled.front(), plain.front());
  EXPECT_FLOAT_EQ(scaled.back(), plain.back() / 8.0f);
  int between = 0;
  for (std::size_t j = 0; j < plain.size(); ++j) {
    between += scaled[j] < plain[j] * 0.999f && scaled[j] > plain[j] / 7.99f;
  }
  EXPECT_GT(between, 0);
}

template <class T>
class RopeOperation : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(RopeOperation, Types);

TYPED_TEST(RopeOperation, MatchesTheOracle) {
  using T = TypeParam;
  const std::int64_t tokens = 21, heads = 3;
  const auto [d, rotary] = std::pair<std::int64_t, std::int64_t>{20, 14};
  std::vector<std::int32_t> positions;
  for (std::int32_t t = 0; t < tokens; ++t) positions.push_back(t < 8 ? t : 3 * (t - 8));
  const auto x = random_data<T>(1, tokens * heads * d);
  for (const Rope& parameters : scalings()) {
    const RopeTable table(parameters, 64, rotary);
    on_every_isa(
        [&](Parallel& parallel) {
          std::vector<T> there = x.typed;
          const Rows rows{.tokens = tokens, .heads = heads, .cols = d, .stride = heads * d};
          rope(parallel, rows, table, positions.data(), 0, RopeDirection::kForward, there.data());
          std::vector<T> back = there;
          rope(parallel, rows, table, positions.data(), 0, RopeDirection::kBackward, back.data());
          return Outputs(there, back);
        },
        [&](const auto& result, const std::string& isa) {
          expect_close(result.template get<0>(),
                       reference::rope(x.exact, heads, d, rotary, parameters, positions, 1),
                       unit_roundoff<T>() + 2e-6, isa);
          expect_close(result.template get<1>(), x.exact, 3 * unit_roundoff<T>(), isa + " back");
        });
  }
}

TYPED_TEST(RopeOperation, PositionsStartAgainInEverySequence) {
  using T = TypeParam;
  const std::int64_t seq = 7, batch = 3, d = 16;
  const auto one = random_data<T>(1, seq * d);
  std::vector<T> x;
  for (std::int64_t b = 0; b < batch; ++b) x.insert(x.end(), one.typed.begin(), one.typed.end());
  Parallel parallel(1);
  const RopeTable table(Rope{}, seq, d);
  rope(parallel, Rows::matrix(batch * seq, d), table, nullptr, seq, RopeDirection::kForward,
       x.data());
  for (std::size_t i = 0; i < one.typed.size(); ++i) {
    EXPECT_EQ(x[i], x[i + one.typed.size()]);
    EXPECT_EQ(x[i], x[i + 2 * one.typed.size()]);
  }
  EXPECT_EQ(x[0], one.typed[0]);  // position 0 turns nothing
}

TYPED_TEST(RopeOperation, RefusesPositionsOutsideTheTable) {
  using T = TypeParam;
  Parallel parallel(1);
  const RopeTable table(Rope{}, 4, 8);
  std::vector<T> x(5 * 8);
  const Rows rows = Rows::matrix(5, 8);
  EXPECT_THROW(rope(parallel, rows, table, nullptr, 5, RopeDirection::kForward, x.data()), Error);
  for (const std::int32_t wrong : {-1, 4}) {
    const std::vector<std::int32_t> positions = {0, 1, wrong, 0, 0};
    EXPECT_THROW(
        rope(parallel, rows, table, positions.data(), 0, RopeDirection::kForward, x.data()), Error);
  }
}

}  // namespace
}  // namespace shardwright::kernels::host
