// SPDX-License-Identifier: Apache-2.0
// The loss of a whole model in double, from the oracles in tests/oracle: what finite
// differences are taken of.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "exec/batch.h"
#include "sim/core/model.h"
#include "tests/oracle/activation.h"
#include "tests/oracle/attention.h"
#include "tests/oracle/cross_entropy.h"
#include "tests/oracle/linear.h"
#include "tests/oracle/rmsnorm.h"
#include "tests/oracle/rope.h"

namespace shardwright::exec::testing {

using Doubles = std::vector<double>;
using Weights = std::map<std::string, Doubles>;  // by the names of Hugging Face

class ReferenceModel {
 public:
  ReferenceModel(const Model& model, std::int64_t seq_len) : model_(model), seq_(seq_len) {}

  /// The sum of losses of the sequences of a batch, whose optional parts are all given.
  double loss(const Weights& weights, const Batch& batch) const {
    namespace ref = kernels::reference;
    const auto n = static_cast<std::int64_t>(batch.tokens.size());
    const std::int64_t c = model_.hidden, f = model_.ffn;
    Doubles x = ref::embedding_forward(weights.at("model.embed_tokens.weight"), c, batch.tokens);
    for (std::int64_t i = 0; i < model_.layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      const auto linear = [&](const Doubles& in, const std::string& name, std::int64_t from,
                              std::int64_t to) {
        Doubles out = ref::linear_forward(in, weights.at(layer + name + ".weight"), n, from, to);
        const auto bias = weights.find(layer + name + ".bias");
        return bias == weights.end() ? out : ref::bias_forward(out, bias->second);
      };
      const auto norm = [&](const Doubles& in, const std::string& name) {
        return ref::rmsnorm_forward(in, weights.at(layer + name + ".weight"), model_.norm_eps).y;
      };
      const Doubles a = norm(x, "input_layernorm");
      Doubles q = linear(a, "self_attn.q_proj", c, model_.q_dim());
      Doubles k = linear(a, "self_attn.k_proj", c, model_.kv_dim());
      const Doubles v = linear(a, "self_attn.v_proj", c, model_.kv_dim());
      if (model_.qk_norm) {
        q = norm(q, "self_attn.q_norm");
        k = norm(k, "self_attn.k_norm");
      }
      const std::int64_t d = model_.head_dim;
      q = ref::rope(q, model_.heads, d, d, model_.rope, batch.positions, 1);
      k = ref::rope(k, model_.kv_heads, d, d, model_.rope, batch.positions, 1);
      kernels::AttentionShape shape;
      shape.batch = n / seq_;
      shape.seq = seq_;
      shape.heads = model_.heads;
      shape.kv_heads = model_.kv_heads;
      shape.head_dim = d;
      shape.scale = 1 / std::sqrt(static_cast<double>(d));
      const Doubles attended = ref::attention_forward(shape, q, k, v, batch.first_keys).out;
      add(x, linear(attended, "self_attn.o_proj", model_.q_dim(), c));
      const Doubles b = norm(x, "post_attention_layernorm");
      const Doubles up = linear(b, "mlp.up_proj", c, f);
      const Doubles inner =
          ref::gated_forward(model_.activation, linear(b, "mlp.gate_proj", c, f), up);
      add(x, linear(inner, "mlp.down_proj", f, c));
    }
    const Doubles last =
        ref::rmsnorm_forward(x, weights.at("model.norm.weight"), model_.norm_eps).y;
    const std::string head = model_.tied_head ? "model.embed_tokens.weight" : "lm_head.weight";
    const Doubles logits = ref::linear_forward(last, weights.at(head), n, c, model_.vocab);
    return ref::cross_entropy(logits, batch.targets, kIgnoreTarget, 1).sum;
  }

 private:
  static void add(Doubles& to, const Doubles& what) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += what[i];
  }

  const Model& model_;
  std::int64_t seq_;
};

}  // namespace shardwright::exec::testing
