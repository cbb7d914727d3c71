// SPDX-License-Identifier: Apache-2.0
#include "exec/layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "sim/core/check.h"
#include "sim/core/error.h"
#include "sim/core/units.h"

namespace shardwright::exec {

namespace {

void check_executable(const Model& m) {
  const auto refuse = [&](std::string_view what) {
    throw Error(fmt::format(
        "model '{}' {}, which the executor does not run; expected a decoder like llama, mistral, "
        "qwen2 or qwen3",
        m.name, what));
  };
  if (m.norm != Normalization::kRmsNorm || m.norm_bias) refuse("has LayerNorm");
  if (m.position != Position::kRope) refuse("has no rotary positions");
  if (m.norms_per_layer != 2) refuse(fmt::format("has {} norms a layer", m.norms_per_layer));
  if (m.parallel_residual) refuse("has parallel residuals");
  if (m.fused_qkv || m.fused_gate_up) refuse("stores fused projections");
  if (m.attention_softcap != 0 || m.logit_softcap != 0) refuse("caps its logits");
  if (m.embedding_scale != 1.0) refuse("scales its embedding");
}

/// A tensor before it has a place.
struct Draft {
  std::string name;
  std::vector<std::int64_t> shape;
  Initial initial = Initial::kNormal;
  int* slot = nullptr;  // where the index goes that the tensor gets
};

}  // namespace

ParameterLayout::ParameterLayout(const Model& model, bool separates_norms, std::int64_t shard_ranks)
    : shard_ranks_(shard_ranks), layers_(static_cast<std::size_t>(model.layers)) {
  check_executable(model);
  const std::int64_t c = model.hidden, q = model.q_dim(), kv = model.kv_dim(), f = model.ffn;
  const auto units = static_cast<std::size_t>(model.layers) + 3;
  units_.resize(units);
  // Matrices and biases of each unit, then norms, which may go to a unit of their own. The global
  // index follows the canonical order, units without separated norms.
  std::vector<std::vector<Draft>> drafts(units), norms(units);
  drafts.front() = {{"model.embed_tokens.weight", {model.vocab, c}, Initial::kNormal, &embedding_}};
  for (std::int64_t i = 0; i < model.layers; ++i) {
    LayerTensors& t = layers_[static_cast<std::size_t>(i)];
    const auto unit = static_cast<std::size_t>(i) + 1;
    const auto add = [&](std::string_view name, std::vector<std::int64_t> shape, int* slot) {
      const bool is_norm = name.find("norm") != std::string_view::npos;
      const Initial initial = is_norm             ? Initial::kOnes
                              : shape.size() == 1 ? Initial::kZeros
                                                  : Initial::kNormal;
      (is_norm ? norms : drafts)[unit].push_back(
          {fmt::format("model.layers.{}.{}", i, name), std::move(shape), initial, slot});
    };
    add("self_attn.q_proj.weight", {q, c}, &t.qkv);
    add("self_attn.k_proj.weight", {kv, c}, nullptr);
    add("self_attn.v_proj.weight", {kv, c}, nullptr);
    add("self_attn.o_proj.weight", {c, q}, &t.output);
    if (model.gated_mlp) add("mlp.gate_proj.weight", {f, c}, &t.gate_up);
    add("mlp.up_proj.weight", {f, c}, model.gated_mlp ? nullptr : &t.gate_up);
    add("mlp.down_proj.weight", {c, f}, &t.down);
    if (model.qkv_bias) {
      add("self_attn.q_proj.bias", {q}, &t.qkv_bias);
      add("self_attn.k_proj.bias", {kv}, nullptr);
      add("self_attn.v_proj.bias", {kv}, nullptr);
    }
    if (model.attention_out_bias) add("self_attn.o_proj.bias", {c}, &t.output_bias);
    if (model.mlp_bias) {
      if (model.gated_mlp) add("mlp.gate_proj.bias", {f}, &t.gate_up_bias);
      add("mlp.up_proj.bias", {f}, model.gated_mlp ? nullptr : &t.gate_up_bias);
      add("mlp.down_proj.bias", {c}, &t.down_bias);
    }
    add("input_layernorm.weight", {c}, &t.norm1);
    add("post_attention_layernorm.weight", {c}, &t.norm2);
    if (model.qk_norm) {
      add("self_attn.q_norm.weight", {model.head_dim}, &t.query_norm);
      add("self_attn.k_norm.weight", {model.head_dim}, &t.key_norm);
    }
  }
  const auto head_index = static_cast<std::size_t>(head_unit());
  if (!model.tied_head) {
    drafts[head_index] = {{"lm_head.weight", {model.vocab, c}, Initial::kNormal, &head_}};
  }
  const std::size_t final_norm_unit = model.tied_head ? 0 : head_index;
  norms[final_norm_unit].push_back({"model.norm.weight", {c}, Initial::kOnes, &final_norm_});

  const auto place = [&](std::int32_t unit_index, const Draft& draft, std::uint64_t first_index) {
    ParameterUnit& unit = units_[static_cast<std::size_t>(unit_index)];
    ParameterTensor tensor;
    tensor.name = draft.name;
    tensor.shape = draft.shape;
    tensor.unit = unit_index;
    tensor.offset = unit.elements;
    tensor.size = 1;
    for (const std::int64_t n : draft.shape) tensor.size *= n;
    tensor.first_index = first_index;
    tensor.initial = draft.initial;
    tensor.decays = draft.shape.size() > 1;
    if (draft.slot != nullptr) *draft.slot = static_cast<int>(tensors_.size());
    if (unit.tensors++ == 0) unit.first_tensor = static_cast<int>(tensors_.size());
    unit.elements += tensor.size;
    tensors_.push_back(std::move(tensor));
  };
  std::uint64_t index = 0;
  std::vector<std::pair<const Draft*, std::uint64_t>> separated;
  const auto size_of = [](const Draft& draft) {
    std::uint64_t size = 1;
    for (const std::int64_t n : draft.shape) size *= static_cast<std::uint64_t>(n);
    return size;
  };
  for (std::int32_t u = 0; u < static_cast<std::int32_t>(units); ++u) {
    for (const Draft& draft : drafts[static_cast<std::size_t>(u)]) {
      place(u, draft, index);
      index += size_of(draft);
    }
    for (const Draft& draft : norms[static_cast<std::size_t>(u)]) {
      if (separates_norms) {
        separated.emplace_back(&draft, index);
      } else {
        place(u, draft, index);
      }
      index += size_of(draft);
    }
  }
  for (const auto& [draft, first_index] : separated) place(norm_unit(), *draft, first_index);
  parameters_ = static_cast<std::int64_t>(index);
  if (model.tied_head) head_ = embedding_;

  std::int64_t owned = 0;
  for (ParameterUnit& unit : units_) {
    unit.padded = unit.elements == 0 ? 0 : round_up(unit.elements, shard_ranks);
    unit.first_owned = owned;
    owned += unit.padded / shard_ranks;
  }
}

int ParameterLayout::find(std::string_view name) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

std::int64_t ParameterLayout::padded_elements() const {
  std::int64_t total = 0;
  for (const ParameterUnit& unit : units_) total += unit.padded;
  return total;
}

std::int64_t ParameterLayout::largest_unit() const {
  std::int64_t largest = 0;
  for (std::int32_t u = 0; u < norm_unit(); ++u) largest = std::max(largest, unit(u).padded);
  return largest;
}

std::vector<OwnedPart> ParameterLayout::owned(std::int32_t unit_index,
                                              std::int64_t shard_rank) const {
  const ParameterUnit& u = unit(unit_index);
  const std::int64_t begin = share(unit_index) * shard_rank;
  const std::int64_t end = begin + share(unit_index);
  std::vector<OwnedPart> parts;
  for (int i = u.first_tensor; i < u.first_tensor + u.tensors; ++i) {
    const ParameterTensor& t = tensor(i);
    const std::int64_t from = std::max(begin, t.offset);
    const std::int64_t to = std::min(end, t.offset + t.size);
    if (from < to) parts.push_back({i, from - t.offset, from - begin, to - from});
  }
  return parts;
}

}  // namespace shardwright::exec
