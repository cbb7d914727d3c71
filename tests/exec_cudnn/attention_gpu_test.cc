// SPDX-License-Identifier: Apache-2.0
// Every implementation of this build on a GPU: against the oracle where that is quick, against each
// other at the sizes of real models, and each with itself.
#include <cstdlib>

#include "exec/cuda/attention.h"
#include "tests/kernels_cuda/random_attention.h"

namespace shardwright::exec::cuda {
namespace {

using kernels::AttentionShape;
using kernels::BFloat16;
using kernels::testing::Bits;
using kernels::testing::RandomAttention;

class AttentionOnGpu : public kernels::testing::CudaTest {
 protected:
  /// Calls body(implementation, why it was chosen) for all that take the problem.
  template <class Body>
  void for_each(const RandomAttention& p, Body body) {
    for (const std::string_view name : set_.names()) {
      const AttentionChoice choice = set_.choose(p.problem, {.wish = name});
      if (choice.implementation->name() == name) body(*choice.implementation, choice.why);
    }
  }
  AttentionSet set_;
};

TEST_F(AttentionOnGpu, MatchesTheOracle) {
  for (const AttentionShape& shape :
       {AttentionShape{.batch = 2, .seq = 200, .heads = 4, .kv_heads = 2, .head_dim = 64},
        AttentionShape{.batch = 1, .seq = 333, .heads = 4, .kv_heads = 1, .head_dim = 128}}) {
    const RandomAttention p(shape);
    for_each(p, [&](kernels::cuda::Attention& one, const std::string& why) {
      expect_matches(p, compute(one, p), why + ", " + kernels::testing::name_of(shape));
    });
  }
}

TEST_F(AttentionOnGpu, ImplementationsAgreeAtTheSizeOfModels) {
  const RandomAttention p({.batch = 1, .seq = 2048, .heads = 8, .kv_heads = 2, .head_dim = 128});
  const auto flash = compute(*set_.choose(p.problem, {.wish = "flash"}).implementation, p);
  const auto numbers = [](const Bits& bits) {
    std::vector<double> result;
    for (const BFloat16 value : bits) result.push_back(kernels::to_float(value));
    return result;
  };
  for_each(p, [&](kernels::cuda::Attention& one, const std::string& why) {
    const auto other = compute(one, p);
    kernels::testing::expect_close(other.template get<0>(), numbers(flash.get<0>()), 0x1p-6,
                                   why + " out");
    kernels::testing::expect_close(other.template get<2>(), numbers(flash.get<2>()), 0x1p-5,
                                   why + " gradients");
    kernels::testing::expect_same_direction(other.template get<2>(), numbers(flash.get<2>()), why);
  });
}

TEST_F(AttentionOnGpu, ImplementationsAgreeOnPackedDocuments) {
  for (const std::int64_t kv_heads : {2, 8}) {
    const std::int64_t seq = 1000, lengths[] = {1, 127, 400, 128, 344};
    std::vector<std::int32_t> first_key;
    std::int64_t begin = 0;
    for (const std::int64_t length : lengths) {
      first_key.insert(first_key.end(), static_cast<std::size_t>(length),
                       static_cast<std::int32_t>(begin));
      begin += length;
    }
    first_key.insert(first_key.end(), static_cast<std::size_t>(seq), 0);  // the second sequence
    RandomAttention p({.batch = 2, .seq = seq, .heads = 8, .kv_heads = kv_heads, .head_dim = 128},
                      first_key);
    const auto flash = compute(*set_.choose(p.problem, {.wish = "flash"}).implementation, p);
    const auto numbers = [](const Bits& bits) {
      std::vector<double> result;
      for (const BFloat16 value : bits) result.push_back(kernels::to_float(value));
      return result;
    };
    p.problem.most_documents = document_bound(2, 6);
    for_each(p, [&](kernels::cuda::Attention& one, const std::string& why) {
      const auto other = compute(one, p);
      kernels::testing::expect_close(other.template get<0>(), numbers(flash.get<0>()), 0x1p-6,
                                     why + " out");
      kernels::testing::expect_close(other.template get<2>(), numbers(flash.get<2>()), 0x1p-5,
                                     why + " gradients");
    });
  }
}

TEST_F(AttentionOnGpu, RepeatsToTheBit) {
  const RandomAttention p({.batch = 1, .seq = 1536, .heads = 8, .kv_heads = 2, .head_dim = 128});
  for_each(p, [&](kernels::cuda::Attention& one, const std::string& why) {
    if (!one.repeatable()) return;
    const auto first = compute(one, p);
    for (int run = 0; run < 3; ++run) EXPECT_TRUE(first == compute(one, p)) << why;
  });
}

TEST_F(AttentionOnGpu, SlicesGiveTheSameBits) {
  RandomAttention p({.batch = 2, .seq = 512, .heads = 8, .kv_heads = 4, .head_dim = 128});
  for_each(p, [&](kernels::cuda::Attention& one, const std::string& why) {
    if (!one.repeatable()) return;
    p.problem.most_workspace_bytes = Bytes{1} << 30;
    const auto whole = compute(one, p);
    p.problem.most_workspace_bytes = Bytes{4} << 20;
    if (one.refusal(p.problem).empty()) {
      EXPECT_TRUE(whole == compute(one, p)) << why;
    }
  });
}

}  // namespace
}  // namespace shardwright::exec::cuda
