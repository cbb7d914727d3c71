#include <cmath>
#include <optional>
#include <string>

#include "kernels/cuda/attention.h"
#include "kernels/reference/attention.h"
#include "tests/kernels_cuda/support.h"

namespace shardwright::kernels::cuda {
namespace {

using testing::dot;
using testing::expect_close;
using testing::in_every_order;
using testing::OnDevice;
using testing::Outputs;
using testing::random_data;

using Bits = std::vector<BFloat16>;
using Numbers = std::vector<double>;

/// Queries, keys and values of random numbers, packed, and a gradient of the output.
struct Problem {
  AttentionProblem problem;
  std::vector<std::int32_t> first_key;
  testing::Data<BFloat16> q, k, v, d_out;
  Bits packed;

  Problem(AttentionShape shape, std::vector<std::int32_t> first = {})
      : first_key(std::move(first)) {
    shape.scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
    const std::int64_t q_cols = shape.heads * shape.head_dim;
    const std::int64_t kv_cols = shape.kv_heads * shape.head_dim;
    problem = {.shape = shape,
               .packed_stride = q_cols + 2 * kv_cols,
               .out_stride = q_cols,
               .documents = !first_key.empty()};
    q = random_data<BFloat16>(1, shape.tokens() * q_cols, 2.0);
    k = random_data<BFloat16>(2, shape.tokens() * kv_cols, 2.0);
    v = random_data<BFloat16>(3, shape.tokens() * kv_cols);
    d_out = random_data<BFloat16>(4, shape.tokens() * q_cols);
    packed.resize(static_cast<std::size_t>(shape.tokens() * problem.packed_stride));
    place(q.typed, 0, q_cols);
    place(k.typed, q_cols, kv_cols);
    place(v.typed, q_cols + kv_cols, kv_cols);
  }

  /// One of the three out of a packed array.
  Bits part(const Bits& from, std::int64_t column, std::int64_t cols) const {
    Bits result;
    for (std::int64_t t = 0; t < problem.shape.tokens(); ++t) {
      const auto begin = from.begin() + t * problem.packed_stride + column;
      result.insert(result.end(), begin, begin + cols);
    }
    return result;
  }

 private:
  void place(const Bits& rows, std::int64_t column, std::int64_t cols) {
    for (std::int64_t t = 0; t < problem.shape.tokens(); ++t) {
      std::copy_n(rows.begin() + t * cols, cols,
                  packed.begin() + t * problem.packed_stride + column);
    }
  }
};

/// Output, statistics and packed gradients. What is not written stays NaN.
auto compute(const Problem& p) {
  const auto attention = make_flash_attention();
  const AttentionProblem& problem = p.problem;
  EXPECT_EQ(attention->refusal(problem), "");
  const AttentionShape& s = problem.shape;
  const OnDevice<BFloat16> packed(p.packed), d_out(p.d_out.typed);
  std::optional<OnDevice<std::int32_t>> first_key;
  if (problem.documents) first_key.emplace(p.first_key);
  const std::int32_t* first = first_key ? first_key->data() : nullptr;
  const OnDevice<BFloat16> out(s.tokens() * problem.out_stride);
  const OnDevice<BFloat16> d_packed(s.tokens() * problem.packed_stride);
  const OnDevice<float> statistics(s.tokens() * s.heads);
  const OnDevice<float> workspace((attention->backward_workspace_bytes(problem) + 3) / 4);
  EXPECT_EQ(attention->forward_workspace_bytes(problem), 0);
  attention->forward(problem, {packed.data(), first, out.data(), statistics.data(), nullptr},
                     nullptr);
  attention->backward(problem,
                      {packed.data(), first, out.data(), statistics.data(), d_out.data(),
                       d_packed.data(), workspace.data()},
                      nullptr);
  workspace.get();  // checks that nothing behind it was written
  return Outputs(out.get(), statistics.get(), d_packed.get());
}

void expect_same_direction(const Bits& actual, const Numbers& expected, const std::string& what) {
  Numbers numbers;
  for (const BFloat16 value : actual) numbers.push_back(to_float(value));
  const double length = dot(expected, expected);
  const double cosine = dot(numbers, expected) / std::sqrt(dot(numbers, numbers) * length);
  EXPECT_GT(cosine, 0.9999) << what;
}

template <class Result>
void expect_matches(const Problem& p, const Result& result, const std::string& what) {
  const AttentionShape& s = p.problem.shape;
  const auto forward =
      reference::attention_forward(s, p.q.exact, p.k.exact, p.v.exact, p.first_key);
  const auto gradient =
      reference::attention_backward(s, p.q.exact, p.k.exact, p.v.exact, forward, p.d_out.exact);
  // Outputs are rounded to bf16 once, after probabilities were rounded to bf16.
  expect_close(result.template get<0>(), forward.out, 0x1p-7, what + " out");
  expect_close(result.template get<1>(), forward.lse, 1e-5, what + " statistics");
  const std::int64_t q_cols = s.heads * s.head_dim, kv_cols = s.kv_heads * s.head_dim;
  const auto check = [&](std::int64_t column, std::int64_t cols, const Numbers& expected,
                         const char* name) {
    const Bits actual = p.part(result.template get<2>(), column, cols);
    if (dot(expected, expected) == 0) {
      // A query that sees one key: d_scores is a difference of equal sums.
      for (const BFloat16 value : actual)
        EXPECT_LT(std::abs(to_float(value)), 1e-5) << what << name;
      return;
    }
    // The backward pass starts from the rounded output and rounds dS, too.
    expect_close(actual, expected, 0x1p-6, what + name);
    expect_same_direction(actual, expected, what + name);
  };
  check(0, q_cols, gradient.d_q, " d_q");
  check(q_cols, kv_cols, gradient.d_k, " d_k");
  check(q_cols + kv_cols, kv_cols, gradient.d_v, " d_v");
}

std::string name_of(const AttentionShape& s) {
  return "B " + std::to_string(s.batch) + " T " + std::to_string(s.seq) + " heads " +
         std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " D " +
         std::to_string(s.head_dim);
}

class FlashAttention : public testing::CudaTest {};

TEST_F(FlashAttention, MatchesTheOracle) {
  // One token, less than a tile, tiles cut in the middle, more than one tile of queries and keys;
  // groups of 1 to 4 query heads.
  const AttentionShape shapes[] = {
      {.batch = 1, .seq = 1, .heads = 2, .kv_heads = 1, .head_dim = 64},
      {.batch = 2, .seq = 7, .heads = 4, .kv_heads = 1, .head_dim = 128},
      {.batch = 1, .seq = 65, .heads = 2, .kv_heads = 2, .head_dim = 128},
      {.batch = 1, .seq = 128, .heads = 1, .kv_heads = 1, .head_dim = 64},
      {.batch = 2, .seq = 131, .heads = 3, .kv_heads = 1, .head_dim = 64},
      {.batch = 1, .seq = 197, .heads = 2, .kv_heads = 1, .head_dim = 128}};
  for (const AttentionShape& shape : shapes) {
    const Problem p(shape);
    expect_matches(p, compute(p), name_of(shape));
  }
}

TEST_F(FlashAttention, DocumentsAndWindowsMask) {
  for (const std::int64_t head_dim : {64, 128}) {
    const AttentionShape shape{
        .batch = 2, .seq = 210, .heads = 2, .kv_heads = 1, .head_dim = head_dim};
    std::vector<std::int32_t> documents, windows;
    for (std::int32_t b = 0; b < 2; ++b) {
      for (std::int32_t t = 0; t < shape.seq; ++t) {
        // Boundaries inside and between tiles; a document of one token; tiles that see nothing of
        // others.
        documents.push_back(t < 3 ? 0 : t < 64 ? 3 : t < 129 ? 64 : t < 130 ? 129 : 130);
        windows.push_back(std::max(0, t - 20 - 50 * b));
      }
    }
    const Problem packed(shape, documents), sliding(shape, windows);
    expect_matches(packed, compute(packed), name_of(shape) + " documents");
    expect_matches(sliding, compute(sliding), name_of(shape) + " windows");
  }
}

TEST_F(FlashAttention, DocumentsAreComputedAsIfAlone) {
  // The second document begins at a multiple of all tiles, so that its sums have the same order.
  const AttentionShape together{.batch = 1, .seq = 256, .heads = 2, .kv_heads = 1, .head_dim = 64};
  std::vector<std::int32_t> first(256, 0);
  std::fill(first.begin() + 128, first.end(), 128);
  const Problem packed(together, first);
  AttentionShape half = together;
  half.seq = 128;
  Problem alone(half);
  std::copy_n(packed.packed.begin() + std::ssize(alone.packed), alone.packed.size(),
              alone.packed.begin());
  std::copy_n(packed.d_out.typed.begin() + std::ssize(alone.d_out.typed), alone.d_out.typed.size(),
              alone.d_out.typed.begin());
  const auto both = compute(packed), second = compute(alone);
  const auto behind = [](const Bits& all, std::size_t size) {
    return Bits(all.end() - static_cast<std::ptrdiff_t>(size), all.end());
  };
  EXPECT_TRUE(testing::same_bits(behind(both.get<0>(), second.get<0>().size()), second.get<0>()));
  EXPECT_TRUE(testing::same_bits(behind(both.get<2>(), second.get<2>().size()), second.get<2>()));
}

TEST_F(FlashAttention, RepeatsToTheBit) {
  for (const std::int64_t head_dim : {64, 128}) {
    const AttentionShape shape{
        .batch = 1, .seq = 140, .heads = 2, .kv_heads = 1, .head_dim = head_dim};
    std::vector<std::int32_t> first;
    for (std::int32_t t = 0; t < shape.seq; ++t) first.push_back(t < 70 ? 0 : 70);
    const Problem p(shape, first);
    in_every_order([&] { return compute(p); });
  }
}

TEST_F(FlashAttention, LargeScoresStayFinite) {
  Problem p({.batch = 1, .seq = 90, .heads = 1, .kv_heads = 1, .head_dim = 64});
  for (BFloat16& x : p.packed) x = to_bf16(40.0f * to_float(x));
  const auto result = compute(p);
  for (const BFloat16 value : result.get<0>()) ASSERT_TRUE(std::isfinite(to_float(value)));
  for (const float value : result.get<1>()) ASSERT_TRUE(std::isfinite(value));
  for (const BFloat16 value : result.get<2>()) ASSERT_TRUE(std::isfinite(to_float(value)));
}

TEST(FlashAttentionLimits, SaysWhatItDoesNotTake) {
  const auto attention = make_flash_attention();
  EXPECT_EQ(attention->name(), "flash");
  EXPECT_TRUE(attention->repeatable());
  AttentionProblem problem{.shape = {.seq = 8, .heads = 2, .kv_heads = 1, .head_dim = 64},
                           .packed_stride = 256,
                           .out_stride = 128};
  EXPECT_EQ(attention->refusal(problem), "");
  problem.dtype = DType::kFp32;
  EXPECT_EQ(attention->refusal(problem), "takes bf16, not fp32");
  problem.dtype = DType::kBf16;
  problem.packed_stride = 260;
  EXPECT_EQ(attention->refusal(problem),
            "takes rows aligned to 16 bytes, not strides of 260 and 128");
  problem.shape.head_dim = 96;
  EXPECT_EQ(attention->refusal(problem), "takes head sizes 64 and 128, not 96");
}

}  // namespace
}  // namespace shardwright::kernels::cuda
