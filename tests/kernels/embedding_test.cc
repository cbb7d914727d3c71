// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/embedding.h"

#include <fmt/core.h>

#include "sim/core/base/error.h"
#include "tests/kernels/support.h"
#include "tests/oracle/linear.h"

namespace shardwright::kernels::host {
namespace {

using testing::expect_close;
using testing::on_every_isa;
using testing::Outputs;
using testing::poisoned;
using testing::random_data;
using testing::unit_roundoff;

template <class T>
class Embedding : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(Embedding, Types);

TYPED_TEST(Embedding, MatchesTheOracle) {
  using T = TypeParam;
  for (const auto& [count, vocab, cols] :
       {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 3, 5},
        {300, 101, 30},
        {20, 7, 4200}}) {
    const auto tokens = testing::random_tokens(1, count, vocab);
    const auto table = random_data<T>(2, vocab * cols), d_out = random_data<T>(3, count * cols);
    const auto head = random_data<T>(4, vocab * cols);
    const auto gradient = reference::embedding_backward(d_out.exact, cols, tokens, vocab);
    auto tied = gradient;
    for (std::size_t i = 0; i < tied.size(); ++i) tied[i] += head.exact[i];
    on_every_isa(
        [&](Parallel& parallel) {
          auto out = poisoned<T>(count * cols);
          embedding_forward<T>(parallel, {table.data(), vocab, cols}, tokens,
                               {out.data(), count, cols});
          std::vector<std::int32_t> workspace(
              static_cast<std::size_t>(embedding_workspace_ints(count, vocab)), -7);
          auto d_table = poisoned<float>(vocab * cols);
          embedding_backward<T, float>(parallel, tokens, {d_out.data(), count, cols},
                                       {d_table.data(), vocab, cols}, Store::kOverwrite, workspace);
          std::vector<T> shared = head.typed;
          embedding_backward<T, T>(parallel, tokens, {d_out.data(), count, cols},
                                   {shared.data(), vocab, cols}, Store::kAdd, workspace);
          return Outputs(out, d_table, shared);
        },
        [&](const auto& result, const std::string& isa) {
          expect_close(result.template get<0>(),
                       reference::embedding_forward(table.exact, cols, tokens), 0.0, isa + " out");
          expect_close(result.template get<1>(), gradient, 1e-6, isa + " d_table");
          expect_close(result.template get<2>(), tied, unit_roundoff<T>() + 1e-6, isa + " tied");
        });
  }
}

// A scaled table, and rows of a second one added to it.
TYPED_TEST(Embedding, ScalesAndAdds) {
  using T = TypeParam;
  const std::int64_t count = 40, vocab = 11, cols = 30;
  const auto tokens = testing::random_tokens(1, count, vocab);
  const auto table = random_data<T>(2, vocab * cols), before = random_data<T>(3, count * cols);
  auto expected = reference::embedding_forward(table.exact, cols, tokens);
  for (std::size_t i = 0; i < expected.size(); ++i)
    expected[i] = 5.5 * expected[i] + before.exact[i];
  auto gradient = reference::embedding_backward(before.exact, cols, tokens, vocab);
  for (double& one : gradient) one *= 5.5;
  on_every_isa(
      [&](Parallel& parallel) {
        std::vector<T> out = before.typed;
        embedding_forward<T>(parallel, {table.data(), vocab, cols}, tokens,
                             {out.data(), count, cols}, 5.5, Store::kAdd);
        std::vector<std::int32_t> workspace(
            static_cast<std::size_t>(embedding_workspace_ints(count, vocab)), -7);
        auto d_table = poisoned<float>(vocab * cols);
        embedding_backward<T, float>(parallel, tokens, {before.data(), count, cols},
                                     {d_table.data(), vocab, cols}, Store::kOverwrite, workspace,
                                     5.5);
        return Outputs(out, d_table);
      },
      [&](const auto& result, const std::string& isa) {
        expect_close(result.template get<0>(), expected, unit_roundoff<T>() + 1e-7, isa + " out");
        expect_close(result.template get<1>(), gradient, 1e-6, isa + " d_table");
      });
}

// The table's rows on four ranks: what they make adds up to what one makes, -0 included.
TYPED_TEST(Embedding, RanksShareATable) {
  using T = TypeParam;
  const std::int64_t count = 40, rows = 3, ranks = 4, vocab = rows * ranks, cols = 30;
  auto table = random_data<T>(2, vocab * cols).typed;
  table[0] = from_float<T>(-0.0f);
  auto tokens = testing::random_tokens(1, count, vocab);
  tokens[0] = 0;
  const auto before = random_data<T>(3, count * cols).typed;
  const std::size_t room = static_cast<std::size_t>(embedding_workspace_ints(count, vocab));
  on_every_isa(
      [&](Parallel& parallel) {
        std::vector<std::int32_t> workspace(room, -7);
        auto out = poisoned<T>(count * cols);
        auto added = before, whole_added = before;
        auto d_table = poisoned<T>(vocab * cols), whole_gradient = d_table;
        const Matrix<const T> whole(table.data(), vocab, cols), d_out(before.data(), count, cols);
        embedding_forward<T>(parallel, whole, tokens, {out.data(), count, cols});
        embedding_forward<T>(parallel, whole, tokens, {whole_added.data(), count, cols}, 5.5,
                             Store::kAdd);
        embedding_backward<T, T>(parallel, tokens, d_out, {whole_gradient.data(), vocab, cols},
                                 Store::kOverwrite, workspace);
        std::vector<float> sum(out.size(), -0.0f);
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const std::int64_t first = rank * rows;
          const Matrix<const T> part(table.data() + first * cols, rows, cols);
          auto mine = poisoned<T>(count * cols);
          embedding_forward<T>(parallel, part, tokens, {mine.data(), count, cols}, 1,
                               Store::kOverwrite, first);
          for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += to_float(mine[i]);
          embedding_forward<T>(parallel, part, tokens, {added.data(), count, cols}, 5.5,
                               Store::kAdd, first);
          embedding_backward<T, T>(parallel, tokens, d_out,
                                   {d_table.data() + first * cols, rows, cols}, Store::kOverwrite,
                                   workspace, 1, first);
        }
        std::vector<T> narrow;
        for (const float value : sum) narrow.push_back(from_float<T>(value));
        EXPECT_TRUE(testing::same_bits(narrow, out));
        EXPECT_TRUE(testing::same_bits(added, whole_added));
        EXPECT_TRUE(testing::same_bits(d_table, whole_gradient));
        return Outputs(narrow, added, d_table);
      },
      [&](const auto& result, const std::string&) {
        EXPECT_EQ(to_float(result.template get<0>()[1]), to_float(table[1]));
      });
}

TEST(EmbeddingLimits, TokensOutsideTheVocabularyAreNamed) {
  Parallel parallel(1);
  std::vector<float> table(5 * 2), out(2 * 2);
  for (const std::int32_t wrong : {-1, 5}) {
    const std::vector<std::int32_t> tokens = {0, wrong};
    try {
      embedding_forward<float>(parallel, {table.data(), 5, 2}, tokens, {out.data(), 2, 2});
      FAIL() << "accepted " << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), fmt::format("token 1 of the batch is {}, expected 0 to 4", wrong));
    }
  }
  const std::vector<std::int32_t> tokens = {7, -1};
  EXPECT_THROW(embedding_forward<float>(parallel, {table.data(), 5, 2}, tokens, {out.data(), 2, 2},
                                        1, Store::kOverwrite, 5),
               Error);
}

}  // namespace
}  // namespace shardwright::kernels::host
