// SPDX-License-Identifier: Apache-2.0
#include "exec/family.h"

#include <algorithm>
#include <iterator>

#include "sim/core/base/check.h"
#include "sim/core/workspace.h"

namespace shardwright::exec {
namespace {

constexpr FamilyForm llama_form(std::string_view family, double norm_offset = 0) {
  return {.family = family,
          .embedding = "model.embed_tokens",
          .layer = "model.layers.",
          .final_norm = "model.norm",
          .head = "lm_head",
          .qkv = "self_attn.qkv_proj",
          .query = "self_attn.q_proj",
          .key = "self_attn.k_proj",
          .value = "self_attn.v_proj",
          .output = "self_attn.o_proj",
          .gate_up = "mlp.gate_up_proj",
          .gate = "mlp.gate_proj",
          .up = "mlp.up_proj",
          .down = "mlp.down_proj",
          .norm1 = "input_layernorm",
          .norm2 = "post_attention_layernorm",
          .norm_offset = norm_offset};
}

constexpr FamilyForm gemma2_form() {
  FamilyForm form = llama_form("gemma2", 1.0);
  form.post_norm1 = form.norm2;
  form.norm2 = "pre_feedforward_layernorm";
  form.post_norm2 = "post_feedforward_layernorm";
  return form;
}

constexpr FamilyForm vaultgemma_form() {
  FamilyForm form = llama_form("vaultgemma", 1.0);
  form.norm2 = "pre_feedforward_layernorm";
  return form;
}

constexpr FamilyForm starcoder2_form() {
  FamilyForm form = llama_form("starcoder2");
  form.up = "mlp.c_fc";
  form.down = "mlp.c_proj";
  return form;
}

/// Llama whose RoPE turns pairs of neighbours.
constexpr FamilyForm neighbours_form(std::string_view family) {
  FamilyForm form = llama_form(family);
  form.turns_neighbours = true;
  return form;
}

constexpr FamilyForm glm4_form() {
  FamilyForm form = neighbours_form("glm4");
  form.post_norm1 = "post_self_attn_layernorm";
  form.post_norm2 = "post_mlp_layernorm";
  return form;
}

constexpr FamilyForm kGpt2 = {.family = "gpt2",
                              .embedding = "transformer.wte",
                              .positions = "transformer.wpe",
                              .layer = "transformer.h.",
                              .final_norm = "transformer.ln_f",
                              .head = "lm_head",
                              .qkv = "attn.c_attn",
                              .output = "attn.c_proj",
                              .up = "mlp.c_fc",
                              .down = "mlp.c_proj",
                              .norm1 = "ln_1",
                              .norm2 = "ln_2",
                              .qkv_order = StoredOrder::kTransposed,
                              .product_order = StoredOrder::kTransposed};

constexpr FamilyForm gpt_bigcode_form() {
  FamilyForm form = kGpt2;
  form.family = "gpt_bigcode";
  form.qkv_order = form.product_order = StoredOrder::kAsHere;
  return form;
}

constexpr FamilyForm kGptNeox = {.family = "gpt_neox",
                                 .embedding = "gpt_neox.embed_in",
                                 .layer = "gpt_neox.layers.",
                                 .final_norm = "gpt_neox.final_layer_norm",
                                 .head = "embed_out",
                                 .qkv = "attention.query_key_value",
                                 .output = "attention.dense",
                                 .up = "mlp.dense_h_to_4h",
                                 .down = "mlp.dense_4h_to_h",
                                 .norm1 = "input_layernorm",
                                 .norm2 = "post_attention_layernorm",
                                 .qkv_order = StoredOrder::kHeadByHead};

constexpr FamilyForm kMpt = {.family = "mpt",
                             .embedding = "transformer.wte",
                             .positions = "transformer.wpe",
                             .layer = "transformer.blocks.",
                             .final_norm = "transformer.norm_f",
                             .head = "lm_head",
                             .qkv = "attn.Wqkv",
                             .query = "attn.Wq",
                             .key = "attn.Wk",
                             .value = "attn.Wv",
                             .output = "attn.out_proj",
                             .gate = "ffn.gate_proj",
                             .up = "ffn.up_proj",
                             .down = "ffn.down_proj",
                             .norm1 = "norm_1",
                             .norm2 = "norm_2"};

constexpr FamilyForm kForms[] = {llama_form("cwm"),
                                 neighbours_form("ernie4_5"),
                                 llama_form("gemma", 1.0),
                                 gemma2_form(),
                                 neighbours_form("glm"),
                                 glm4_form(),
                                 kGpt2,
                                 gpt_bigcode_form(),
                                 kGptNeox,
                                 neighbours_form("helium"),
                                 llama_form("llama"),
                                 llama_form("ministral"),
                                 llama_form("mistral"),
                                 kMpt,
                                 llama_form("phi3"),
                                 llama_form("qwen2"),
                                 llama_form("qwen3"),
                                 llama_form("seed_oss"),
                                 llama_form("stablelm"),
                                 starcoder2_form(),
                                 vaultgemma_form()};

}  // namespace

const FamilyForm* find_family_form(std::string_view family) {
  const auto* found = std::find_if(std::begin(kForms), std::end(kForms),
                                   [&](const FamilyForm& form) { return form.family == family; });
  return found == std::end(kForms) ? nullptr : found;
}

HeadShape head_shape(const Model& model) {
  return {model.heads, model.head_dim, rotated_elements(model)};
}

std::vector<std::int64_t> StoredForm::file_shape() const {
  if (order != StoredOrder::kTransposed) return shape;
  return {shape.rbegin(), shape.rend()};
}

std::int64_t StoredForm::file_index(std::int64_t index) const {
  if (order == StoredOrder::kAsHere) return index;
  const std::int64_t cols = shape.size() > 1 ? shape[1] : 1;
  const std::int64_t row = index / cols, col = index % cols;
  if (order == StoredOrder::kTransposed) return col * shape[0] + row;
  if (order == StoredOrder::kNeighbours) {
    const std::int64_t at = row % heads.size, half = heads.rotated / 2;
    if (at >= heads.rotated) return index;
    return (row - at + 2 * (at % half) + at / half) * cols + col;
  }
  constexpr std::int64_t kParts = 3;
  SHARDWRIGHT_CHECK(shape[0] % (kParts * heads.heads) == 0, "{} rows of {} heads", shape[0],
                    heads.heads);
  const std::int64_t size = shape[0] / (kParts * heads.heads);
  const std::int64_t part = row / (heads.heads * size), head = row / size % heads.heads;
  return ((head * kParts + part) * size + row % size) * cols + col;
}

StoredForm stored_form(const FamilyForm& form, std::string_view tensor,
                       const std::vector<std::int64_t>& shape, const HeadShape& heads) {
  if (!tensor.starts_with(form.layer)) return {StoredOrder::kAsHere, shape, heads};
  const std::string_view module = tensor.substr(0, tensor.rfind('.'));
  const bool is_qkv = !form.qkv.empty() && module.ends_with(form.qkv);
  StoredOrder order = is_qkv ? form.qkv_order : form.product_order;
  if (order == StoredOrder::kTransposed && shape.size() < 2) order = StoredOrder::kAsHere;
  const bool is_turned = module.ends_with(form.query) || module.ends_with(form.key);
  if (form.turns_neighbours && is_turned) order = StoredOrder::kNeighbours;
  return {order, shape, heads};
}

}  // namespace shardwright::exec
