// SPDX-License-Identifier: Apache-2.0
#include "sim/core/local_shape.h"

#include <algorithm>

namespace shardwright {

namespace {

/// Writes the weights of one unit.
class WeightWriter {
 public:
  WeightWriter(const Model& model, std::vector<WeightShape>& out) : m_(model), out_(out) {}

  void matrix(Weight weight, std::int64_t rows, std::int64_t columns, SliceAlong along) {
    out_.push_back({weight, rows, columns, 1, along});
  }
  /// Of the matrix before it: cut with its rows.
  void bias() {
    const WeightShape& of = out_.back();
    const bool cut = of.along == SliceAlong::kRows;
    const std::int64_t heads = of.heads;
    out_.push_back({of.weight, of.rows, 1, 1, cut ? SliceAlong::kRows : SliceAlong::kWhole, true});
    out_.back().heads = heads;
  }
  void norm(Weight weight, std::int64_t size, bool has_bias) {
    for (int i = 0; i < (has_bias ? 2 : 1); ++i)
      out_.push_back({weight, size, 1, 1, SliceAlong::kWhole, i == 1, true});
  }

  void attention() {
    const LatentAttention& latent = m_.latent;
    if (latent.kv_rank > 0) {
      latent_attention();
    } else {
      for (const Weight weight : {Weight::kQuery, Weight::kKey, Weight::kValue}) {
        if (weight == Weight::kValue && m_.values_are_keys) continue;
        const bool query = weight == Weight::kQuery;
        matrix(weight, query ? m_.query_rows() : m_.kv_dim(), m_.hidden, SliceAlong::kRows);
        if (!query) out_.back().heads = m_.kv_heads;
        if (m_.qkv_bias) bias();
      }
    }
    if (m_.attention_sinks) matrix(Weight::kSinks, m_.heads, 1, SliceAlong::kRows);
    if (m_.head_gate) matrix(Weight::kHeadGate, m_.heads, m_.hidden, SliceAlong::kRows);
    matrix(Weight::kOutput, m_.hidden, m_.attention_out_dim(), SliceAlong::kColumns);
    if (m_.attention_out_bias) bias();
  }

  void recurrence() {
    const Recurrence& r = m_.recurrence;
    matrix(Weight::kRecurrentIn, r.product_width(), m_.hidden, SliceAlong::kRows);
    if (r.bias) bias();
    if (r.taps > 0) matrix(Weight::kConvolution, r.convolved(), r.taps, SliceAlong::kRows);
    if (r.taps > 0 && r.convolution_bias) bias();
    if (r.latent_width() > 0) {
      const bool of_values = r.kind == RecurrenceKind::kMamba1;
      matrix(Weight::kRecurrentDown, r.latent_width(), of_values ? r.value_width() : m_.hidden,
             SliceAlong::kWhole);
      matrix(Weight::kRecurrentUp, r.up_width(), r.rank, SliceAlong::kRows);
    }
    if (r.vector_parameters() > 0) {
      out_.push_back(
          {Weight::kRecurrentHeads, r.vector_parameters(), 1, 1, SliceAlong::kRows, true});
    }
    matrix(Weight::kRecurrentOut, m_.hidden, r.value_width(), SliceAlong::kColumns);
    if (r.bias) bias();
  }

  /// A layer but for its routed experts.
  void layer(LayerKind kind) {
    if (kind.attends()) attention();
    if (kind.recurs()) recurrence();
    if (kind.channels == Channels::kMlp) mlp();
    if (kind.channels == Channels::kExperts) router_and_shared_experts();
    layer_norms(kind);
  }

  void mlp() { mlp({Weight::kGate, Weight::kUp, Weight::kDown}, m_.hidden, m_.ffn, m_.mlp_bias); }

  void router_and_shared_experts() {
    const Experts& e = m_.experts;
    matrix(Weight::kRouter, e.count, m_.hidden, SliceAlong::kWhole);
    if (e.router_bias) bias();
    if (e.shared_gate) matrix(Weight::kSharedExpertsGate, 1, m_.hidden, SliceAlong::kWhole);
    if (e.latent > 0) {
      matrix(Weight::kExpertLatentDown, e.latent, m_.hidden, SliceAlong::kWhole);
      matrix(Weight::kExpertLatentUp, m_.hidden, e.latent, SliceAlong::kWhole);
    }
    if (e.shared_ffn == 0) return;
    mlp({Weight::kSharedGate, Weight::kSharedUp, Weight::kSharedDown}, m_.hidden, e.shared_ffn,
        false);
  }

  void experts() {
    const Experts& e = m_.experts;
    const std::size_t first = out_.size();
    mlp({Weight::kExpertGate, Weight::kExpertUp, Weight::kExpertDown}, m_.expert_width(), e.ffn,
        e.bias);
    for (std::size_t i = first; i < out_.size(); ++i) out_[i].experts = e.count;
  }

  void layer_norms(LayerKind kind = {}) {
    for (int i = 0; i < m_.norms_per_layer; ++i) {
      const bool first = 2 * i < m_.norms_per_layer;
      const bool has = first ? kind.mixer != Mixer::kNone : kind.channels != Channels::kNone;
      if (has) norm(first ? Weight::kNorm1 : Weight::kNorm2, m_.hidden, m_.norm_bias);
    }
    if (kind.recurs()) recurrence_norms();
    if (!kind.attends()) return;
    if (m_.latent.q_rank > 0) norm(Weight::kLatentNorm, m_.latent.q_rank, false);
    if (m_.latent.kv_rank > 0) norm(Weight::kLatentNorm, m_.latent.kv_rank, false);
    if (!m_.qk_norm) return;
    norm(Weight::kQkNorm, m_.qk_norm_whole ? m_.q_dim() : m_.head_dim, false);
    norm(Weight::kQkNorm, m_.qk_norm_whole ? m_.kv_dim() : m_.head_dim, false);
  }

  void final_norm() { norm(Weight::kFinalNorm, m_.hidden, m_.norm_bias); }

 private:
  struct MlpWeights {
    Weight gate, up, down;
  };

  void recurrence_norms() {
    const Recurrence& r = m_.recurrence;
    // Of all heads' channels, or one for each head.
    const bool cut = r.norm_width() == r.value_width();
    if (r.norm_width() > 0) {
      out_.push_back({Weight::kRecurrentNorm, r.norm_width(), 1, 1,
                      cut ? SliceAlong::kRows : SliceAlong::kWhole, false, true});
    }
    if (r.inner_norms) norm(Weight::kRecurrentNorm, r.inner_norm_width(), false);
  }

  void latent_attention() {
    const LatentAttention& l = m_.latent;
    if (l.q_rank > 0) {
      matrix(Weight::kQueryDown, l.q_rank, m_.hidden, SliceAlong::kWhole);
      matrix(Weight::kQueryUp, m_.q_dim(), l.q_rank, SliceAlong::kRows);
    } else {
      matrix(Weight::kQuery, m_.q_dim(), m_.hidden, SliceAlong::kRows);
    }
    matrix(Weight::kKeyValueDown, l.kv_rank + l.rope_dim, m_.hidden, SliceAlong::kWhole);
    matrix(Weight::kKeyValueUp, m_.heads * (l.nope_dim + l.v_dim), l.kv_rank, SliceAlong::kRows);
  }

  void mlp(const MlpWeights& weights, std::int64_t width, std::int64_t ffn, bool has_bias) {
    if (m_.gated_mlp) {
      matrix(weights.gate, ffn, width, SliceAlong::kRows);
      if (has_bias) bias();
    }
    matrix(weights.up, ffn, width, SliceAlong::kRows);
    if (has_bias) bias();
    matrix(weights.down, width, ffn, SliceAlong::kColumns);
    if (has_bias) bias();
  }

  const Model& m_;
  std::vector<WeightShape>& out_;
};

std::int16_t small(std::int64_t value) {
  return static_cast<std::int16_t>(value);
}

}  // namespace

RankShape rank_shape(const Model& model, const Plan& plan) {
  const Parallelism& p = plan.parallel;
  RankShape s;
  s.tp = p.tp;
  s.cp = p.cp;
  s.sequence_parallel = p.sequence_parallel();
  s.seq_len = plan.seq_len / p.cp;
  s.tokens = plan.micro_batch * s.seq_len;
  s.sharded_tokens = s.sequence_parallel ? std::max<std::int64_t>(1, s.tokens / p.tp) : s.tokens;
  s.heads = model.heads / p.tp;
  s.kv_heads = std::max<std::int64_t>(1, model.kv_heads / p.tp);
  s.head_dim = model.head_dim;
  s.v_head_dim = model.latent.kv_rank > 0 ? model.latent.v_dim : model.head_dim;
  s.hidden = model.hidden;
  s.ffn = model.ffn / p.tp;
  s.vocab = (model.vocab + p.tp - 1) / p.tp;
  s.experts = std::max<std::int64_t>(1, model.experts.count / p.ep);
  s.expert_ffn = model.experts.ffn / p.etp;
  s.shared_ffn = model.experts.shared_ffn / p.tp;
  s.recurrence = model.recurrence;
  s.recurrence.value_heads = model.recurrence.value_heads / p.tp;
  s.recurrence.key_heads = model.recurrence.key_heads / p.tp;
  return s;
}

Model model_of_rank(const Model& model, const RankShape& shape) {
  Model local = model;
  local.heads = shape.heads;
  local.kv_heads = shape.kv_heads;
  local.ffn = shape.ffn;
  local.vocab = shape.vocab;
  return local;
}

bool is_of_own_tokens(Tensor tensor) {
  switch (tensor) {
    case Tensor::kX:
    case Tensor::kXMid:
    case Tensor::kNorm1Out:
    case Tensor::kNorm2Out:
    case Tensor::kProjected:
    case Tensor::kDown:
    case Tensor::kDX:
    case Tensor::kDXMid:
    case Tensor::kDNormSum:
    case Tensor::kExpertsOut:
      return true;
    default:
      return false;
  }
}

Slice::Range Slice::of(std::int64_t size) const {
  const std::int64_t part = (size + count - 1) / count;
  return {std::min(size, index * part), std::min(size, (index + 1) * part)};
}

bool WeightShape::is_routed() const {
  return weight == Weight::kExpertGate || weight == Weight::kExpertUp ||
         weight == Weight::kExpertDown;
}

std::vector<WeightShape> weights_of(const Model& m, ModelUnit unit) {
  std::vector<WeightShape> weights;
  weights.reserve(24);
  WeightWriter w(m, weights);
  switch (unit) {
    case ModelUnit::kEmbedding:
      w.matrix(Weight::kEmbedding, m.vocab, m.hidden, SliceAlong::kRows);
      if (m.position == Position::kLearned)
        w.matrix(Weight::kPositions, m.max_positions, m.hidden, SliceAlong::kWhole);
      break;
    case ModelUnit::kDenseLayer:
      w.layer({});
      break;
    case ModelUnit::kMoeLayer:
      w.layer({Mixer::kAttention, Channels::kExperts});
      break;
    case ModelUnit::kExperts:
      w.experts();
      break;
    case ModelUnit::kHead:
      if (!m.tied_head) w.matrix(Weight::kHead, m.vocab, m.hidden, SliceAlong::kRows);
      w.final_norm();
      break;
    case ModelUnit::kNorms:
      for (std::int64_t i = 0; i < m.layers; ++i) {
        const LayerKind kind = m.kind(i);
        kind.form == 0 ? w.layer_norms(kind)
                       : WeightWriter(model_of_layer(m, kind), weights).layer_norms(kind);
      }
      w.final_norm();
      break;
  }
  return weights;
}

std::vector<WeightShape> weights_of(const Model& m, LayerKind kind) {
  std::vector<WeightShape> weights;
  weights.reserve(24);
  const Model of_layer = kind.form == 0 ? Model() : model_of_layer(m, kind);
  WeightWriter(kind.form == 0 ? m : of_layer, weights).layer(kind);
  return weights;
}

WeightSlices slices_of(const WeightShape& weight, const Parallelism& p, const RankPlace& place) {
  WeightSlices slices;
  std::int64_t count = p.tp, index = place.tp;
  if (weight.is_routed()) {
    slices.experts = {SliceAlong::kExperts, small(place.ep), small(p.ep)};
    count = p.etp;
    index = place.etp;
  }
  if (weight.along == SliceAlong::kWhole) return slices;
  if (weight.heads > 0) {
    const std::int64_t parts = std::min(count, weight.heads);
    index /= count / parts;
    count = parts;
  }
  slices.each = {weight.along, small(index), small(count)};
  return slices;
}

std::int64_t WeightSlices::elements(const WeightShape& of) const {
  const std::int64_t rows = each.along == SliceAlong::kRows ? each.of(of.rows).size() : of.rows;
  const std::int64_t columns =
      each.along == SliceAlong::kColumns ? each.of(of.columns).size() : of.columns;
  return experts.of(of.experts).size() * rows * columns;
}

ModelUnits::ModelUnits(const Model& model, const Parallelism& parallel) {
  const auto count = [&](ModelUnit unit) {
    std::int64_t norms = 0;
    for (const WeightShape& weight : weights_of(model, unit)) {
      const std::int64_t held = slices_of(weight, parallel).elements(weight);
      elements_[static_cast<std::size_t>(unit)] += held;
      if (weight.is_norm) norms += held;
      if (weight.weight == Weight::kEmbedding) vocabulary_ = held;
    }
    return norms;
  };
  count(ModelUnit::kEmbedding);
  const std::int64_t norms_of_layer = count(ModelUnit::kDenseLayer);
  if (model.is_moe()) {
    count(ModelUnit::kMoeLayer);
    count(ModelUnit::kExperts);
  }
  const std::int64_t last_norm = count(ModelUnit::kHead);
  if (model.kinds.empty()) {
    elements_[static_cast<std::size_t>(ModelUnit::kNorms)] =
        model.layers * norms_of_layer + last_norm;
  } else {
    count(ModelUnit::kNorms);
  }
  prediction_projection_ = 2 * model.hidden * model.hidden;
}

}  // namespace shardwright
