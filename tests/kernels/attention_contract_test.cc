// SPDX-License-Identifier: Apache-2.0
// The host's attention and CUDA's that serves every type and size. (Tiles of flash attention:
// tests/kernels_cuda/flash_attention_test.cc.)
#include <fmt/core.h>

#include "tests/kernels/contract.h"
#include "tests/oracle/attention.h"

namespace shardwright::kernels::contract {
namespace {

/// Queries, keys and values of random numbers beside one another, and `gap` elements behind them.
struct Problem {
  AttentionShape shape;
  Tokens first_key;
  std::int64_t gap = 0;
  Numbers q, k, v, d_out;

  std::int64_t q_cols() const { return shape.heads * shape.head_dim; }
  std::int64_t kv_cols() const { return shape.kv_heads * shape.head_dim; }
  std::int64_t stride() const { return q_cols() + 2 * kv_cols() + gap; }
  std::int64_t out_stride() const { return q_cols() + gap; }
};

struct AttentionKernels : Kernels {
  Problem problem(AttentionShape shape, Tokens first_key = {}, std::int64_t gap = 0) const {
    shape.scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
    Problem p{shape, std::move(first_key), gap, {}, {}, {}, {}};
    p.q = random(type(), 1, shape.tokens() * p.q_cols(), 2.0);
    p.k = random(type(), 2, shape.tokens() * p.kv_cols(), 2.0);
    p.v = random(type(), 3, shape.tokens() * p.kv_cols());
    p.d_out = random(type(), 4, shape.tokens() * p.q_cols());
    return p;
  }

  /// out, statistics, d_q, d_k, d_v. The backward pass gets `out` and `statistics` where they are
  /// given.
  Results compute(const Place& on, const Problem& p, const Numbers& out = {},
                  const Numbers& statistics = {}) const {
    const std::int64_t tokens = p.shape.tokens();
    Numbers all(static_cast<std::size_t>(tokens * p.stride()), 7.0);
    place(p.q, all, p.stride(), 0, p.q_cols());
    place(p.k, all, p.stride(), p.q_cols(), p.kv_cols());
    place(p.v, all, p.stride(), p.q_cols() + p.kv_cols(), p.kv_cols());
    const auto wide = [&](const Numbers& rows) {
      Numbers spread(static_cast<std::size_t>(tokens * p.out_stride()), 7.0);
      place(rows, spread, p.out_stride(), 0, p.q_cols());
      return on.put(type(), spread);
    };
    const auto packed = on.put(type(), all), d_packed = on.nans(type(), std::ssize(all));
    const auto made = wide(Numbers(p.q.size(), NAN)), d_out = wide(p.d_out);
    const auto lse = on.floats(tokens * p.shape.heads);
    const auto first_key = on.raw(p.first_key);
    const auto workspace = on.floats(tokens * p.q_cols());
    const auto matrix = [&](const Tensor& rows) { return rows.matrix(p.q_cols(), p.out_stride()); };
    const exec::PackedHeads heads{packed.matrix(p.stride()), p.shape};
    const exec::PackedDocuments documents{p.first_key.empty() ? nullptr : first_key.data(), 0};
    on->attention_forward(on.stream, heads, documents, matrix(made), lse.floats());
    const Numbers made_out = columns(made.get(), p.out_stride(), 0, p.q_cols());
    const auto back = wide(out.empty() ? made_out : out);
    const auto saved = on.put(DType::kFp32, statistics.empty() ? lse.get() : statistics);
    on->attention_backward(on.stream, heads, documents, matrix(back), saved.floats(), matrix(d_out),
                           {d_packed.matrix(p.stride()), p.shape}, workspace.data(),
                           4 * tokens * p.q_cols());
    workspace.get();  // checks that nothing behind it was written
    const Numbers d = d_packed.get();
    return {made_out, lse.get(), columns(d, p.stride(), 0, p.q_cols()),
            columns(d, p.stride(), p.q_cols(), p.kv_cols()),
            columns(d, p.stride(), p.q_cols() + p.kv_cols(), p.kv_cols())};
  }

  void check(const Problem& p, const std::string& what) {
    const auto forward = reference::attention_forward(p.shape, p.q, p.k, p.v, p.first_key);
    const auto gradient = reference::attention_backward(p.shape, p.q, p.k, p.v, forward, p.d_out);
    const auto result =
        everywhere([&](const Place& on) { return compute(on, p, forward.out, forward.lse); });
    const double once = roundoff(type()) + 3e-6;
    // In bf16 the backward pass starts from a rounded output, which moves delta.
    const double through = type() == DType::kFp32 ? 1e-5 : 1e-2;
    // A single key's weight is 1 whatever its score is: two equal sums cancel.
    const double cancels = p.shape.seq == 1 ? 1 : 0;
    const AttentionShape& s = p.shape;
    const std::string where = fmt::format("{}: B {} T {} heads {}/{} D {} ", what, s.batch, s.seq,
                                          s.heads, s.kv_heads, s.head_dim);
    expect_close(result[0], forward.out, once, where + "out");
    expect_close(result[1], forward.lse, 3e-6, where + "statistics");
    expect_close(result[2], gradient.d_q, through, where + "d_q", cancels);
    expect_close(result[3], gradient.d_k, through, where + "d_k", cancels);
    expect_close(result[4], gradient.d_v, once, where + "d_v");
  }
};
INSTANTIATE_TEST_SUITE_P(On, AttentionKernels, ::testing::ValuesIn(cases()), parameter_name);

TEST_P(AttentionKernels, MatchTheOracle) {
  // One token, less than a tile, tiles cut in the middle, every head size, odd ones too.
  const auto all =
      shapes<AttentionShape>({{.batch = 1, .seq = 1, .heads = 4, .kv_heads = 2, .head_dim = 16},
                              {.batch = 2, .seq = 1, .heads = 2, .kv_heads = 2, .head_dim = 5},
                              {.batch = 2, .seq = 7, .heads = 4, .kv_heads = 2, .head_dim = 64},
                              {.batch = 2, .seq = 9, .heads = 4, .kv_heads = 2, .head_dim = 16},
                              {.batch = 1, .seq = 6, .heads = 2, .kv_heads = 1, .head_dim = 200},
                              {.batch = 1, .seq = 9, .heads = 1, .kv_heads = 1, .head_dim = 256}},
                             {{.batch = 1, .seq = 3, .heads = 128, .kv_heads = 1, .head_dim = 4},
                              {.batch = 1, .seq = 65, .heads = 4, .kv_heads = 4, .head_dim = 128},
                              {.batch = 1, .seq = 130, .heads = 6, .kv_heads = 2, .head_dim = 17},
                              {.batch = 1, .seq = 200, .heads = 2, .kv_heads = 1, .head_dim = 32}});
  for (const AttentionShape& shape : all) check(problem(shape), "plain");
}

TEST_P(AttentionKernels, CapScoresAndLowerThemWithDistance) {
  AttentionShape shape{.batch = 1, .seq = 9, .heads = 6, .kv_heads = 2, .head_dim = 16};
  if (!executor().is_slow) shape.seq = 130;
  shape.softcap = 1.5;
  check(problem(shape), "capped");
  shape.alibi = true;
  check(problem(shape), "capped with slopes");
  shape.softcap = 0;
  check(problem(shape), "with slopes");
  shape.heads = 4;
  check(problem(shape), "with slopes of four heads");
}

TEST_P(AttentionKernels, DocumentsAndWindowsMask) {
  AttentionShape shape{.batch = 2, .seq = 150, .heads = 4, .kv_heads = 2, .head_dim = 16};
  if (executor().is_slow)
    shape = {.batch = 2, .seq = 10, .heads = 2, .kv_heads = 1, .head_dim = 40};
  // In the long ones a document begins inside a tile.
  const auto seq = static_cast<std::int32_t>(shape.seq), second = seq * 7 / 15,
             third = seq * 43 / 50;
  Tokens documents, windows;
  for (std::int32_t b = 0; b < 2; ++b) {
    for (std::int32_t t = 0; t < seq; ++t) {
      documents.push_back(t < second ? 0 : t < third ? second : third);
      windows.push_back(std::max(0, t - seq / 7 - b * seq / 15));
    }
  }
  check(problem(shape, documents), "documents");
  check(problem(shape, documents, 7), "documents with gaps");
  check(problem(shape, windows), "windows");
  shape.alibi = true;
  check(problem(shape, documents), "documents with slopes");
}

TEST_P(AttentionKernels, StridesDoNotChangeBits) {
  AttentionShape shape{.batch = 2, .seq = 11, .heads = 4, .kv_heads = 2, .head_dim = 16};
  if (!executor().is_slow) shape.seq = 40;
  const auto dense = compute(first(), problem(shape));
  EXPECT_TRUE(same_bits(compute(first(), problem(shape, {}, 5)), dense));
}

TEST_P(AttentionKernels, SequencesDoNotSeeEachOther) {
  AttentionShape shape{.batch = 3, .seq = 9, .heads = 2, .kv_heads = 1, .head_dim = 16};
  if (!executor().is_slow) shape.seq = 70;
  Problem p = problem(shape);
  Results together = compute(first(), p);
  const auto cut = [](Numbers& all) {
    const auto third = std::ssize(all) / 3;
    all = {all.begin() + third, all.begin() + 2 * third};
  };
  p.shape.batch = 1;
  for (Numbers* part : {&p.q, &p.k, &p.v, &p.d_out}) cut(*part);
  for (Numbers& part : together) cut(part);
  EXPECT_TRUE(same_bits(compute(first(), p), together));
}

TEST_P(AttentionKernels, LargeScoresStayFinite) {
  AttentionShape shape{.batch = 1, .seq = 12, .heads = 2, .kv_heads = 2, .head_dim = 16};
  if (!executor().is_slow) shape.seq = 100;
  Problem p = problem(shape);
  for (double& x : p.q) x = rounded(type(), 100 * x);
  for (const Numbers& part : compute(first(), p)) {
    for (const double value : part) ASSERT_TRUE(std::isfinite(value));
  }
}

}  // namespace
}  // namespace shardwright::kernels::contract
