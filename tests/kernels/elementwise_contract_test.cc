// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/contract.h"
#include "tests/oracle/fold_tree.h"

namespace shardwright::kernels::contract {
namespace {

using exec::SumOrder;

struct ElementwiseKernels : Kernels {
  /// Sums of the inputs in an order of the device's, and added to `start`.
  Results folded(const Place& on, const Results& inputs, DType out, const Numbers& start,
                 SumOrder order, std::int64_t from = 0, std::int64_t to = 0) const {
    std::vector<Tensor> tensors;
    std::vector<const void*> pointers;
    for (const Numbers& one : inputs) {
      pointers.push_back(tensors.emplace_back(on.put(type(), one, from)).data());
    }
    const auto sum = on.nans(out, std::ssize(start), to), added = on.put(out, start, to);
    on->fold(on.stream, pointers, type(), sum.array(), false, order);
    on->fold(on.stream, pointers, type(), added.array(), true, order);
    return {sum.get(), added.get()};
  }
  Results leaves(std::size_t count, std::int64_t size) const {
    Results all;
    for (std::size_t i = 0; i < count; ++i) all.push_back(random(type(), 50 + i, size));
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(On, ElementwiseKernels, ::testing::ValuesIn(cases()), parameter_name);

// Around the width of a chunk and of a block; arrays that are displaced alike or differently.
constexpr std::pair<std::int64_t, std::int64_t> kOffsets[] = {{0, 0}, {3, 3}, {8, 0}, {0, 1}};
constexpr DType kTypes[] = {DType::kFp32, DType::kBf16};

TEST_P(ElementwiseKernels, CastRoundsToNearestEven) {
  for (const std::int64_t size : shapes<std::int64_t>({1, 7, 16, 33, 1000, 20011}, {70001})) {
    auto in = random(type(), 1, size);
    in.front() = rounded(type(), 3.4e38);  // rounds to infinity
    in[in.size() / 2] = NAN;
    in.back() = -0.0;
    for (const auto& [from, to] : kOffsets) {
      for (const DType narrow : kTypes) {
        const auto result = everywhere([&, from = from, to = to](const Place& on) -> Results {
          const auto source = on.put(type(), in, from), cast = on.nans(narrow, size, to);
          on->cast(on.stream, source.array(), cast.array());
          return {cast.get()};
        });
        for (std::size_t i = 0; i < in.size(); ++i) {
          ASSERT_EQ(std::isnan(result[0][i]), std::isnan(in[i])) << i;
          if (std::isnan(in[i])) continue;
          ASSERT_EQ(result[0][i], rounded(narrow, in[i])) << i;
          ASSERT_EQ(std::signbit(result[0][i]), std::signbit(in[i])) << i;
        }
      }
    }
  }
}

// With its payload in the low bits it would be an infinity if it were cut off.
TEST_P(ElementwiseKernels, CastKeepsNaN) {
  everywhere([&](const Place& on) -> Results {
    const auto in = on.raw(std::vector<std::uint32_t>(20, 0x7f800001u));
    const auto narrow = on.put(DType::kBf16, Numbers(20, 0.0));
    on->cast(on.stream, {in.data(), DType::kFp32, 20}, narrow.array());
    for (const double value : narrow.get()) EXPECT_TRUE(std::isnan(value));
    return {};
  });
}

TEST_P(ElementwiseKernels, SumsAreRoundedOnce) {
  for (const std::int64_t size : shapes<std::int64_t>({1, 7, 16, 33, 1000, 20011}, {70001})) {
    const Results inputs = leaves(3, size);
    for (const DType out : kTypes) {
      const auto start = random(out, 4, size);
      for (const auto& [from, to] : kOffsets) {
        const auto result = everywhere([&, from = from, to = to](const Place& on) -> Results {
          Results all = folded(on, inputs, out, start, SumOrder::kRanks, from, to);
          const auto in = on.put(type(), inputs[0], from), sum = on.put(out, start, to);
          on->accumulate(on.stream, in.array(), sum.array());
          all.push_back(sum.get());
          return all;
        });
        for (std::size_t i = 0; i < start.size(); ++i) {
          const auto x = static_cast<float>(inputs[0][i]), y = static_cast<float>(inputs[1][i]);
          const auto z = static_cast<float>(inputs[2][i]), s = static_cast<float>(start[i]);
          ASSERT_EQ(result[0][i], rounded(out, x + y + z)) << i;
          ASSERT_EQ(result[1][i], rounded(out, s + x + y + z)) << i;
          ASSERT_EQ(result[2][i], rounded(out, s + x)) << i;
        }
      }
    }
  }
}

TEST_P(ElementwiseKernels, ATreeIsTheOracles) {
  using Shape = std::pair<std::size_t, std::int64_t>;
  for (const auto& [count, size] : shapes<Shape>(
           {{1, 33}, {2, 33}, {4, 33}, {8, 33}, {256, 33}, {8, 1000}, {16, 100}}, {{8, 70001}})) {
    const Results inputs = leaves(count, size);
    for (const DType out : kTypes) {
      const auto start = random(out, 4, size);
      // The short ones are displaced, so that no chunks are common.
      const std::int64_t apart = size == 33 ? 1 : 0;
      const auto result = everywhere([&](const Place& on) {
        return folded(on, inputs, out, start, SumOrder::kTree, 3 * apart, apart);
      });
      with_types({type()}, [&]<class T>() {
        std::vector<std::vector<T>> typed;
        for (const Numbers& one : inputs) {
          auto& leaf = typed.emplace_back();
          for (const double x : one) leaf.push_back(from_float<T>(static_cast<float>(x)));
        }
        for (std::size_t i = 0; i < start.size(); ++i) {
          const float root = reference::fold_tree(typed, 0, typed.size(), i);
          ASSERT_EQ(result[0][i], rounded(out, root)) << typed.size();
          ASSERT_EQ(result[1][i], rounded(out, static_cast<float>(start[i]) + root));
        }
      });
    }
  }
}

// Every way in which 8 leaves may lie on ranks, on nodes of ranks and so on.
TEST_P(ElementwiseKernels, NestedTreesAreTheFlatOne) {
  const std::int64_t size = 1001;
  const auto by_levels = [&](const std::vector<std::size_t>& levels) {
    Results arrays = leaves(8, size);
    for (const std::size_t group : levels) {
      Results sums;
      for (auto at = arrays.begin(); at != arrays.end(); at += static_cast<std::ptrdiff_t>(group)) {
        const Results some(at, at + static_cast<std::ptrdiff_t>(group));
        sums.push_back(folded(first(), some, type(), some[0], SumOrder::kTree)[0]);
      }
      arrays = sums;
    }
    return arrays;
  };
  const Results flat = by_levels({8});
  for (const auto& levels : {std::vector<std::size_t>{2, 4}, {4, 2}, {2, 2, 2}, {1, 8}, {8, 1}}) {
    EXPECT_TRUE(same_bits(by_levels(levels), flat)) << levels.size();
  }
  const Numbers chain = folded(first(), leaves(8, size), type(), flat[0], SumOrder::kRanks)[0];
  int other = 0;
  for (std::size_t i = 0; i < chain.size(); ++i) other += chain[i] == flat[0][i] ? 0 : 1;
  EXPECT_GT(other, size / 10);
}

TEST_P(ElementwiseKernels, ASumMayTakeThePlaceOfAnInput) {
  const Results inputs = leaves(4, 9000);
  for (const SumOrder order : {SumOrder::kRanks, SumOrder::kTree}) {
    const Numbers expected = folded(first(), inputs, type(), inputs[0], order)[0];
    for (const std::size_t into : {3, 0}) {
      const auto result = everywhere([&](const Place& on) -> Results {
        std::vector<Tensor> tensors;
        std::vector<const void*> pointers;
        for (const Numbers& one : inputs) {
          pointers.push_back(tensors.emplace_back(on.put(type(), one)).data());
        }
        on->fold(on.stream, pointers, type(), tensors[into].array(), false, order);
        return {tensors[into].get()};
      });
      EXPECT_TRUE(same_bits(result, {expected})) << into;
    }
  }
}

// More than one round of all blocks takes, one element at a time.
TEST_P(ElementwiseKernels, LongArraysAreWalkedOver) {
  const std::int64_t size = 4096 * 256 + 1000;
  Numbers in;
  for (std::int64_t i = 0; i < size; ++i) in.push_back(static_cast<double>(i % 256) - 100);
  const auto source = first().put(DType::kBf16, in, 1), copy = first().nans(type(), size, 2);
  first()->cast(first().stream, source.array(), copy.array());
  EXPECT_EQ(copy.get(), in);
}

TEST_P(ElementwiseKernels, PoisonIsASignallingNaN) {
  const auto poisoned = [&]<class Word>(Word bits) {
    // Also too short to reach an address where chunks begin.
    for (const std::size_t size : {2, 99}) {
      const auto memory = first().raw(std::vector<Word>(size + 1), sizeof(Word) == 4 ? 1 : 3);
      first()->poison(first().stream, memory.data(), static_cast<Bytes>(size * sizeof(Word)),
                      type());
      std::vector<Word> expected(size, bits);
      expected.push_back(0);
      EXPECT_EQ(memory.get(), expected);
    }
  };
  if (type() == DType::kFp32) poisoned(std::uint32_t{0x7fa00001u});
  if (type() == DType::kBf16) poisoned(std::uint16_t{0x7fa1});
}

TEST_P(ElementwiseKernels, CopiedRowsLeaveTheRest) {
  // The last ones are longer than all blocks along them.
  for (const auto& [rows, cols] : shapes<std::pair<std::int64_t, std::int64_t>>(
           {{7, 1}, {7, 6}, {7, 24}, {7, 1250}, {2, 64 * 256 * 8 + 24}}, {})) {
    for (const std::int64_t gap : {0, 1, 16}) {
      const std::int64_t stride = cols + gap;
      const Numbers in = random(type(), 1, rows * stride);
      const auto from = first().put(type(), in);
      const auto to = first().put(type(), Numbers(in.size() * 2, 0.0));
      first()->copy_rows(first().stream, from.matrix(cols, stride), to.matrix(cols, 2 * stride));
      Numbers expected(in.size() * 2, 0.0);
      place(columns(in, stride, 0, cols), expected, 2 * stride, 0, cols);
      EXPECT_EQ(to.get(), expected) << rows << " of " << cols << " and " << gap;
    }
  }
}

}  // namespace
}  // namespace shardwright::kernels::contract
