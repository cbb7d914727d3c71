// SPDX-License-Identifier: Apache-2.0
#include "exec/layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {

void check_executable(const Model& m, const Schedule& schedule) {
  const auto refuse = [&](std::string_view what) {
    throw Error(
        fmt::format("model '{}' {}, which the executor does not run; expected a decoder like {}",
                    m.name, what, trained_families()));
  };
  if (!m.planning_only.empty()) refuse(m.planning_only);
  const FamilyForm* form = find_family_form(m.family);
  if (form == nullptr) refuse(fmt::format("is of the family {}", m.family));
  const int norms = form->post_norm1.empty() ? 2 : 4;
  if (m.norms_per_layer != norms) refuse(fmt::format("has {} norms a layer", m.norms_per_layer));
  for (const Op& op : schedule.ops) {
    if (op.kind == OpKind::kAttention && op.work.attended < 1) {
      refuse(fmt::format("attends to a window of {} tokens in longer sequences", m.sliding_window));
    }
  }
  if (!m.dropout.empty()) {
    throw Error(
        fmt::format("model '{}': {}, but the executor drops nothing out, expected 0 or "
                    "--dropout none",
                    m.name, m.dropout));
  }
}

/// A tensor before it has a place.
struct ParameterLayout::Draft {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int32_t unit = 0;  // where it lies unless norms are apart
  std::int32_t user = 0;  // the unit whose operations name it
  Weight weight = Weight::kNone;
  bool is_norm = false;
  bool is_bias = false;
  bool is_positions = false;
};

/// All tensors in the order of their global index: by unit, in it matrices and biases before norms.
std::vector<ParameterLayout::Draft> ParameterLayout::drafts_of(const Model& m,
                                                               const FamilyForm& form) {
  const std::int64_t c = m.hidden, q = m.q_dim(), kv = m.kv_dim(), f = m.ffn;
  const auto head = static_cast<std::int32_t>(m.layers) + 1;
  std::vector<Draft> drafts;
  const auto weight_of = [](std::string_view module) { return fmt::format("{}.weight", module); };
  drafts.push_back({weight_of(form.embedding), {m.vocab, c}, 0, 0, Weight::kEmbedding});
  if (m.position == Position::kLearned) {
    drafts.push_back({weight_of(form.positions), {m.max_positions, c}, 0, 0, Weight::kEmbedding});
    drafts.back().is_positions = true;
  }
  const auto norm = [&](const std::string& module, std::int32_t unit, std::int32_t user,
                        std::int64_t size, Weight weight) {
    drafts.push_back({weight_of(module), {size}, unit, user, weight, true});
    if (m.norm_bias) drafts.push_back({module + ".bias", {size}, unit, user, weight, true, true});
  };
  const auto final_norm = [&](std::int32_t unit) {
    norm(std::string(form.final_norm), unit, head, c, Weight::kFinalNorm);
  };
  if (m.tied_head) final_norm(0);
  const Weight up = m.gated_mlp ? Weight::kGateUp : Weight::kUp;
  for (std::int32_t unit = 1; unit < head; ++unit) {
    const auto module = [&](std::string_view part) {
      return fmt::format("{}{}.{}", form.layer, unit - 1, part);
    };
    const auto matrix = [&](std::string_view part, std::int64_t rows, std::int64_t cols,
                            Weight weight) {
      drafts.push_back({weight_of(module(part)), {rows, cols}, unit, unit, weight});
    };
    const auto bias = [&](std::string_view part, std::int64_t size, Weight weight) {
      drafts.push_back({module(part) + ".bias", {size}, unit, unit, weight, false, true});
    };
    if (m.fused_qkv) {
      matrix(form.qkv, q + 2 * kv, c, Weight::kQkv);
    } else {
      matrix(form.query, q, c, Weight::kQkv);
      matrix(form.key, kv, c, Weight::kQkv);
      matrix(form.value, kv, c, Weight::kQkv);
    }
    matrix(form.output, c, q, Weight::kOutput);
    if (m.fused_gate_up) {
      matrix(form.gate_up, 2 * f, c, up);
    } else {
      if (m.gated_mlp) matrix(form.gate, f, c, up);
      matrix(form.up, f, c, up);
    }
    matrix(form.down, c, f, Weight::kDown);
    if (m.qkv_bias && m.fused_qkv) {
      bias(form.qkv, q + 2 * kv, Weight::kQkv);
    } else if (m.qkv_bias) {
      bias(form.query, q, Weight::kQkv);
      bias(form.key, kv, Weight::kQkv);
      bias(form.value, kv, Weight::kQkv);
    }
    if (m.attention_out_bias) bias(form.output, c, Weight::kOutput);
    if (m.mlp_bias) {
      if (m.gated_mlp) bias(form.gate, f, up);
      bias(form.up, f, up);
      bias(form.down, c, Weight::kDown);
    }
    norm(module(form.norm1), unit, unit, c, Weight::kNorm1);
    if (!form.post_norm1.empty()) norm(module(form.post_norm1), unit, unit, c, Weight::kNorm1);
    norm(module(form.norm2), unit, unit, c, Weight::kNorm2);
    if (!form.post_norm2.empty()) norm(module(form.post_norm2), unit, unit, c, Weight::kNorm2);
    if (m.qk_norm) {
      drafts.push_back(
          {weight_of(module("self_attn.q_norm")), {m.head_dim}, unit, unit, Weight::kQkNorm, true});
      drafts.push_back(
          {weight_of(module("self_attn.k_norm")), {m.head_dim}, unit, unit, Weight::kQkNorm, true});
    }
  }
  if (!m.tied_head) {
    drafts.push_back({weight_of(form.head), {m.vocab, c}, head, head, Weight::kHead});
    final_norm(head);
  }
  return drafts;
}

ParameterLayout::ParameterLayout(const Model& model, const Schedule& schedule)
    : shard_ranks_(schedule.shard_ranks()),
      tied_(model.tied_head),
      initial_deviation_(model.initial_deviation) {
  check_executable(model, schedule);
  const FamilyForm& form = *find_family_form(model.family);
  norm_offset_ = form.norm_offset;
  units_.resize(static_cast<std::size_t>(model.layers) + 3);
  weights_.resize(units_.size());
  // Norms that are apart lie behind everything else, but keep their global index.
  std::uint64_t index = 0;
  std::vector<std::pair<Draft, std::uint64_t>> apart;
  for (const Draft& draft : drafts_of(model, form)) {
    if (schedule.sharding.separates_norms && draft.is_norm) {
      apart.emplace_back(draft, index);
    } else {
      place(draft, draft.unit, index);
    }
    std::uint64_t size = 1;
    for (const std::int64_t n : draft.shape) size *= static_cast<std::uint64_t>(n);
    index += size;
  }
  for (const auto& [draft, first_index] : apart) place(draft, norm_unit(), first_index);
  parameters_ = static_cast<std::int64_t>(index);
  for (ParameterTensor& tensor : tensors_) {
    tensor.stored = stored_form(form, tensor.name, tensor.shape, head_shape(model));
  }
  if (tied_) {
    weights_[static_cast<std::size_t>(head_unit())][static_cast<std::size_t>(Weight::kHead)] =
        weight(Weight::kEmbedding, 0);
  }

  for (std::int32_t u = 0; u < units(); ++u) {
    ParameterUnit& unit = units_[static_cast<std::size_t>(u)];
    unit.padded = schedule.unit_elements(u);
    SHARDWRIGHT_CHECK(unit.elements <= unit.padded, "{} parameters in a unit of {}", unit.elements,
                      unit.padded);
  }
}

void ParameterLayout::place(const Draft& draft, std::int32_t unit_index,
                            std::uint64_t first_index) {
  ParameterUnit& unit = units_[static_cast<std::size_t>(unit_index)];
  const int tensor_index = static_cast<int>(tensors_.size());
  ParameterTensor& tensor = tensors_.emplace_back();
  tensor.name = draft.name;
  tensor.shape = draft.shape;
  tensor.unit = unit_index;
  tensor.offset = unit.elements;
  tensor.size = 1;
  for (const std::int64_t n : draft.shape) tensor.size *= n;
  tensor.first_index = first_index;
  tensor.initial = draft.is_bias                        ? Initial::kZeros
                   : draft.is_norm && norm_offset_ == 0 ? Initial::kOnes
                   : draft.is_norm                      ? Initial::kZeros
                                                        : Initial::kNormal;
  tensor.decays = draft.shape.size() > 1;
  if (unit.tensors++ == 0) unit.first_tensor = tensor_index;
  unit.elements += tensor.size;

  WeightTensors& weight =
      weights_[static_cast<std::size_t>(draft.user)][static_cast<std::size_t>(draft.weight)];
  if (draft.is_bias) {
    if (weight.bias < 0) weight.bias = tensor_index;
    return;
  }
  if (draft.is_positions) {
    weight.second = tensor_index;
    return;
  }
  if (weight.first < 0) {
    weight.first = tensor_index;
    if (draft.shape.size() > 1) weight.cols = draft.shape[1];
  } else if (draft.is_norm) {
    weight.second = tensor_index;
    return;
  }
  weight.rows += draft.shape[0];
}

int ParameterLayout::find(std::string_view name) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].name == name) return static_cast<int>(i);
  }
  return -1;
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
