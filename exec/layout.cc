// SPDX-License-Identifier: Apache-2.0
#include "exec/layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/base/worker_pool.h"
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

/// A tensor before it has a place.
struct ParameterLayout::Draft {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int32_t unit = 0;  // where it lies unless norms are apart
  std::int32_t user = 0;  // the unit whose operations name it
  Weight weight = Weight::kNone;
  HeldPart held;
  bool is_norm = false;
  bool is_bias = false;
  bool is_positions = false;
};

/// All tensors in the order of their global index: by unit, in it matrices and biases before norms.
class ParameterLayout::Drafts {
 public:
  Drafts(const Model& model, const FamilyForm& form, const Parallelism& parallel,
         const RankPlace& place)
      : m_(model), form_(form), parallel_(parallel), place_(place) {
    write();
  }
  const std::vector<Draft>& all() const { return drafts_; }

 private:
  /// Rows of a matrix that is cut as one weight of the model.
  struct Rows {
    Weight weight;
    std::int64_t count;
  };

  static std::string weight_of(std::string_view module) { return fmt::format("{}.weight", module); }
  std::string module(std::string_view part) const {
    return fmt::format("{}{}.{}", form_.layer, unit_ - 1, part);
  }
  Slice slice(const WeightShape& of) const { return slices_of(of, parallel_, place_).each; }
  Draft& add(std::string name, std::vector<std::int64_t> shape, Weight weight) {
    Draft& draft = drafts_.emplace_back();
    draft.name = std::move(name);
    draft.unit = draft.user = unit_;
    draft.weight = weight;
    draft.held = {{{0, shape.front()}},
                  {0, shape.size() > 1 ? shape[1] : 1},
                  place_.tp == 0 ? std::size_t{1} : 0};
    draft.shape = std::move(shape);
    return draft;
  }
  /// Those of each part are cut for themselves; the first of the ranks with the same part counts.
  void hold_rows(const std::vector<Rows>& parts, HeldPart& held) const {
    held.rows.clear();
    held.counted = 0;
    std::int64_t begin = 0;
    for (const Rows& part : parts) {
      WeightShape shape{part.weight, part.count, m_.hidden, 1, SliceAlong::kRows};
      const bool is_shared = part.weight == Weight::kKey || part.weight == Weight::kValue;
      if (is_shared) shape.heads = m_.kv_heads;
      const Slice of = slice(shape);
      const Slice::Range range = of.of(part.count);
      held.rows.push_back({begin + range.begin, begin + range.end});
      begin += part.count;
      if (place_.tp % (parallel_.tp / of.count) == 0) held.counted = held.rows.size();
    }
  }
  static std::int64_t total(const std::vector<Rows>& parts) {
    std::int64_t rows = 0;
    for (const Rows& part : parts) rows += part.count;
    return rows;
  }
  void column_matrix(std::string name, const std::vector<Rows>& parts, Weight weight) {
    hold_rows(parts, add(std::move(name), {total(parts), m_.hidden}, weight).held);
  }
  void column_bias(std::string_view part, const std::vector<Rows>& parts, Weight weight) {
    Draft& draft = add(module(part) + ".bias", {total(parts)}, weight);
    draft.is_bias = true;
    hold_rows(parts, draft.held);
  }
  void row_matrix(std::string_view part, std::int64_t cols, Weight weight) {
    Draft& draft = add(weight_of(module(part)), {m_.hidden, cols}, weight);
    draft.held.cols = slice({weight, m_.hidden, cols, 1, SliceAlong::kColumns}).of(cols);
    draft.held.counted = 1;
  }
  void row_bias(std::string_view part, Weight weight) {
    add(module(part) + ".bias", {m_.hidden}, weight).is_bias = true;
  }
  void norm(const std::string& name, std::int32_t user, std::int64_t size, Weight weight,
            bool has_bias) {
    for (const bool bias : {false, true}) {
      if (bias && !has_bias) continue;
      Draft& draft = add(bias ? name + ".bias" : weight_of(name), {size}, weight);
      draft.user = user;
      draft.is_norm = true;
      draft.is_bias = bias;
    }
  }

  void write() {
    const auto head = static_cast<std::int32_t>(m_.layers) + 1;
    column_matrix(weight_of(form_.embedding), {{Weight::kEmbedding, m_.vocab}}, Weight::kEmbedding);
    if (m_.position == Position::kLearned) {
      add(weight_of(form_.positions), {m_.max_positions, m_.hidden}, Weight::kEmbedding)
          .is_positions = true;
    }
    if (m_.tied_head) final_norm(head);
    for (unit_ = 1; unit_ < head; ++unit_) {
      matrices();
      biases();
      norms();
    }
    if (m_.tied_head) return;
    column_matrix(weight_of(form_.head), {{Weight::kHead, m_.vocab}}, Weight::kHead);
    final_norm(head);
  }
  void final_norm(std::int32_t user) {
    norm(std::string(form_.final_norm), user, m_.hidden, Weight::kFinalNorm, m_.norm_bias);
  }
  std::vector<Rows> qkv() const {
    return {
        {Weight::kQuery, m_.q_dim()}, {Weight::kKey, m_.kv_dim()}, {Weight::kValue, m_.kv_dim()}};
  }
  Weight up() const { return m_.gated_mlp ? Weight::kGateUp : Weight::kUp; }

  void matrices() {
    if (m_.fused_qkv) {
      column_matrix(weight_of(module(form_.qkv)), qkv(), Weight::kQkv);
    } else {
      const std::vector<Rows> parts = qkv();
      const std::string_view names[] = {form_.query, form_.key, form_.value};
      for (std::size_t i = 0; i < parts.size(); ++i)
        column_matrix(weight_of(module(names[i])), {parts[i]}, Weight::kQkv);
    }
    row_matrix(form_.output, m_.q_dim(), Weight::kOutput);
    if (m_.fused_gate_up) {
      column_matrix(weight_of(module(form_.gate_up)),
                    {{Weight::kGate, m_.ffn}, {Weight::kUp, m_.ffn}}, up());
    } else {
      if (m_.gated_mlp)
        column_matrix(weight_of(module(form_.gate)), {{Weight::kGate, m_.ffn}}, up());
      column_matrix(weight_of(module(form_.up)), {{Weight::kUp, m_.ffn}}, up());
    }
    row_matrix(form_.down, m_.ffn, Weight::kDown);
  }
  void biases() {
    if (m_.qkv_bias && m_.fused_qkv) {
      column_bias(form_.qkv, qkv(), Weight::kQkv);
    } else if (m_.qkv_bias) {
      const std::vector<Rows> parts = qkv();
      const std::string_view names[] = {form_.query, form_.key, form_.value};
      for (std::size_t i = 0; i < parts.size(); ++i)
        column_bias(names[i], {parts[i]}, Weight::kQkv);
    }
    if (m_.attention_out_bias) row_bias(form_.output, Weight::kOutput);
    if (!m_.mlp_bias) return;
    if (m_.gated_mlp) column_bias(form_.gate, {{Weight::kGate, m_.ffn}}, up());
    column_bias(form_.up, {{Weight::kUp, m_.ffn}}, up());
    row_bias(form_.down, Weight::kDown);
  }
  void norms() {
    const auto layer_norm = [&](std::string_view part, Weight weight) {
      if (!part.empty()) norm(module(part), unit_, m_.hidden, weight, m_.norm_bias);
    };
    layer_norm(form_.norm1, Weight::kNorm1);
    layer_norm(form_.post_norm1, Weight::kNorm1);
    layer_norm(form_.norm2, Weight::kNorm2);
    layer_norm(form_.post_norm2, Weight::kNorm2);
    if (!m_.qk_norm) return;
    for (const char* of : {"self_attn.q_norm", "self_attn.k_norm"})
      norm(module(of), unit_, m_.head_dim, Weight::kQkNorm, false);
  }

  const Model& m_;
  const FamilyForm& form_;
  const Parallelism& parallel_;
  const RankPlace& place_;
  std::vector<Draft> drafts_;
  std::int32_t unit_ = 0;
};

std::int64_t HeldPart::row_count() const {
  std::int64_t count = 0;
  for (const Slice::Range& range : rows) count += range.size();
  return count;
}

ParameterLayout::ParameterLayout(const Model& model, const Schedule& schedule,
                                 const Parallelism& parallel, const RankPlace& place)
    : shard_ranks_(schedule.shard_ranks()),
      tied_(model.tied_head),
      adds_uses_(tied_ && schedule.unit_sizes.tied()),
      initial_deviation_(model.initial_deviation) {
  const FamilyForm* const known = find_family_form(model.family);
  const int of_family = known == nullptr || known->post_norm1.empty() ? 2 : 4;
  if (known == nullptr || model.norms_per_layer != of_family) {
    throw Error(fmt::format("model '{}' of the family {} has {} norms a layer, expected {}",
                            model.name, model.family, model.norms_per_layer, of_family));
  }
  const FamilyForm& form = *known;
  norm_offset_ = form.norm_offset;
  units_.resize(static_cast<std::size_t>(model.layers) + 3);
  weights_.resize(units_.size());
  norms_.resize(units_.size());
  // Norms that are apart lie behind everything else, but keep their global index.
  std::uint64_t index = 0;
  std::vector<std::pair<Draft, std::uint64_t>> apart;
  const Drafts drafts(model, form, parallel, place);
  for (Draft draft : drafts.all()) {
    if (tied_) place_tied(schedule, draft);
    if (schedule.unit_elements(draft.unit) == 0) draft.held.rows.clear();  // another stage's
    if (schedule.sharding.separates_norms && draft.is_norm) {
      apart.emplace_back(draft, index);
    } else {
      this->place(draft, draft.unit, index);
    }
    std::uint64_t size = 1;
    for (const std::int64_t n : draft.shape) size *= static_cast<std::uint64_t>(n);
    index += size;
  }
  for (const auto& [draft, first_index] : apart) this->place(draft, norm_unit(), first_index);
  parameters_ = static_cast<std::int64_t>(index);
  for (ParameterTensor& tensor : tensors_) {
    tensor.stored = stored_form(form, tensor.name, tensor.shape, head_shape(model));
  }
  if (tied_) {
    WeightTensors& head =
        weights_[static_cast<std::size_t>(head_unit())][static_cast<std::size_t>(Weight::kHead)];
    head = weight(Weight::kEmbedding, 0);
    if (schedule.unit_sizes.head_gradient > 0) {
      head.gradient_unit = head_unit();
      for (const int norm : norms(head_unit()))
        tensors_[static_cast<std::size_t>(norm)].gradient_unit = head_unit();
    }
  }

  for (std::int32_t u = 0; u < units(); ++u) {
    ParameterUnit& unit = units_[static_cast<std::size_t>(u)];
    unit.padded = schedule.unit_elements(u);
    SHARDWRIGHT_CHECK(unit.elements <= unit.padded, "{} parameters in a unit of {}", unit.elements,
                      unit.padded);
  }
}

void ParameterLayout::place_tied(const Schedule& schedule, Draft& draft) const {
  const UnitSizes& sizes = schedule.unit_sizes;
  if (draft.weight == Weight::kFinalNorm && !sizes.tied() && sizes.head_gradient == 0)
    draft.unit = head_unit();
  if (draft.weight != Weight::kEmbedding || draft.is_positions || sizes.embedding > 0) return;
  draft.unit = head_unit();
  draft.held.counted = 0;
}

void ParameterLayout::place(const Draft& draft, std::int32_t unit_index,
                            std::uint64_t first_index) {
  ParameterUnit& unit = units_[static_cast<std::size_t>(unit_index)];
  const int tensor_index = static_cast<int>(tensors_.size());
  ParameterTensor& tensor = tensors_.emplace_back();
  tensor.name = draft.name;
  tensor.shape = draft.shape;
  tensor.unit = tensor.gradient_unit = unit_index;
  tensor.offset = unit.elements;
  tensor.size = 1;
  for (const std::int64_t n : draft.shape) tensor.size *= n;
  tensor.held = draft.held;
  tensor.first_index = first_index;
  tensor.initial = draft.is_bias                        ? Initial::kZeros
                   : draft.is_norm && norm_offset_ == 0 ? Initial::kOnes
                   : draft.is_norm                      ? Initial::kZeros
                                                        : Initial::kNormal;
  tensor.decays = draft.shape.size() > 1;
  if (unit.tensors++ == 0) unit.first_tensor = tensor_index;
  unit.elements += tensor.held.elements();

  if (draft.is_norm) norms_[static_cast<std::size_t>(draft.user)].push_back(tensor_index);
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
    if (draft.shape.size() > 1) weight.cols = draft.held.cols.size();
  } else if (draft.is_norm) {
    weight.second = tensor_index;
    return;
  }
  weight.rows += draft.held.row_count();
}

int ParameterLayout::find(std::string_view name) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

namespace {

/// Appends what of a tensor elements [from, to) of the held part are, in its own order; they lie
/// `share_offset` elements from the begin of the share.
void append_parts(int index, const ParameterTensor& tensor, std::int64_t from, std::int64_t to,
                  std::int64_t share_offset, std::vector<OwnedPart>& parts) {
  const std::int64_t cols = tensor.held.cols.size();
  const std::int64_t whole_cols = tensor.row_length();
  bool counts = true;
  const auto append = [&](std::int64_t row, std::int64_t col, std::int64_t rows,
                          std::int64_t count) {
    if (rows == 0 || count == 0) return;
    const std::int64_t first = row * whole_cols + tensor.held.cols.begin + col;
    parts.push_back({index, first, rows, count, share_offset, counts});
    share_offset += rows * count;
  };
  std::int64_t begin = 0;  // of the range of rows among what is held
  for (std::size_t i = 0; i < tensor.held.rows.size(); ++i) {
    const Slice::Range& range = tensor.held.rows[i];
    counts = i < tensor.held.counted;
    const std::int64_t end = begin + range.size() * cols;
    const std::int64_t a = std::clamp(from, begin, end) - begin;
    const std::int64_t b = std::clamp(to, begin, end) - begin;
    begin = end;
    if (a == b) continue;
    if (cols == whole_cols) {
      append(range.begin, a, 1, b - a);
      continue;
    }
    // The end of a row, whole rows, the begin of one.
    const std::int64_t first_whole = (a + cols - 1) / cols, last_whole = b / cols;
    if (first_whole > last_whole) {  // within one row
      append(range.begin + a / cols, a % cols, 1, b - a);
      continue;
    }
    append(range.begin + a / cols, a % cols, 1, first_whole * cols - a);
    append(range.begin + first_whole, 0, last_whole - first_whole, cols);
    append(range.begin + last_whole, 0, 1, b - last_whole * cols);
  }
}

}  // namespace

std::vector<OwnedPart> ParameterLayout::owned(std::int32_t unit_index,
                                              std::int64_t shard_rank) const {
  const ParameterUnit& u = unit(unit_index);
  const std::int64_t begin = share(unit_index) * shard_rank;
  const std::int64_t end = begin + share(unit_index);
  std::vector<OwnedPart> parts;
  for (int i = u.first_tensor, left = u.tensors; left > 0; ++i) {
    const ParameterTensor& t = tensor(i);
    if (t.unit != unit_index) continue;
    --left;
    const std::int64_t from = std::max(begin, t.offset);
    const std::int64_t to = std::min(end, t.offset + t.held.elements());
    if (from < to) append_parts(i, t, from - t.offset, to - t.offset, from - begin, parts);
  }
  return parts;
}

namespace {

constexpr std::size_t kAtATime = std::size_t{1} << 16;  // numbers of one thread

}  // namespace

void draw_weights(const kernels::RandomStream& random, std::uint64_t first, double deviation,
                  std::span<float> out, unsigned threads) {
  for_each_index((out.size() + kAtATime - 1) / kAtATime, threads, [&](std::size_t piece) {
    const std::size_t at = piece * kAtATime;
    kernels::random_normal(random, first + at, 0.0, deviation,
                           out.subspan(at, std::min(kAtATime, out.size() - at)));
  });
}

}  // namespace shardwright::exec
