// SPDX-License-Identifier: Apache-2.0
// The host's instruction sets as implementations of tests/kernels/contract.h, and what the host
// alone has.
#include "kernels/host/attention.h"
#include "kernels/host/elementwise.h"
#include "kernels/host/norm.h"
#include "kernels/host/optimizer.h"
#include "sim/core/base/error.h"
#include "tests/kernels/contract.h"
#include "tests/oracle/adamw.h"
#include "tests/oracle/linear.h"

namespace shardwright::kernels {

std::vector<contract::Executor> contract::executors() {
  static constexpr int kThreads[] = {1, 2, 5};
  std::vector<Executor> all;
  for (const host::Isa isa : host::supported_isas()) {
    Executor one;
    one.name = host::name_of(isa);
    one.variants = std::size(kThreads);
    one.make = [isa](int variant) { return make_host(kThreads[variant], isa); };
    one.is_host = true;
    one.is_fused = isa != host::Isa::kBaseline;
    all.push_back(one);
  }
  return all;
}

namespace host {
namespace {

using testing::expect_close;
using testing::on_every_isa;
using testing::Outputs;
using testing::random_data;
using testing::unit_roundoff;

template <class T>
void check_bias() {
  const std::int64_t out = 77, stride = 80;
  for (const std::int64_t n : {1, 31, 1000}) {
    const auto y = random_data<T>(1, n * stride), bias = random_data<T>(2, out);
    const auto used = contract::columns(y.exact, stride, 0, out);
    on_every_isa(
        [&](Parallel& parallel) {
          std::vector<T> sum = y.typed;
          bias_forward<T>(parallel, bias.data(), {sum.data(), n, out, stride});
          return Outputs(sum);
        },
        [&](const auto& result, const std::string& isa) {
          const auto sum = contract::columns(result.template get<0>(), stride, 0, out);
          expect_close(sum, reference::bias_forward(used, bias.exact), unit_roundoff<T>(), isa);
        });
  }
}

TEST(HostKernels, BiasMatchesTheOracle) {
  check_bias<float>();
  check_bias<BFloat16>();
}

// With rounding to nearest, bf16 would lose every update below 2^-9 of the value.
TEST(HostKernels, Bf16MomentsFollowOnAverage) {
  const std::int64_t size = 4096;
  const std::vector<float> gradient(static_cast<std::size_t>(size), 0.25f);
  std::vector<float> parameter(gradient.size(), 1.0f);
  std::vector<BFloat16> m(gradient.size()), v(gradient.size());
  std::vector<double> p1{1.0}, m1{0.0}, v1{0.0};
  Parallel parallel(2);
  AdamW options{.lr = 1e-3, .beta2 = 0.999, .seed = 3};
  for (options.step = 1; options.step <= 200; ++options.step) {
    adamw<float, float, BFloat16>(parallel, options, {}, gradient, parameter, m, v);
    reference::adamw(options, {0.25}, p1, m1, v1);
  }
  double mean_v = 0, mean_m = 0;
  for (const BFloat16 x : v) mean_v += to_float(x) / static_cast<double>(size);
  for (const BFloat16 x : m) mean_m += to_float(x) / static_cast<double>(size);
  // 0.999 v + 0.001 g^2 moves v by less than half a bf16 step: nearest rounding would freeze it.
  EXPECT_NEAR(mean_v, v1[0], 0.01 * v1[0]);
  EXPECT_NEAR(mean_m, m1[0], 0.01 * m1[0]);
}

TEST(ClipFactor, BringsTheNormDown) {
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_NEAR(clip_factor(10.0, 1.0), 0.1, 1e-7);
  EXPECT_EQ(clip_factor(10.0, 0.0), 1.0);
}

TEST(HostKernels, ImpossibleAttentionIsRefused) {
  EXPECT_THROW(check_attention({.heads = 3, .kv_heads = 2, .head_dim = 8}), Error);
  EXPECT_THROW(check_attention({.heads = 2, .kv_heads = 2, .head_dim = 257}), Error);
  EXPECT_THROW(check_attention({.heads = 256, .kv_heads = 1, .head_dim = 8}), Error);
  EXPECT_NO_THROW(check_attention({.heads = 64, .kv_heads = 8, .head_dim = 128}));
}

TEST(HostKernelsDeath, ATreeTakesAPowerOfTwo) {
  const std::vector<const void*> pointers(3);
  std::vector<float> sum(4);
  const auto fold_three = [&] {
    Parallel parallel(1);
    fold_tree<float, float>(parallel, pointers, std::span(sum), false);
  };
  EXPECT_DEATH(fold_three(), "a tree of 3 arrays");
}

}  // namespace
}  // namespace host
}  // namespace shardwright::kernels
