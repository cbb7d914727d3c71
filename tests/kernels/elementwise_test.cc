// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/elementwise.h"

#include "tests/kernels/support.h"

namespace shardwright::kernels::host {
namespace {

using testing::on_every_isa;
using testing::Outputs;
using testing::random_data;

constexpr std::int64_t kSizes[] = {1, 7, 16, 33, 1000, 70001};

TEST(Elementwise, CastRoundsToNearestEven) {
  for (const std::int64_t size : kSizes) {
    auto in = random_data<float>(1, size);
    in.typed.back() = -0.0f;
    in.typed.front() = 3.4e38f;  // rounds to infinity
    on_every_isa(
        [&](Parallel& parallel) {
          std::vector<BFloat16> narrow(in.typed.size());
          std::vector<float> wide(in.typed.size());
          cast<float, BFloat16>(parallel, in.typed, narrow);
          cast<BFloat16, float>(parallel, narrow, wide);
          return Outputs(narrow, wide);
        },
        [&](const auto& result, const std::string& isa) {
          for (std::size_t i = 0; i < in.typed.size(); ++i) {
            ASSERT_EQ(result.template get<0>()[i], to_bf16(in.typed[i])) << isa << " " << i;
            ASSERT_EQ(result.template get<1>()[i], to_float(to_bf16(in.typed[i])));
          }
        });
  }
}

TEST(Elementwise, CastKeepsNaN) {
  const std::vector<float> in(20, std::bit_cast<float>(0x7f800001u));  // payload in the low bits
  on_every_isa(
      [&](Parallel& parallel) {
        std::vector<BFloat16> narrow(in.size());
        cast<float, BFloat16>(parallel, in, narrow);
        return Outputs(narrow);
      },
      [&](const auto& result, const std::string& isa) {
        for (const BFloat16 value : result.template get<0>()) {
          EXPECT_TRUE(std::isnan(to_float(value))) << isa;
        }
      });
}

template <class T>
class ElementwiseTyped : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(ElementwiseTyped, Types);

TYPED_TEST(ElementwiseTyped, SumsAreSingleRoundings) {
  using T = TypeParam;
  for (const std::int64_t size : kSizes) {
    const auto a = random_data<T>(1, size);
    const auto sum32 = random_data<float>(3, size);
    const auto sum16 = random_data<BFloat16>(4, size);
    on_every_isa(
        [&](Parallel& parallel) {
          std::vector<float> into32 = sum32.typed;
          accumulate<T, float>(parallel, a.typed, into32);
          std::vector<BFloat16> into16 = sum16.typed;
          accumulate<T, BFloat16>(parallel, a.typed, into16);
          return Outputs(into32, into16);
        },
        [&](const auto& result, const std::string& isa) {
          for (std::size_t i = 0; i < a.typed.size(); ++i) {
            const float x = to_float(a.typed[i]);
            ASSERT_EQ(result.template get<0>()[i], sum32.typed[i] + x) << isa;
            ASSERT_EQ(result.template get<1>()[i], to_bf16(to_float(sum16.typed[i]) + x)) << isa;
          }
        });
  }
}

TYPED_TEST(ElementwiseTyped, SumOfSquaresIgnoresThreadsAndShards) {
  using T = TypeParam;
  const auto x = random_data<T>(7, 200001, 1e-3);
  ExactSum expected;
  expected.add_squares(std::span<const T>(x.typed));
  for (const int threads : {1, 2, 5}) {
    Parallel parallel(threads);
    EXPECT_EQ(sum_of_squares<T>(parallel, x.typed).words(), expected.words());
    ExactSum shards;
    const std::span<const T> all(x.typed);
    for (std::size_t begin = 0; begin < all.size(); begin += 77777) {
      shards.merge(sum_of_squares<T>(
          parallel, all.subspan(begin, std::min<std::size_t>(77777, all.size() - begin))));
    }
    EXPECT_EQ(shards.words(), expected.words());
  }
}

// Blocks that the fast way can sum exactly, and blocks that it must leave to the slow one.
TEST(SumOfSquares, IsExactForAnyMixOfMagnitudes) {
  const RandomStream stream{.seed = 9};
  for (const int spread : {0, 10, 30, 45, 60, 250}) {
    std::vector<float> x;
    for (std::uint64_t i = 0; i < 5000; ++i) {
      const int exponent =
          static_cast<int>(stream.below(i, static_cast<std::uint64_t>(spread) + 1));
      x.push_back(std::ldexp(stream.uniform(i) - 0.5f, 60 - exponent));
    }
    ExactSum expected;
    expected.add_squares(std::span<const float>(x));
    for (const Isa isa : supported_isas()) {
      Parallel parallel(2, isa);
      EXPECT_EQ(sum_of_squares<float>(parallel, x).words(), expected.words())
          << name_of(isa) << " " << spread;
    }
  }
}

TEST(SumOfSquares, ExtremesAndNonFinite) {
  Parallel parallel(1);
  std::vector<float> x(3000, 0x1p-149f);
  EXPECT_EQ(sum_of_squares<float>(parallel, x).value(), 3000 * 0x1p-298);
  x.assign(3000, -0x1p127f);
  EXPECT_EQ(sum_of_squares<float>(parallel, x).value(), 3000 * 0x1p254);
  x[2999] = INFINITY;
  x[1] = NAN;
  const ExactSum sum = sum_of_squares<float>(parallel, x);
  EXPECT_EQ(sum.nonfinite(), 2);
  EXPECT_TRUE(std::isnan(sum.value()));
  x.assign(10, 0.0f);
  EXPECT_EQ(sum_of_squares<float>(parallel, x).value(), 0.0);
}

}  // namespace
}  // namespace shardwright::kernels::host
