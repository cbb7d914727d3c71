// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels_cuda/random_attention.h"

namespace shardwright::kernels::cuda {
namespace {

using testing::Bits;
using testing::expect_matches;
using testing::in_every_order;
using testing::name_of;
using testing::RandomAttention;

auto compute(const RandomAttention& p) {
  return testing::compute(*make_flash_attention(), p);
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
    const RandomAttention p(shape);
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
    const RandomAttention packed(shape, documents), sliding(shape, windows);
    expect_matches(packed, compute(packed), name_of(shape) + " documents");
    expect_matches(sliding, compute(sliding), name_of(shape) + " windows");
  }
}

TEST_F(FlashAttention, TilesThatAreSeenInFullStandBetweenOthers) {
  // Of the first block's keys the diagonal, then tiles of queries that see them all, then the one
  // in which the second document begins; of the last block's queries that one's tile, then whole
  // ones, then the diagonal. Of its window tiles that some queries see, then whole ones.
  for (const std::int64_t head_dim : {64, 128}) {
    const AttentionShape shape{
        .batch = 1, .seq = 450, .heads = 2, .kv_heads = 1, .head_dim = head_dim};
    std::vector<std::int32_t> documents, windows;
    for (std::int32_t t = 0; t < shape.seq; ++t) {
      documents.push_back(t < 260 ? 0 : 260);
      windows.push_back(std::max(0, t - 250));
    }
    const RandomAttention packed(shape, documents), sliding(shape, windows);
    expect_matches(packed, compute(packed), name_of(shape) + " documents");
    expect_matches(sliding, compute(sliding), name_of(shape) + " windows");
  }
}

TEST_F(FlashAttention, DocumentsAreComputedAsIfAlone) {
  // The second document begins at a multiple of all tiles, so that its sums have the same order.
  const AttentionShape together{.batch = 1, .seq = 256, .heads = 2, .kv_heads = 1, .head_dim = 64};
  std::vector<std::int32_t> first(256, 0);
  std::fill(first.begin() + 128, first.end(), 128);
  const RandomAttention packed(together, first);
  AttentionShape half = together;
  half.seq = 128;
  RandomAttention alone(half);
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
    const RandomAttention p(shape, first);
    in_every_order([&] { return compute(p); });
  }
}

TEST_F(FlashAttention, LargeScoresStayFinite) {
  RandomAttention p({.batch = 1, .seq = 90, .heads = 1, .kv_heads = 1, .head_dim = 64});
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
