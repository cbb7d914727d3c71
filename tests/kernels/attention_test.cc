// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/attention.h"

#include <fmt/core.h>

#include <cmath>

#include "sim/core/base/error.h"
#include "tests/kernels/support.h"
#include "tests/oracle/attention.h"

namespace shardwright::kernels::host {
namespace {

using testing::expect_close;
using testing::on_every_isa;
using testing::Outputs;
using testing::poisoned;
using testing::random_data;
using testing::unit_roundoff;

template <class T>
struct Problem {
  AttentionShape shape;
  std::vector<std::int32_t> first_key;
  testing::Data<T> q, k, v, d_out;

  const std::int32_t* mask() const { return first_key.empty() ? nullptr : first_key.data(); }
};

template <class T>
Problem<T> make_problem(AttentionShape shape, std::vector<std::int32_t> first_key = {}) {
  shape.scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  const std::int64_t q = shape.tokens() * shape.heads * shape.head_dim;
  const std::int64_t kv = shape.tokens() * shape.kv_heads * shape.head_dim;
  return {shape,
          std::move(first_key),
          random_data<T>(1, q, 2.0),
          random_data<T>(2, kv, 2.0),
          random_data<T>(3, kv),
          random_data<T>(4, q)};
}

template <class T>
auto compute(Parallel& parallel, const Problem<T>& p) {
  const AttentionLayout layout = AttentionLayout::contiguous(p.shape);
  auto out = poisoned<T>(std::ssize(p.q.typed));
  auto lse = poisoned<float>(p.shape.tokens() * p.shape.heads);
  attention_forward<T>(parallel, p.shape, layout, p.q.data(), p.k.data(), p.v.data(), p.mask(),
                       out.data(), lse.data());
  auto d_q = poisoned<T>(std::ssize(p.q.typed));
  auto d_k = poisoned<T>(std::ssize(p.k.typed)), d_v = poisoned<T>(std::ssize(p.v.typed));
  auto workspace = poisoned<float>(std::ssize(lse));
  attention_backward<T>(parallel, p.shape, layout, p.q.data(), p.k.data(), p.v.data(), p.mask(),
                        out.data(), lse.data(), p.d_out.data(), d_q.data(), d_k.data(), d_v.data(),
                        workspace.data());
  return Outputs(out, lse, d_q, d_k, d_v);
}

template <class T>
void check_against_oracle(const Problem<T>& p, const std::string& what) {
  const auto forward =
      reference::attention_forward(p.shape, p.q.exact, p.k.exact, p.v.exact, p.first_key);
  const auto gradient = reference::attention_backward(p.shape, p.q.exact, p.k.exact, p.v.exact,
                                                      forward, p.d_out.exact);
  on_every_isa(
      [&](Parallel& parallel) { return compute(parallel, p); },
      [&](const auto& result, const std::string& isa) {
        const double once = unit_roundoff<T>() + 3e-6;
        // In bf16 the backward pass starts from the rounded output, which moves delta.
        const double through = std::is_same_v<T, float> ? 1e-5 : 1e-2;
        // A single key's weight is 1 whatever its score is: two equal sums cancel.
        const double cancels = p.shape.seq == 1 ? 1 : 0;
        const std::string where = isa + " " + what;
        expect_close(result.template get<0>(), forward.out, once, where + " out");
        expect_close(result.template get<1>(), forward.lse, 3e-6, where + " lse");
        expect_close(result.template get<2>(), gradient.d_q, through, where + " d_q", cancels);
        expect_close(result.template get<3>(), gradient.d_k, through, where + " d_k", cancels);
        expect_close(result.template get<4>(), gradient.d_v, once, where + " d_v");
      });
}

template <class T>
class Attention : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(Attention, Types);

TYPED_TEST(Attention, MatchesTheOracle) {
  using T = TypeParam;
  // One token, less than a tile, tiles cut in the middle, every head size, odd ones too.
  const AttentionShape shapes[] = {
      {.batch = 1, .seq = 1, .heads = 4, .kv_heads = 2, .head_dim = 16},
      {.batch = 2, .seq = 7, .heads = 4, .kv_heads = 2, .head_dim = 64},
      {.batch = 1, .seq = 65, .heads = 4, .kv_heads = 4, .head_dim = 128},
      {.batch = 1, .seq = 130, .heads = 6, .kv_heads = 2, .head_dim = 17},
      {.batch = 1, .seq = 200, .heads = 2, .kv_heads = 1, .head_dim = 32},
      {.batch = 1, .seq = 3, .heads = 128, .kv_heads = 1, .head_dim = 4},
      {.batch = 1, .seq = 9, .heads = 1, .kv_heads = 1, .head_dim = 256}};
  for (const AttentionShape& shape : shapes) {
    check_against_oracle(make_problem<T>(shape),
                         fmt::format("T {} heads {}/{} D {}", shape.seq, shape.heads,
                                     shape.kv_heads, shape.head_dim));
  }
}

TYPED_TEST(Attention, CapsScoresAndLowersThemWithDistance) {
  using T = TypeParam;
  AttentionShape shape{.batch = 2, .seq = 150, .heads = 6, .kv_heads = 2, .head_dim = 16};
  shape.softcap = 1.5;
  check_against_oracle(make_problem<T>(shape), "capped");
  shape.alibi = true;
  check_against_oracle(make_problem<T>(shape), "capped with slopes");
  shape.softcap = 0;
  check_against_oracle(make_problem<T>(shape), "with slopes");
  shape.heads = 4;
  check_against_oracle(make_problem<T>(shape), "with slopes of four heads");
}

TYPED_TEST(Attention, DocumentsAndWindowsMask) {
  using T = TypeParam;
  const AttentionShape shape{.batch = 2, .seq = 150, .heads = 4, .kv_heads = 2, .head_dim = 16};
  std::vector<std::int32_t> documents, windows;
  for (std::int32_t b = 0; b < 2; ++b) {
    for (std::int32_t t = 0; t < 150; ++t) {
      documents.push_back(t < 70 ? 0 : t < 129 ? 70 : 129);  // 129: a document inside a tile
      windows.push_back(std::max(0, t - 20 - 10 * b));
    }
  }
  check_against_oracle(make_problem<T>(shape, documents), "documents");
  check_against_oracle(make_problem<T>(shape, windows), "windows");
}

TYPED_TEST(Attention, PackedBuffersGiveTheSameBits) {
  using T = TypeParam;
  const AttentionShape shape{.batch = 2, .seq = 40, .heads = 4, .kv_heads = 2, .head_dim = 16};
  const Problem<T> p = make_problem<T>(shape);
  Parallel parallel(2);
  const auto expected = compute(parallel, p);

  const std::int64_t q = 64, kv = 32, stride = q + 2 * kv, tokens = shape.tokens();
  std::vector<T> packed(static_cast<std::size_t>(tokens * stride)), d_packed(packed.size());
  const auto copy = [&](const std::vector<T>& from, std::int64_t offset, std::int64_t width) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::copy_n(from.data() + t * width, width, packed.data() + t * stride + offset);
    }
  };
  copy(p.q.typed, 0, q);
  copy(p.k.typed, q, kv);
  copy(p.v.typed, q + kv, kv);
  const AttentionLayout layout{.q_stride = stride, .kv_stride = stride, .out_stride = q};
  const T* at = packed.data();
  std::vector<T> out(p.q.typed.size());
  std::vector<float> lse(static_cast<std::size_t>(tokens * 4)), workspace(lse.size());
  attention_forward<T>(parallel, p.shape, layout, at, at + q, at + q + kv, nullptr, out.data(),
                       lse.data());
  T* d = d_packed.data();
  attention_backward<T>(parallel, p.shape, layout, at, at + q, at + q + kv, nullptr, out.data(),
                        lse.data(), p.d_out.data(), d, d + q, d + q + kv, workspace.data());
  EXPECT_TRUE(testing::same_bits(out, expected.template get<0>()));
  const auto part = [&](std::int64_t offset, std::int64_t width) {
    std::vector<T> result;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t i = 0; i < width; ++i) {
        result.push_back(d_packed[static_cast<std::size_t>(t * stride + offset + i)]);
      }
    }
    return result;
  };
  EXPECT_TRUE(testing::same_bits(part(0, q), expected.template get<2>()));
  EXPECT_TRUE(testing::same_bits(part(q, kv), expected.template get<3>()));
  EXPECT_TRUE(testing::same_bits(part(q + kv, kv), expected.template get<4>()));
}

TYPED_TEST(Attention, SequencesDoNotSeeEachOther) {
  using T = TypeParam;
  const AttentionShape shape{.batch = 3, .seq = 70, .heads = 2, .kv_heads = 1, .head_dim = 16};
  const Problem<T> p = make_problem<T>(shape);
  Parallel parallel(2);
  const auto together = compute(parallel, p);
  Problem<T> middle = p;
  middle.shape.batch = 1;
  const auto cut = [](auto& values) {
    const auto third = std::ssize(values) / 3;
    values = {values.begin() + third, values.begin() + 2 * third};
  };
  for (auto* data : {&middle.q, &middle.k, &middle.v, &middle.d_out}) cut(data->typed);
  const auto alone = compute(parallel, middle);
  auto out = together.template get<0>();
  auto d_k = together.template get<3>();
  cut(out);
  cut(d_k);
  EXPECT_TRUE(testing::same_bits(out, alone.template get<0>()));
  EXPECT_TRUE(testing::same_bits(d_k, alone.template get<3>()));
}

TEST(AttentionLimits, LargeScoresStayFinite) {
  Problem<float> p =
      make_problem<float>({.batch = 1, .seq = 100, .heads = 2, .kv_heads = 2, .head_dim = 16});
  for (float& x : p.q.typed) x *= 100.0f;
  Parallel parallel(1);
  const auto result = compute(parallel, p);
  for (const float value : result.get<0>()) ASSERT_TRUE(std::isfinite(value));
  for (const float value : result.get<2>()) ASSERT_TRUE(std::isfinite(value));
}

TEST(AttentionLimits, ImpossibleShapesAreRefused) {
  EXPECT_THROW(check_attention({.heads = 3, .kv_heads = 2, .head_dim = 8}), Error);
  EXPECT_THROW(check_attention({.heads = 2, .kv_heads = 2, .head_dim = 257}), Error);
  EXPECT_THROW(check_attention({.heads = 256, .kv_heads = 1, .head_dim = 8}), Error);
  EXPECT_NO_THROW(check_attention({.heads = 64, .kv_heads = 8, .head_dim = 128}));
}

}  // namespace
}  // namespace shardwright::kernels::host
