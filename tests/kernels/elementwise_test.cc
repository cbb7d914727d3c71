// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/elementwise.h"

#include "tests/kernels/support.h"
#include "tests/oracle/fold_tree.h"

namespace shardwright::kernels::host {
namespace {

using testing::on_every_isa;
using testing::Outputs;
using testing::poisoned;
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

template <class T>
std::vector<std::vector<T>> leaves_of(std::size_t count, std::int64_t size) {
  std::vector<std::vector<T>> leaves;
  for (std::size_t i = 0; i < count; ++i) leaves.push_back(random_data<T>(50 + i, size).typed);
  return leaves;
}
template <class T>
std::vector<const void*> pointers_to(const std::vector<std::vector<T>>& arrays) {
  std::vector<const void*> pointers;
  for (const std::vector<T>& array : arrays) pointers.push_back(array.data());
  return pointers;
}

template <class In, class Out>
void check_fold_tree(std::size_t leaf_count, std::int64_t size) {
  const auto leaves = leaves_of<In>(leaf_count, size);
  const auto pointers = pointers_to(leaves);
  const std::vector<Out> before = random_data<Out>(9, size).typed;
  on_every_isa(
      [&](Parallel& parallel) {
        std::vector<Out> sum = poisoned<Out>(size), added = before;
        fold_tree<In, Out>(parallel, pointers, sum, false);
        fold_tree<In, Out>(parallel, pointers, added, true);
        return Outputs(sum, added);
      },
      [&](const auto& result, const std::string& isa) {
        for (std::size_t i = 0; i < before.size(); ++i) {
          const float root = reference::fold_tree(leaves, 0, leaf_count, i);
          ASSERT_EQ(result.template get<0>()[i], from_float<Out>(root)) << isa;
          ASSERT_EQ(result.template get<1>()[i], from_float<Out>(to_float(before[i]) + root))
              << isa;
        }
      });
}

TYPED_TEST(ElementwiseTyped, ATreeIsTheOracles) {
  for (const std::size_t leaves : {1, 2, 4, 8, 256}) {
    check_fold_tree<TypeParam, float>(leaves, 33);
    check_fold_tree<TypeParam, BFloat16>(leaves, 33);
  }
  check_fold_tree<TypeParam, TypeParam>(8, 70001);
}

/// Folds groups of neighbours, as many as a level says, until one array is left.
template <class T>
std::vector<T> folded_by_levels(Parallel& parallel, std::vector<std::vector<T>> arrays,
                                const std::vector<std::size_t>& levels) {
  for (const std::size_t group : levels) {
    const auto pointers = pointers_to(arrays);
    std::vector<std::vector<T>> sums;
    for (std::size_t first = 0; first < arrays.size(); first += group) {
      sums.emplace_back(arrays[0].size());
      fold_tree<T, T>(parallel, std::span(pointers).subspan(first, group), std::span(sums.back()),
                      false);
    }
    arrays = std::move(sums);
  }
  return arrays.at(0);
}

// Every way in which 8 leaves may lie on ranks, on nodes of ranks and so on.
TYPED_TEST(ElementwiseTyped, NestedTreesAreTheFlatOne) {
  using T = TypeParam;
  const auto leaves = leaves_of<T>(8, 1001);
  Parallel parallel(1);
  const auto flat = folded_by_levels(parallel, leaves, {8});
  for (const std::vector<std::size_t>& levels :
       {std::vector<std::size_t>{2, 4}, {4, 2}, {2, 2, 2}, {1, 8}, {8, 1}}) {
    EXPECT_TRUE(testing::same_bits(folded_by_levels(parallel, leaves, levels), flat));
  }
  std::size_t other = 0;
  for (std::size_t i = 0; i < flat.size(); ++i) {
    float chain = 0;
    for (const std::vector<T>& leaf : leaves) chain += to_float(leaf[i]);
    other += from_float<T>(chain) == flat[i] ? 0 : 1;
  }
  EXPECT_GT(other, flat.size() / 10);
}

TYPED_TEST(ElementwiseTyped, ATreeMayGrowOverAnInput) {
  using T = TypeParam;
  auto leaves = leaves_of<T>(4, 9000);
  const auto pointers = pointers_to(leaves);
  Parallel parallel(2);
  const auto expected = folded_by_levels(parallel, leaves, {4});
  for (const std::size_t into : {3, 0}) {
    auto kept = leaves;
    fold_tree<T, T>(parallel, pointers, std::span(leaves[into]), false);
    EXPECT_TRUE(testing::same_bits(leaves[into], expected)) << into;
    leaves[into] = kept[into];
  }
}

TEST(ElementwiseDeath, ATreeTakesAPowerOfTwo) {
  const auto leaves = leaves_of<float>(3, 4);
  const auto pointers = pointers_to(leaves);
  std::vector<float> sum(4);
  const auto fold_three = [&] {
    Parallel parallel(1);
    fold_tree<float, float>(parallel, pointers, std::span(sum), false);
  };
  EXPECT_DEATH(fold_three(), "a tree of 3 arrays");
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
