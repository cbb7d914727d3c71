// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/elementwise.h"

#include "sim/core/base/error.h"
#include "tests/kernels_cuda/support.h"
#include "tests/oracle/fold_tree.h"

namespace shardwright::kernels::cuda {
namespace {

using testing::in_every_order;
using testing::OnDevice;
using testing::Outputs;
using testing::random_data;

using Elementwise = testing::CudaTest;

// Sizes around the width of a chunk and of a block; offsets by which arrays are displaced alike or
// differently.
constexpr std::int64_t kSizes[] = {1, 7, 16, 33, 1000, 20011};
constexpr std::pair<std::int64_t, std::int64_t> kOffsets[] = {{0, 0}, {3, 3}, {8, 0}, {0, 1}};

TEST_F(Elementwise, CastRoundsToNearestEven) {
  for (const std::int64_t size : kSizes) {
    auto in = random_data<float>(1, size);
    in.typed.back() = -0.0f;
    in.typed.front() = 3.4e38f;  // rounds to infinity
    for (const auto& [from, to] : kOffsets) {
      const auto result = in_every_order([&, from = from, to = to] {
        const OnDevice<float> wide(in.typed, from);
        const OnDevice<BFloat16> narrow(size, to);
        const OnDevice<float> again(size, from);
        cast(nullptr, wide.data(), narrow.data(), size);
        cast(nullptr, static_cast<const BFloat16*>(narrow.data()), again.data(), size);
        return Outputs(narrow.get(), again.get());
      });
      for (std::size_t i = 0; i < in.typed.size(); ++i) {
        ASSERT_EQ(result.template get<0>()[i], to_bf16(in.typed[i])) << i;
        ASSERT_EQ(result.template get<1>()[i], to_float(to_bf16(in.typed[i])));
      }
    }
  }
}

template <class T>
void check_copy() {
  for (const std::int64_t size : kSizes) {
    const auto in = random_data<T>(1, size);
    for (const auto& [from, to] : kOffsets) {
      const OnDevice<T> source(in.typed, from), copy(size, to);
      cast(nullptr, static_cast<const T*>(source.data()), copy.data(), size);
      EXPECT_TRUE(testing::same_bits(copy.get(), in.typed)) << size;
    }
  }
}

TEST_F(Elementwise, CastToTheSameTypeCopies) {
  check_copy<float>();
  check_copy<BFloat16>();
}

template <class In, class Sum>
void check_sums() {
  for (const std::int64_t size : kSizes) {
    const auto a = random_data<In>(1, size), b = random_data<In>(2, size);
    const auto c = random_data<In>(3, size);
    const auto start = random_data<Sum>(4, size);
    for (const auto& [from, to] : kOffsets) {
      const OnDevice<In> on_a(a.typed, from), on_b(b.typed, to), on_c(c.typed, from);
      const void* inputs[] = {on_a.data(), on_b.data(), on_c.data()};
      const auto result = in_every_order([&, to = to] {
        const OnDevice<Sum> sum(start.typed, to), folded(size, to), added(start.typed, to);
        accumulate<In, Sum>(nullptr, on_a.data(), sum.data(), size);
        fold<In, Sum>(nullptr, inputs, folded.data(), false, size);
        fold<In, Sum>(nullptr, inputs, added.data(), true, size);
        return Outputs(sum.get(), folded.get(), added.get());
      });
      for (std::size_t i = 0; i < start.typed.size(); ++i) {
        const float x = to_float(a.typed[i]), y = to_float(b.typed[i]), z = to_float(c.typed[i]);
        const float s = to_float(start.typed[i]);
        ASSERT_EQ(result.template get<0>()[i], from_float<Sum>(s + x)) << i;
        ASSERT_EQ(result.template get<1>()[i], from_float<Sum>(x + y + z)) << i;
        ASSERT_EQ(result.template get<2>()[i], from_float<Sum>(s + x + y + z)) << i;
      }
    }
  }
}

TEST_F(Elementwise, SumsAreRoundedOnce) {
  check_sums<float, float>();
  check_sums<float, BFloat16>();
  check_sums<BFloat16, float>();
  check_sums<BFloat16, BFloat16>();
}

template <class In, class Out>
void check_tree(std::size_t leaf_count, std::int64_t size, std::int64_t offset, std::int64_t to) {
  std::vector<std::vector<In>> leaves;
  std::vector<OnDevice<In>> on_leaves;
  std::vector<const void*> inputs;
  for (std::size_t i = 0; i < leaf_count; ++i) {
    leaves.push_back(random_data<In>(10 + i, size).typed);
    inputs.push_back(on_leaves.emplace_back(leaves.back(), offset).data());
  }
  const auto start = random_data<Out>(4, size);
  const auto result = in_every_order([&] {
    const OnDevice<Out> folded(size, to), added(start.typed, to);
    fold_tree<In, Out>(nullptr, inputs, folded.data(), false, size);
    fold_tree<In, Out>(nullptr, inputs, added.data(), true, size);
    return Outputs(folded.get(), added.get());
  });
  for (std::size_t i = 0; i < start.typed.size(); ++i) {
    const float root = reference::fold_tree(leaves, 0, leaf_count, i);
    const float s = to_float(start.typed[i]);
    ASSERT_EQ(result.template get<0>()[i], from_float<Out>(root)) << leaf_count;
    ASSERT_EQ(result.template get<1>()[i], from_float<Out>(s + root)) << leaf_count;
  }
}

template <class In, class Out>
void check_trees() {
  for (const std::size_t leaf_count : {1, 2, 4, 8, 256}) check_tree<In, Out>(leaf_count, 33, 3, 1);
  check_tree<In, Out>(8, 1000, 0, 0);
  check_tree<In, Out>(16, 100, 0, 0);
}

TEST_F(Elementwise, ATreeIsTheOracles) {
  check_trees<float, float>();
  check_trees<float, BFloat16>();
  check_trees<BFloat16, float>();
  check_trees<BFloat16, BFloat16>();
}

TEST_F(Elementwise, NestedTreesAreTheFlatOne) {
  const std::int64_t size = 1000;
  std::vector<OnDevice<BFloat16>> leaves;
  for (std::uint64_t i = 0; i < 8; ++i) {
    leaves.emplace_back(random_data<BFloat16>(i, size).typed);
  }
  const auto folded = [&](std::vector<const void*> inputs, const std::vector<std::size_t>& levels) {
    std::vector<OnDevice<BFloat16>> sums;
    sums.reserve(16);
    for (const std::size_t group : levels) {
      std::vector<const void*> outputs;
      for (std::size_t first = 0; first < inputs.size(); first += group) {
        outputs.push_back(sums.emplace_back(size).data());
        fold_tree<BFloat16, BFloat16>(nullptr, std::span(inputs).subspan(first, group),
                                      sums.back().data(), false, size);
      }
      inputs = outputs;
    }
    return sums.back().get();
  };
  std::vector<const void*> inputs;
  for (const auto& leaf : leaves) inputs.push_back(leaf.data());
  const auto flat = folded(inputs, {8});
  for (const std::vector<std::size_t>& levels :
       {std::vector<std::size_t>{2, 4}, {4, 2}, {2, 2, 2}}) {
    EXPECT_TRUE(testing::same_bits(folded(inputs, levels), flat));
  }
}

TEST_F(Elementwise, ATreeTakesAPowerOfTwo) {
  const std::vector<const void*> inputs(3);
  float* nowhere = nullptr;
  EXPECT_THROW((fold_tree<float, float>(nullptr, inputs, nowhere, false, 0)), Error);
  const std::vector<const void*> many(2 * kMaxFoldInputs);
  EXPECT_THROW((fold_tree<float, float>(nullptr, many, nowhere, false, 0)), Error);
}

TEST_F(Elementwise, FoldMayWriteToAnInput) {
  const auto a = random_data<float>(1, 100), b = random_data<float>(2, 100);
  const OnDevice<float> on_a(a.typed), on_b(b.typed);
  const void* inputs[] = {on_a.data(), on_b.data()};
  fold<float, float>(nullptr, inputs, on_b.data(), false, 100);
  const auto sum = on_b.get();
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(sum[i], a.typed[i] + b.typed[i]);
}

// More elements than one round of all blocks takes, and rows longer than all blocks along them.
TEST_F(Elementwise, LongArraysAreWalkedOver) {
  const std::int64_t size = 4096 * 256 + 1000;
  std::vector<BFloat16> in;
  for (std::int64_t i = 0; i < size; ++i) in.push_back({static_cast<std::uint16_t>(i % 32000)});
  const OnDevice<BFloat16> from(in, 1), to(size, 2);  // one element at a time
  cast(nullptr, static_cast<const BFloat16*>(from.data()), to.data(), size);
  EXPECT_TRUE(testing::same_bits(to.get(), in));

  const std::int64_t row_bytes = 64 * 256 * 16 + 48;
  std::vector<std::uint8_t> rows;
  for (std::int64_t i = 0; i < 2 * row_bytes; ++i) rows.push_back(static_cast<std::uint8_t>(i / 3));
  const OnDevice<std::uint8_t> from_rows(rows), to_rows(2 * row_bytes);
  copy_rows(nullptr, from_rows.data(), row_bytes, to_rows.data(), row_bytes, 2, row_bytes);
  EXPECT_TRUE(to_rows.get() == rows);
}

TEST_F(Elementwise, FoldRefusesMoreThanItTakes) {
  const std::vector<const void*> inputs(kMaxFoldInputs + 1);
  float* nowhere = nullptr;
  EXPECT_THROW((fold<float, float>(nullptr, inputs, nowhere, false, 0)), Error);
}

TEST_F(Elementwise, PoisonIsWhatTheHostWrites) {
  const OnDevice<float> wide(std::vector<float>(100, 1.0f), 1);
  const OnDevice<BFloat16> narrow(std::vector<BFloat16>(100), 3);
  poison(nullptr, wide.data(), 99);
  poison(nullptr, narrow.data(), 99);
  const auto w = wide.get();
  const auto n = narrow.get();
  for (std::size_t i = 0; i < 99; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, &w[i], 4);
    EXPECT_EQ(bits, 0x7fa00001u);
    EXPECT_EQ(n[i].bits, 0x7fa1);
  }
  EXPECT_EQ(w[99], 1.0f);
  // Too short to reach an address where chunks begin.
  const OnDevice<float> short_wide(std::vector<float>(3, 1.0f), 1);
  const OnDevice<BFloat16> short_narrow(std::vector<BFloat16>(3), 3);
  poison(nullptr, short_wide.data(), 2);
  poison(nullptr, short_narrow.data(), 2);
  EXPECT_TRUE(std::isnan(short_wide.get()[1]) && short_wide.get()[2] == 1.0f);
  EXPECT_EQ(short_narrow.get()[1].bits, 0x7fa1);
  EXPECT_EQ(short_narrow.get()[2].bits, 0);
  EXPECT_EQ(n[99].bits, 0);
}

TEST_F(Elementwise, CopyRowsLeavesTheRestOfRows) {
  for (const std::int64_t row_bytes : {1, 2, 12, 48, 5000}) {
    for (const std::int64_t gap : {0, 1, 16}) {
      const std::int64_t rows = 7, stride = row_bytes + gap;
      std::vector<std::uint8_t> in;
      for (std::int64_t i = 0; i < rows * stride; ++i) {
        in.push_back(static_cast<std::uint8_t>(i * 7));
      }
      const std::int64_t wide = 2 * stride;
      const OnDevice<std::uint8_t> from(in);
      const OnDevice<std::uint8_t> to(
          std::vector<std::uint8_t>(static_cast<std::size_t>(rows * wide)));
      copy_rows(nullptr, from.data(), stride, to.data(), wide, rows, row_bytes);
      const auto out = to.get();
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t i = 0; i < wide; ++i) {
          ASSERT_EQ(out[static_cast<std::size_t>(row * wide + i)],
                    i < row_bytes ? in[static_cast<std::size_t>(row * stride + i)] : 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardwright::kernels::cuda
