// SPDX-License-Identifier: Apache-2.0
// The oracles' gradients against finite differences of their own forward passes, in double.
#include <gtest/gtest.h>

#include "tests/kernels/support.h"
#include "tests/oracle/activation.h"
#include "tests/oracle/attention.h"
#include "tests/oracle/cross_entropy.h"
#include "tests/oracle/layernorm.h"
#include "tests/oracle/linear.h"
#include "tests/oracle/rmsnorm.h"
#include "tests/oracle/rope.h"

namespace shardwright::kernels {
namespace {

using testing::dot;
using testing::expect_gradient;
using Numbers = std::vector<double>;

Numbers normal(std::uint64_t seed, std::int64_t count, double deviation = 1.0) {
  return testing::random_data<float>(seed, count, deviation).exact;
}

TEST(Reference, LinearGradients) {
  const std::int64_t n = 3, in = 5, out = 4;
  const Numbers x = normal(1, n * in), w = normal(2, out * in), d_y = normal(3, n * out);
  expect_gradient(
      [&](const Numbers& a) { return dot(reference::linear_forward(a, w, n, in, out), d_y); }, x,
      reference::linear_input_gradient(d_y, w, n, in, out), "x");
  expect_gradient(
      [&](const Numbers& a) { return dot(reference::linear_forward(x, a, n, in, out), d_y); }, w,
      reference::linear_weight_gradient(d_y, x, n, in, out), "w");
  const Numbers bias = normal(4, out), y = normal(5, n * out);
  expect_gradient([&](const Numbers& a) { return dot(reference::bias_forward(y, a), d_y); }, bias,
                  reference::bias_gradient(d_y, out), "bias");
}

TEST(Reference, EmbeddingGradient) {
  const std::vector<std::int32_t> tokens = {2, 0, 2, 4};
  const Numbers table = normal(1, 5 * 3), d_out = normal(2, 4 * 3);
  expect_gradient(
      [&](const Numbers& a) { return dot(reference::embedding_forward(a, 3, tokens), d_out); },
      table, reference::embedding_backward(d_out, 3, tokens, 5), "table");
}

TEST(Reference, RmsNormGradients) {
  const Numbers x = normal(1, 4 * 6), w = normal(2, 6), d_y = normal(3, 4 * 6);
  const auto forward = reference::rmsnorm_forward(x, w, 1e-3);
  const auto gradient = reference::rmsnorm_backward(x, w, forward.rstd, d_y);
  expect_gradient(
      [&](const Numbers& a) { return dot(reference::rmsnorm_forward(a, w, 1e-3).y, d_y); }, x,
      gradient.d_x, "x");
  expect_gradient(
      [&](const Numbers& a) { return dot(reference::rmsnorm_forward(x, a, 1e-3).y, d_y); }, w,
      gradient.d_weight, "weight");
}

TEST(Reference, LayerNormGradients) {
  const Numbers x = normal(1, 4 * 6), w = normal(2, 6), b = normal(4, 6), d_y = normal(3, 4 * 6);
  const auto gradient =
      reference::layernorm_backward(x, w, reference::layernorm_forward(x, w, b, 1e-3), d_y);
  expect_gradient(
      [&](const Numbers& a) { return dot(reference::layernorm_forward(a, w, b, 1e-3).y, d_y); }, x,
      gradient.d_x, "x");
  expect_gradient(
      [&](const Numbers& a) { return dot(reference::layernorm_forward(x, a, b, 1e-3).y, d_y); }, w,
      gradient.d_weight, "weight");
}

TEST(Reference, RopeGradientIsTheInverseRotation) {
  const Rope parameters{.theta = 100.0};
  const std::vector<std::int32_t> positions = {0, 1, 7};
  const Numbers x = normal(1, 3 * 2 * 8), d_y = normal(2, 3 * 2 * 8);
  expect_gradient(
      [&](const Numbers& a) {
        return dot(reference::rope(a, 2, 8, 6, parameters, positions, 1), d_y);
      },
      x, reference::rope(d_y, 2, 8, 6, parameters, positions, -1), "x");
}

TEST(Reference, AttentionGradients) {
  AttentionShape shape{
      .batch = 2, .seq = 5, .heads = 4, .kv_heads = 2, .head_dim = 3, .scale = 0.7};
  const std::vector<std::int32_t> first_key = {0, 0, 2, 2, 2, 0, 0, 0, 3, 4};
  const Numbers q = normal(1, 2 * 5 * 4 * 3), k = normal(2, 2 * 5 * 2 * 3);
  const Numbers v = normal(3, 2 * 5 * 2 * 3), d_out = normal(4, 2 * 5 * 4 * 3);
  for (const auto& mask : {std::vector<std::int32_t>{}, first_key, first_key}) {
    const auto out = [&](const Numbers& a, const Numbers& b, const Numbers& c) {
      return dot(reference::attention_forward(shape, a, b, c, mask).out, d_out);
    };
    const auto gradient = reference::attention_backward(
        shape, q, k, v, reference::attention_forward(shape, q, k, v, mask), d_out);
    expect_gradient([&](const Numbers& a) { return out(a, k, v); }, q, gradient.d_q, "q");
    expect_gradient([&](const Numbers& a) { return out(q, a, v); }, k, gradient.d_k, "k");
    expect_gradient([&](const Numbers& a) { return out(q, k, a); }, v, gradient.d_v, "v");
    // The last time with capped scores that fall with distance.
    shape.softcap = mask.empty() ? 0 : 1.5;
    shape.alibi = !mask.empty();
  }
}

TEST(Reference, AttentionMixesOnlyTheVisible) {
  // One key visible: the output is its value.
  const AttentionShape shape{.seq = 3, .heads = 1, .kv_heads = 1, .head_dim = 2};
  const Numbers q = normal(1, 6), k = normal(2, 6), v = normal(3, 6);
  const auto result = reference::attention_forward(shape, q, k, v, {0, 1, 2});
  for (std::size_t i = 0; i < v.size(); ++i) EXPECT_NEAR(result.out[i], v[i], 1e-12);
}

TEST(Reference, ActivationGradients) {
  const Numbers gate = normal(1, 40, 2.0), up = normal(2, 40), d_y = normal(3, 40);
  for (const Activation activation :
       {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
    expect_gradient(
        [&](const Numbers& a) { return dot(reference::activation_forward(activation, a), d_y); },
        gate, reference::activation_backward(activation, gate, d_y), "plain");
    const auto gradient = reference::gated_backward(activation, gate, up, d_y);
    expect_gradient(
        [&](const Numbers& a) { return dot(reference::gated_forward(activation, a, up), d_y); },
        gate, gradient.d_gate, "gate");
    expect_gradient(
        [&](const Numbers& a) { return dot(reference::gated_forward(activation, gate, a), d_y); },
        up, gradient.d_up, "up");
  }
}

TEST(Reference, CrossEntropyGradientAndMean) {
  const Numbers logits = normal(1, 4 * 5, 3.0);
  const std::vector<std::int32_t> targets = {1, -100, 4, 0};
  const auto loss = [&](const Numbers& a) {
    return reference::cross_entropy(a, targets, -100, 1.0).sum / 3.0;
  };
  const auto result = reference::cross_entropy(logits, targets, -100, 1.0 / 3.0);
  EXPECT_EQ(result.count, 3);
  expect_gradient(loss, logits, result.d_logits, "logits");
  expect_gradient(
      [&](const Numbers& a) { return reference::cross_entropy(a, targets, -100, 1.0, 2.0).sum; },
      logits, reference::cross_entropy(logits, targets, -100, 1.0, 2.0).d_logits, "capped");
  // Equal logits: every token costs the logarithm of the vocabulary.
  const auto flat = reference::cross_entropy(Numbers(20, 0.5), targets, -100, 1.0);
  EXPECT_NEAR(flat.sum / 3.0, std::log(5.0), 1e-12);
}

}  // namespace
}  // namespace shardwright::kernels
