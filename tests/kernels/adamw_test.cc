// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/adamw.h"

#include "tests/kernels/support.h"
#include "tests/oracle/adamw.h"

namespace shardwright::kernels::host {
namespace {

using testing::Data;
using testing::expect_close;
using testing::on_every_isa;
using testing::Outputs;
using testing::random_data;

const AdamW kOptions{.lr = 1e-2, .weight_decay = 0.1, .grad_scale = 0.5, .seed = 42};

TEST(AdamWOperation, FollowsTheOracleForManySteps) {
  const std::int64_t size = 1003;
  const auto start = random_data<float>(1, size);
  std::vector<double> p = start.exact, m(p.size()), v(p.size());
  for (std::int64_t step = 1; step <= 20; ++step) {
    AdamW options = kOptions;
    options.step = step;
    reference::adamw(
        options, random_data<float>(static_cast<std::uint64_t>(100 + step), size).exact, p, m, v);
  }
  on_every_isa(
      [&](Parallel& parallel) {
        std::vector<float> parameter = start.typed, first(parameter.size()), second(first);
        for (std::int64_t step = 1; step <= 20; ++step) {
          AdamW options = kOptions;
          options.step = step;
          const auto gradient = random_data<float>(static_cast<std::uint64_t>(100 + step), size);
          adamw<float, float, float>(parallel, options, {}, gradient.typed, parameter, first,
                                     second);
        }
        return Outputs(parameter, first, second);
      },
      [&](const auto& result, const std::string& isa) {
        expect_close(result.template get<0>(), p, 1e-6, isa + " parameter");
        expect_close(result.template get<1>(), m, 1e-6, isa + " m");
        expect_close(result.template get<2>(), v, 1e-6, isa + " v");
      });
}

template <class P, class G, class M>
void check_sharding() {
  const std::int64_t size = 40001;
  const auto gradient = random_data<G>(1, size, 1e-3);
  const auto parameter = random_data<P>(2, size);
  const auto m = random_data<M>(3, size, 1e-3);
  const auto v = random_data<M>(4, size, 1e-7, 1e-6);
  AdamW options = kOptions;
  options.step = 7;
  const auto run = [&](Parallel& parallel, const std::vector<std::size_t>& cuts) {
    std::vector<P> p = parameter.typed;
    std::vector<M> first = m.typed, second = v.typed;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const std::size_t from = cuts[i], count = cuts[i + 1] - from;
      adamw<P, G, M>(parallel, options, {1000 + from},
                     std::span<const G>(gradient.typed).subspan(from, count),
                     std::span(p).subspan(from, count), std::span(first).subspan(from, count),
                     std::span(second).subspan(from, count));
    }
    return Outputs(p, first, second);
  };
  on_every_isa(
      [&](Parallel& parallel) {
        return run(parallel, {0, 40001});
      },
      [&](const auto& whole, const std::string& isa) {
        Parallel parallel(1, *isa_from(isa));
        EXPECT_TRUE(whole == run(parallel, {0, 1, 17, 13333, 30001, 40001})) << isa;
      });
}

TEST(AdamWOperation, AnyShardingGivesTheSameBits) {
  check_sharding<float, float, float>();
  check_sharding<float, BFloat16, BFloat16>();
  check_sharding<BFloat16, float, BFloat16>();
  check_sharding<BFloat16, BFloat16, float>();
}

/// Columns [first, first + width) of a matrix.
template <class T>
std::vector<T> columns_of(const std::vector<T>& matrix, std::size_t cols, std::size_t first,
                          std::size_t width) {
  std::vector<T> part;
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    if (i % cols >= first && i % cols < first + width) part.push_back(matrix[i]);
  }
  return part;
}

// A matrix cut by columns over two ranks, each of which cuts its half over others, inside rows.
template <class P, class G, class M>
void check_columns(std::size_t cols) {
  constexpr std::size_t kMatrixRows = 61;
  const auto size = static_cast<std::int64_t>(kMatrixRows * cols);
  const auto gradient = random_data<G>(1, size, 1e-3).typed;
  const auto parameter = random_data<P>(2, size).typed;
  const auto m = random_data<M>(3, size, 1e-3).typed, v = random_data<M>(4, size, 1e-7, 1e-6).typed;
  Parallel parallel(2);
  std::vector<P> whole = parameter;
  std::vector<M> whole_m = m, whole_v = v;
  adamw<P, G, M>(parallel, kOptions, {1000}, gradient, whole, whole_m, whole_v);
  const std::size_t width = cols / 2;
  for (const std::size_t first : {std::size_t{0}, width}) {
    const auto g = columns_of(gradient, cols, first, width);
    auto p = columns_of(parameter, cols, first, width);
    auto m_part = columns_of(m, cols, first, width), v_part = columns_of(v, cols, first, width);
    const std::size_t cuts[] = {0, 1, width - 1, 3 * width + 17, 40 * width, g.size()};
    for (std::size_t i = 0; i + 1 < std::size(cuts); ++i) {
      const std::size_t from = cuts[i], count = cuts[i + 1] - from;
      const ElementIndices indices{.first = 1000 + first + from / width * cols,
                                   .row_begin = static_cast<std::int64_t>(from % width),
                                   .row_length = static_cast<std::int64_t>(width),
                                   .row_stride = static_cast<std::int64_t>(cols)};
      adamw<P, G, M>(parallel, kOptions, indices, std::span(g).subspan(from, count),
                     std::span(p).subspan(from, count), std::span(m_part).subspan(from, count),
                     std::span(v_part).subspan(from, count));
    }
    EXPECT_TRUE(testing::same_bits(p, columns_of(whole, cols, first, width))) << cols;
    EXPECT_TRUE(testing::same_bits(m_part, columns_of(whole_m, cols, first, width))) << cols;
    EXPECT_TRUE(testing::same_bits(v_part, columns_of(whole_v, cols, first, width))) << cols;
  }
}

TEST(AdamWOperation, ColumnsOfAMatrixGetTheBitsOfTheWhole) {
  for (const std::size_t cols : {60, 998}) {
    check_columns<BFloat16, float, BFloat16>(cols);
    check_columns<BFloat16, BFloat16, float>(cols);
    check_columns<float, BFloat16, BFloat16>(cols);
    check_columns<float, float, float>(cols);
  }
}

// With rounding to nearest, bf16 would lose every update below 2^-9 of the value.
TEST(AdamWOperation, Bf16MomentsFollowOnAverage) {
  const std::int64_t size = 4096;
  const std::vector<float> gradient(static_cast<std::size_t>(size), 0.25f);
  std::vector<float> parameter(gradient.size(), 1.0f);
  std::vector<BFloat16> m(gradient.size()), v(gradient.size());
  std::vector<double> p1{1.0}, m1{0.0}, v1{0.0};
  Parallel parallel(2);
  AdamW options{.lr = 1e-3, .beta2 = 0.999, .seed = 3};
  for (options.step = 1; options.step <= 200; ++options.step) {
    adamw<float, float, BFloat16>(parallel, options, {}, gradient, parameter, m, v);
    reference::adamw(options, {0.25}, p1, m1, v1);
  }
  double mean_v = 0, mean_m = 0;
  for (const BFloat16 x : v) mean_v += to_float(x) / static_cast<double>(size);
  for (const BFloat16 x : m) mean_m += to_float(x) / static_cast<double>(size);
  // 0.999 v + 0.001 g^2 moves v by less than half a bf16 step: nearest rounding would freeze it.
  EXPECT_NEAR(mean_v, v1[0], 0.01 * v1[0]);
  EXPECT_NEAR(mean_m, m1[0], 0.01 * m1[0]);
}

TEST(AdamWOperation, StochasticRoundingUsesTheDocumentedBits) {
  const auto gradient = random_data<float>(1, 100);
  std::vector<float> parameter(100), first(100), second(100);
  std::vector<BFloat16> m(100), v(100);
  std::vector<float> same(100);
  Parallel parallel(1);
  AdamW options = kOptions;
  adamw<float, float, float>(parallel, options, {500}, gradient.typed, parameter, first, second);
  adamw<float, float, BFloat16>(parallel, options, {500}, gradient.typed, same, m, v);
  const RandomStream stream{options.seed, RandomSite::kRoundMoments, 1};
  for (std::size_t i = 0; i < 100; ++i) {
    const std::uint32_t word = stream.word(500 + i);
    EXPECT_EQ(m[i], to_bf16_stochastic(first[i], static_cast<std::uint16_t>(word)));
    EXPECT_EQ(v[i], to_bf16_stochastic(second[i], static_cast<std::uint16_t>(word >> 16)));
  }
}

TEST(ClipFactor, BringsTheNormDown) {
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_NEAR(clip_factor(10.0, 1.0), 0.1, 1e-7);
  EXPECT_EQ(clip_factor(10.0, 0.0), 1.0);
}

}  // namespace
}  // namespace shardwright::kernels::host
