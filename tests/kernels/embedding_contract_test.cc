// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <gmock/gmock.h>

#include "sim/core/base/error.h"
#include "tests/kernels/contract.h"
#include "tests/oracle/linear.h"

namespace shardwright::kernels::contract {
namespace {

using exec::kWholeTable;

struct EmbeddingKernels : Kernels {};
INSTANTIATE_TEST_SUITE_P(On, EmbeddingKernels, ::testing::ValuesIn(cases()), parameter_name);

TEST_P(EmbeddingKernels, MatchTheOracle) {
  struct Shape {
    std::int64_t count, vocab, cols;
  };
  // Lists from nothing to longer than a block; rows that allow chunks and rows that do not.
  for (const auto& [count, vocab, cols] :
       shapes<Shape>({{1, 3, 5}, {300, 101, 24}, {300, 101, 30}, {700, 2, 7}, {20, 7, 2104}},
                     {{20, 7, 4200}})) {
    const Tokens tokens = random_tokens(1, count, vocab);
    const auto table = random(type(), 2, vocab * cols), d_out = random(type(), 3, count * cols);
    const auto head = random(type(), 4, vocab * cols);
    const auto gradient = reference::embedding_backward(d_out, cols, tokens, vocab);
    const std::int64_t ints = embedding_workspace_ints(count, vocab), size = vocab * cols;
    const auto result = everywhere([&, count = count, cols = cols](const Place& on) -> Results {
      const auto ids = on.raw(tokens), scratch = on.integers(ints);
      const auto in = on.put(type(), table), d_rows = on.put(type(), d_out);
      const auto out = on.nans(type(), count * cols), shared = on.put(type(), head);
      const auto wide = on.floats(size), narrow = on.nans(DType::kBf16, size);
      on->embedding_forward(on.stream, in.matrix(cols), kWholeTable, ids.data(), 1, false,
                            out.matrix(cols));
      for (const auto& [d_table, adds] :
           {std::pair{&narrow, false}, std::pair{&wide, false}, std::pair{&shared, true}}) {
        on->embedding_backward(on.stream, ids.data(), d_rows.matrix(cols), 1, adds,
                               d_table->matrix(cols), kWholeTable, scratch.data());
      }
      return {out.get(), wide.get(), shared.get(), narrow.get()};
    });
    expect_close(result[0], reference::embedding_forward(table, cols, tokens), 0.0, "out");
    expect_close(result[1], gradient, 2e-6, "d_table");
    expect_close(result[2], gradient + head, roundoff(type()) + 2e-6, "tied");
    expect_close(result[3], gradient, roundoff(DType::kBf16) + 2e-6, "narrow");
  }
}

struct EmbeddingOfALargeVocabularyKernels : Kernels {};
INSTANTIATE_TEST_SUITE_P(On, EmbeddingOfALargeVocabularyKernels, ::testing::ValuesIn(fp32_cases()),
                         parameter_name);

// More rows than one round of the scan, or one round of all blocks, holds.
TEST_P(EmbeddingOfALargeVocabularyKernels, MatchTheOracle) {
  const std::int64_t vocab = 17001, count = 2000, cols = 4;
  const Tokens tokens = random_tokens(5, count, vocab);
  const auto d_out = random(type(), 6, count * cols);
  const auto result = everywhere([&](const Place& on) -> Results {
    const auto ids = on.raw(tokens), scratch = on.integers(embedding_workspace_ints(count, vocab));
    const auto d_rows = on.put(type(), d_out), d_table = on.floats(vocab * cols);
    on->embedding_backward(on.stream, ids.data(), d_rows.matrix(cols), 1, false,
                           d_table.matrix(cols), kWholeTable, scratch.data());
    return {d_table.get()};
  });
  expect_close(result[0], reference::embedding_backward(d_out, cols, tokens, vocab), 1e-6,
               "d_table");
}

// A scaled table, and rows of a second one added to it.
TEST_P(EmbeddingKernels, ScaleAndAdd) {
  const std::int64_t count = 40, vocab = 11;
  for (const std::int64_t cols : {24, 30, 7}) {
    const Tokens tokens = random_tokens(1, count, vocab);
    const auto table = random(type(), 2, vocab * cols), before = random(type(), 3, count * cols);
    const auto result = everywhere([&](const Place& on) -> Results {
      const auto ids = on.raw(tokens),
                 scratch = on.integers(embedding_workspace_ints(count, vocab));
      const auto in = on.put(type(), table), out = on.put(type(), before);
      const auto d_out = on.put(type(), before), d_table = on.floats(vocab * cols);
      on->embedding_forward(on.stream, in.matrix(cols), kWholeTable, ids.data(), 5.5, true,
                            out.matrix(cols));
      on->embedding_backward(on.stream, ids.data(), d_out.matrix(cols), 5.5, false,
                             d_table.matrix(cols), kWholeTable, scratch.data());
      return {out.get(), d_table.get()};
    });
    expect_close(result[0], 5.5 * reference::embedding_forward(table, cols, tokens) + before,
                 roundoff(type()) + 1e-7, "out");
    expect_close(result[1], 5.5 * reference::embedding_backward(before, cols, tokens, vocab), 2e-6,
                 "d_table");
  }
}

// The table's rows on four ranks: what they make adds up to what one makes, -0 included.
TEST_P(EmbeddingKernels, RanksShareATable) {
  const std::int64_t count = 40, rows = 3, ranks = 4, vocab = rows * ranks;
  for (const std::int64_t cols : {24, 30, 7}) {
    auto table = random(type(), 2, vocab * cols);
    table[0] = -0.0;
    Tokens tokens = random_tokens(1, count, vocab);
    tokens[0] = 0;
    const auto before = random(type(), 3, count * cols);
    everywhere([&](const Place& on) -> Results {
      const auto ids = on.raw(tokens),
                 scratch = on.integers(embedding_workspace_ints(count, vocab));
      const auto whole = on.put(type(), table), d_out = on.put(type(), before);
      const auto out = on.nans(type(), count * cols), mine = on.nans(type(), count * cols);
      const auto added = on.put(type(), before), added_parts = on.put(type(), before);
      const auto d_table = on.nans(type(), vocab * cols), d_parts = on.nans(type(), vocab * cols);
      on->embedding_forward(on.stream, whole.matrix(cols), kWholeTable, ids.data(), 1, false,
                            out.matrix(cols));
      on->embedding_forward(on.stream, whole.matrix(cols), kWholeTable, ids.data(), 5.5, true,
                            added.matrix(cols));
      on->embedding_backward(on.stream, ids.data(), d_out.matrix(cols), 1, false,
                             d_table.matrix(cols), kWholeTable, scratch.data());
      Numbers sum(before.size(), -0.0);
      for (std::int64_t first = 0; first < vocab; first += rows) {
        const exec::Matrix part = whole.matrix(cols).row_range(first, rows);
        on->embedding_forward(on.stream, part, first, ids.data(), 1, false, mine.matrix(cols));
        sum = sum + mine.get();
        on->embedding_forward(on.stream, part, first, ids.data(), 5.5, true,
                              added_parts.matrix(cols));
        on->embedding_backward(on.stream, ids.data(), d_out.matrix(cols), 1, false,
                               d_parts.matrix(cols).row_range(first, rows), first, scratch.data());
      }
      EXPECT_TRUE(same_bits({out.get(), added.get(), d_table.get()},
                            {sum, added_parts.get(), d_parts.get()}));
      EXPECT_EQ(sum[1], table[1]);
      return {sum, added.get(), d_table.get()};
    });
  }
}

// The host names them; elsewhere they show as NaN, and their gradients go nowhere.
TEST_P(EmbeddingKernels, TokensOutsideTheVocabularyShow) {
  for (const auto& [wrong, first_row] : {std::pair{-1, kWholeTable}, {5, kWholeTable}, {-1, 1L}}) {
    const Place on(executor().make(0));
    const auto ids = on.raw(Tokens{0, wrong, 4});
    const auto table = on.put(type(), random(type(), 1, 5 * 8)), out = on.nans(type(), 3 * 8);
    on->embedding_forward(on.stream, table.matrix(8), first_row, ids.data(), 1, false,
                          out.matrix(8));
    if (executor().is_host) {
      const std::string named =
          first_row == kWholeTable
              ? fmt::format("token 1 of the batch is {}, expected 0 to 4", wrong)
              : "token 1 ";
      EXPECT_THAT([&] { on->synchronize(); },
                  ::testing::ThrowsMessage<Error>(::testing::HasSubstr(named)));
      continue;
    }
    const Numbers rows = out.get();
    for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(std::isnan(rows[i]), i / 8 == 1) << i;
    if (first_row != kWholeTable) continue;
    const auto d_out = random(type(), 2, 3 * 8);
    const auto d_rows = on.put(type(), d_out), d_table = on.nans(type(), 5 * 8);
    const auto scratch = on.integers(embedding_workspace_ints(3, 5));
    on->embedding_backward(on.stream, ids.data(), d_rows.matrix(8), 1, false, d_table.matrix(8),
                           kWholeTable, scratch.data());
    Numbers expected(5 * 8, 0.0);
    std::copy_n(d_out.begin(), 8, expected.begin());
    std::copy_n(d_out.begin() + 16, 8, expected.begin() + 32);
    EXPECT_EQ(d_table.get(), expected);
  }
}

}  // namespace
}  // namespace shardwright::kernels::contract
