// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tiny_models.h"

namespace shardwright::testing {

Model tiny_llama() {
  Model m;
  m.name = "tiny-llama";
  m.family = "llama";
  m.layers = 3;
  m.hidden = 64;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 16;
  m.ffn = 88;
  m.vocab = 101;
  m.max_positions = 64;
  return m;
}

Model tiny_qwen2() {
  Model m = tiny_llama();
  m.name = "tiny-qwen2";
  m.family = "qwen2";
  m.qkv_bias = true;
  return m;
}

Model tiny_qwen3() {
  Model m = tiny_llama();
  m.name = "tiny-qwen3";
  m.family = "qwen3";
  m.head_dim = 24;
  m.qk_norm = true;
  return m;
}

Model tiny_gpt2() {
  Model m = tiny_llama();
  m.name = "tiny-gpt2";
  m.family = "gpt2";
  m.kv_heads = m.heads;
  m.position = Position::kLearned;
  m.gated_mlp = false;
  m.activation = Activation::kGeluTanh;
  m.norm = Normalization::kLayerNorm;
  m.norm_bias = m.qkv_bias = m.attention_out_bias = m.mlp_bias = true;
  m.fused_qkv = m.tied_head = true;
  return m;
}

Model tiny_mpt() {
  Model m = tiny_gpt2();
  m.name = "tiny-mpt";
  m.family = "mpt";
  m.heads = m.kv_heads = 3;
  m.position = Position::kAlibi;
  m.activation = Activation::kGelu;
  m.norm_bias = m.qkv_bias = m.attention_out_bias = m.mlp_bias = false;
  return m;
}

Model tiny_gpt_neox() {
  Model m = tiny_gpt2();
  m.name = "tiny-gpt-neox";
  m.family = "gpt_neox";
  m.position = Position::kRope;
  m.rope.rotary_fraction = 0.25;
  m.activation = Activation::kGelu;
  m.parallel_residual = true;
  m.tied_head = false;
  return m;
}

Model tiny_gemma() {
  Model m = tied(tiny_llama());
  m.name = "tiny-gemma";
  m.family = "gemma";
  m.activation = Activation::kGeluTanh;
  m.embedding_scale = 8;
  return m;
}

Model tiny_gemma2() {
  Model m = tiny_gemma();
  m.name = "tiny-gemma2";
  m.family = "gemma2";
  m.norms_per_layer = 4;
  m.attention_softcap = 2;
  m.logit_softcap = 3;
  m.attention_scale = 0.3;
  return m;
}

Model uneven_llama() {
  Model m = tiny_llama();
  m.name = "uneven-llama";
  m.hidden = 55;
  m.heads = 3;
  m.kv_heads = 1;
  m.head_dim = 18;
  m.ffn = 77;
  return m;
}

Model tied(Model model) {
  model.name += "-tied";
  model.tied_head = true;
  return model;
}

Plan tiny_plan(Strategy strategy, std::int64_t ranks, std::int64_t grad_accum) {
  Plan plan;
  plan.strategy = strategy;
  plan.gpus = ranks;
  plan.grad_accum = grad_accum;
  plan.seq_len = 32;
  plan.recompute = Recompute::kNone;
  plan.param_dtype = DType::kFp32;
  return plan;
}

}  // namespace shardwright::testing
