// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/embedding.h"

#include "tests/kernels_cuda/support.h"
#include "tests/oracle/linear.h"

namespace shardwright::kernels::cuda {
namespace {

using testing::expect_close;
using testing::in_every_order;
using testing::OnDevice;
using testing::Outputs;
using testing::poisoned;
using testing::random_data;
using testing::unit_roundoff;

template <class T>
class CudaEmbedding : public testing::CudaTest {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(CudaEmbedding, Types);

TYPED_TEST(CudaEmbedding, MatchesTheOracle) {
  using T = TypeParam;
  // Lists from nothing to longer than a block; rows that allow chunks and rows that do not.
  for (const auto& [count, vocab, cols] :
       {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 3, 5},
        {300, 101, 24},
        {700, 2, 7},
        {20, 7, 2104}}) {
    const auto tokens = testing::random_tokens(1, count, vocab);
    const auto table = random_data<T>(2, vocab * cols), d_out = random_data<T>(3, count * cols);
    const auto head = random_data<T>(4, vocab * cols);
    const auto gradient = reference::embedding_backward(d_out.exact, cols, tokens, vocab);
    auto tied = gradient;
    for (std::size_t i = 0; i < tied.size(); ++i) tied[i] += head.exact[i];
    const OnDevice<std::int32_t> on_tokens(tokens);
    const OnDevice<T> on_table(table.typed), on_d_out(d_out.typed);
    const auto result = in_every_order([&, count = count, vocab = vocab, cols = cols] {
      const OnDevice<T> out(count * cols), shared(head.typed);
      const OnDevice<float> d_table(vocab * cols);
      const OnDevice<BFloat16> narrow(vocab * cols);
      const OnDevice<std::int32_t> workspace(embedding_workspace_ints(count, vocab));
      embedding_forward<T>(nullptr, {on_table.data(), vocab, cols}, on_tokens.data(),
                           {out.data(), count, cols});
      embedding_backward<T, BFloat16>(nullptr, on_tokens.data(), {on_d_out.data(), count, cols},
                                      {narrow.data(), vocab, cols}, host::Store::kOverwrite,
                                      workspace.data());
      embedding_backward<T, float>(nullptr, on_tokens.data(), {on_d_out.data(), count, cols},
                                   {d_table.data(), vocab, cols}, host::Store::kOverwrite,
                                   workspace.data());
      embedding_backward<T, T>(nullptr, on_tokens.data(), {on_d_out.data(), count, cols},
                               {shared.data(), vocab, cols}, host::Store::kAdd, workspace.data());
      return Outputs(out.get(), d_table.get(), shared.get(), narrow.get());
    });
    expect_close(result.template get<0>(), reference::embedding_forward(table.exact, cols, tokens),
                 0.0, "out");
    expect_close(result.template get<1>(), gradient, 2e-6, "d_table");
    expect_close(result.template get<2>(), tied, unit_roundoff<T>() + 2e-6, "tied");
    expect_close(result.template get<3>(), gradient, unit_roundoff<BFloat16>() + 2e-6, "narrow");
  }
}

// A scaled table, and rows of a second one added to it.
TYPED_TEST(CudaEmbedding, ScalesAndAdds) {
  using T = TypeParam;
  const std::int64_t count = 40, vocab = 11;
  for (const std::int64_t cols : {24, 7}) {
    const auto tokens = testing::random_tokens(1, count, vocab);
    const auto table = random_data<T>(2, vocab * cols), before = random_data<T>(3, count * cols);
    auto expected = reference::embedding_forward(table.exact, cols, tokens);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] = 5.5 * expected[i] + before.exact[i];
    }
    auto gradient = reference::embedding_backward(before.exact, cols, tokens, vocab);
    for (double& one : gradient) one *= 5.5;
    const OnDevice<std::int32_t> on_tokens(tokens);
    const OnDevice<T> on_table(table.typed), d_out(before.typed);
    const auto result = in_every_order([&, cols = cols] {
      const OnDevice<T> out(before.typed);
      const OnDevice<float> d_table(vocab * cols);
      const OnDevice<std::int32_t> workspace(embedding_workspace_ints(count, vocab));
      embedding_forward<T>(nullptr, {on_table.data(), vocab, cols}, on_tokens.data(),
                           {out.data(), count, cols}, 5.5, host::Store::kAdd);
      embedding_backward<T, float>(nullptr, on_tokens.data(), {d_out.data(), count, cols},
                                   {d_table.data(), vocab, cols}, host::Store::kOverwrite,
                                   workspace.data(), 5.5);
      return Outputs(out.get(), d_table.get());
    });
    expect_close(result.template get<0>(), expected, unit_roundoff<T>() + 1e-7, "out");
    expect_close(result.template get<1>(), gradient, 2e-6, "d_table");
  }
}

// More rows than one round of the scan, or one round of all blocks, holds.
using CudaEmbeddingLimits = testing::CudaTest;
TEST_F(CudaEmbeddingLimits, LargeVocabulary) {
  const std::int64_t vocab = 17001, count = 2000, cols = 4;
  const auto tokens = testing::random_tokens(5, count, vocab);
  const auto d_out = random_data<float>(6, count * cols);
  const OnDevice<std::int32_t> on_tokens(tokens);
  const OnDevice<float> on_d_out(d_out.typed);
  const auto result = in_every_order([&] {
    const OnDevice<std::int32_t> workspace(embedding_workspace_ints(count, vocab));
    const OnDevice<float> d_table(vocab * cols);
    embedding_backward<float, float>(nullptr, on_tokens.data(), {on_d_out.data(), count, cols},
                                     {d_table.data(), vocab, cols}, host::Store::kOverwrite,
                                     workspace.data());
    return Outputs(d_table.get());
  });
  expect_close(result.get<0>(), reference::embedding_backward(d_out.exact, cols, tokens, vocab),
               1e-6, "d_table");
}

// The table's rows on four ranks: what they make adds up to what one makes, -0 included.
TYPED_TEST(CudaEmbedding, RanksShareATable) {
  using T = TypeParam;
  const std::int64_t count = 40, rows = 3, ranks = 4, vocab = rows * ranks;
  for (const std::int64_t cols : {24, 7}) {
    auto table = random_data<T>(2, vocab * cols).typed;
    table[0] = from_float<T>(-0.0f);
    auto tokens = testing::random_tokens(1, count, vocab);
    tokens[0] = 0;
    const auto before = random_data<T>(3, count * cols).typed;
    const OnDevice<std::int32_t> on_tokens(tokens),
        workspace(embedding_workspace_ints(count, vocab));
    const OnDevice<T> on_table(table), d_out(before), out(count * cols), added(before),
        added_parts(before), gradient(vocab * cols), gradient_parts(vocab * cols);
    embedding_forward<T>(nullptr, {on_table.data(), vocab, cols}, on_tokens.data(),
                         {out.data(), count, cols});
    embedding_forward<T>(nullptr, {on_table.data(), vocab, cols}, on_tokens.data(),
                         {added.data(), count, cols}, 5.5, host::Store::kAdd);
    embedding_backward<T, T>(nullptr, on_tokens.data(), {d_out.data(), count, cols},
                             {gradient.data(), vocab, cols}, host::Store::kOverwrite,
                             workspace.data());
    std::vector<float> sum(before.size(), -0.0f);
    for (std::int64_t first = 0; first < vocab; first += rows) {
      const host::Matrix<const T> part(on_table.data() + first * cols, rows, cols);
      const OnDevice<T> mine(count * cols);
      embedding_forward<T>(nullptr, part, on_tokens.data(), {mine.data(), count, cols}, 1,
                           host::Store::kOverwrite, first);
      const auto made = mine.get();
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += to_float(made[i]);
      embedding_forward<T>(nullptr, part, on_tokens.data(), {added_parts.data(), count, cols}, 5.5,
                           host::Store::kAdd, first);
      embedding_backward<T, T>(nullptr, on_tokens.data(), {d_out.data(), count, cols},
                               {gradient_parts.data() + first * cols, rows, cols},
                               host::Store::kOverwrite, workspace.data(), 1, first);
    }
    std::vector<T> narrow;
    for (const float value : sum) narrow.push_back(from_float<T>(value));
    EXPECT_TRUE(testing::same_bits(narrow, out.get())) << cols;
    EXPECT_TRUE(testing::same_bits(added_parts.get(), added.get())) << cols;
    EXPECT_TRUE(testing::same_bits(gradient_parts.get(), gradient.get())) << cols;
  }
}

TYPED_TEST(CudaEmbedding, TokensOutsideTheVocabularyShow) {
  using T = TypeParam;
  const OnDevice<std::int32_t> tokens(std::vector<std::int32_t>{0, -1, 5, 4});
  const OnDevice<T> table(random_data<T>(1, 5 * 8).typed), out(4 * 8);
  embedding_forward<T>(nullptr, {table.data(), 5, 8}, tokens.data(), {out.data(), 4, 8});
  const auto rows = out.get();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(std::isnan(to_float(rows[i])), i / 8 == 1 || i / 8 == 2) << i;
  }
  embedding_forward<T>(nullptr, {table.data(), 5, 8}, tokens.data(), {out.data(), 4, 8}, 1,
                       host::Store::kOverwrite, 1);
  EXPECT_TRUE(std::isnan(to_float(out.get()[8])));
  EXPECT_FALSE(std::isnan(to_float(out.get()[0])));
  // Their gradients go nowhere.
  const auto d_out = random_data<T>(2, 4 * 8);
  const OnDevice<T> on_d_out(d_out.typed), d_table(5 * 8);
  const OnDevice<std::int32_t> workspace(embedding_workspace_ints(4, 5));
  embedding_backward<T, T>(nullptr, tokens.data(), {on_d_out.data(), 4, 8}, {d_table.data(), 5, 8},
                           host::Store::kOverwrite, workspace.data());
  const auto gradient = d_table.get();
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const std::size_t place = i / 8 == 0 ? 0 : 3;
    EXPECT_EQ(gradient[i],
              i / 8 == 0 || i / 8 == 4 ? d_out.typed[place * 8 + i % 8] : from_float<T>(0.0f));
  }
}

}  // namespace
}  // namespace shardwright::kernels::cuda
