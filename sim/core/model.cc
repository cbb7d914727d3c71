// SPDX-License-Identifier: Apache-2.0
#include "sim/core/model.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "sim/core/base/error.h"
#include "sim/core/local_shape.h"

namespace shardwright {
namespace {

std::int64_t attention_matrices(const Model& m) {
  const LatentAttention& l = m.latent;
  const std::int64_t gates = m.head_gate ? m.hidden * m.heads : 0;
  if (l.kv_rank == 0) return gates + m.hidden * (m.query_rows() + m.q_dim() + m.key_value_rows());
  const std::int64_t query =
      l.q_rank > 0 ? l.q_rank * (m.hidden + m.q_dim()) : m.hidden * m.q_dim();
  const std::int64_t down = m.hidden * (l.kv_rank + l.rope_dim);
  const std::int64_t up = l.kv_rank * m.heads * (l.nope_dim + l.v_dim);
  return gates + query + down + up + m.attention_out_dim() * m.hidden;
}

std::int64_t recurrence_matrices(const Model& m) {
  const Recurrence& r = m.recurrence;
  const std::int64_t read = r.kind == RecurrenceKind::kMamba1 ? r.value_width() : m.hidden;
  return m.hidden * (r.product_width() + r.value_width()) + read * r.latent_width() +
         r.rank * r.up_width();
}

/// The matrices of a gated or plain MLP of `ffn`.
std::int64_t mlp_matrices(const Model& m, std::int64_t ffn) {
  return (m.gated_mlp ? 3 : 2) * m.hidden * ffn;
}

std::int64_t expert_matrices(const Model& m) {
  return (m.gated_mlp ? 3 : 2) * m.expert_width() * m.experts.ffn;
}

/// To the width that experts take and back.
std::int64_t expert_latent_matrices(const Model& m) {
  return 2 * m.hidden * m.experts.latent;
}

std::int64_t mlp_biases(const Model& m, std::int64_t ffn) {
  return (m.gated_mlp ? 2 : 1) * ffn + m.hidden;
}

std::int64_t attention_biases(const Model& m) {
  std::int64_t count = 0;
  if (m.qkv_bias) count += m.q_dim() + m.key_value_rows();
  if (m.attention_out_bias) count += m.hidden;
  if (m.attention_sinks) count += m.heads;
  return count;
}

std::int64_t norm_parameters(const Model& m) {
  return (m.norm_bias ? 2 : 1) * m.hidden;
}

/// Norms of queries, keys and latent vectors.
std::int64_t inner_norm_parameters(const Model& m) {
  const std::int64_t latent = m.latent.kv_rank + m.latent.q_rank;
  if (!m.qk_norm) return latent;
  return latent + (m.qk_norm_whole ? m.q_dim() + m.kv_dim() : 2 * m.head_dim);
}

/// Weights of the products that a token passes in the experts of one layer, the router included.
std::int64_t active_expert_matrices(const Model& m) {
  const Experts& e = m.experts;
  return m.hidden * e.count + mlp_matrices(m, e.shared_ffn) + e.per_token * expert_matrices(m) +
         expert_latent_matrices(m) + (e.shared_gate ? m.hidden : 0);
}

/// Of one module of multi-token prediction: the product of the hidden state beside the embedding.
std::int64_t mtp_projection(const Model& m) {
  return 2 * m.hidden * m.hidden;
}

void count_experts(const Model& m, ParameterCounts& counts) {
  const Experts& e = m.experts;
  counts.expert_layers = m.expert_layers();
  counts.dense_mlp = mlp_matrices(m, m.ffn) + (m.mlp_bias ? mlp_biases(m, m.ffn) : 0);
  counts.router = m.hidden * e.count + (e.router_bias ? e.count : 0) +
                  (e.shared_gate ? m.hidden : 0) + expert_latent_matrices(m);
  counts.shared_experts = mlp_matrices(m, e.shared_ffn);
  counts.expert = expert_matrices(m) + (e.bias ? mlp_biases(m, e.ffn) : 0);
  counts.experts = e.count * counts.expert;
  counts.active_experts = e.per_token * counts.expert;
}

/// All layers of a model whose layers have kinds.
std::int64_t count_layers(const Model& m, const ParameterCounts& counts) {
  std::int64_t total = 0;
  for (const LayerKind kind : m.kinds) {
    for (const WeightShape& weight : weights_of(m, kind)) total += weight.elements();
    if (kind.channels == Channels::kExperts) total += counts.experts;
  }
  return total;
}

class Checker {
 public:
  explicit Checker(const Model& model) : model_(model) {}

  void size(std::string_view field, std::int64_t value, std::int64_t most) const {
    if (value < 1 || value > most) {
      fail(fmt::format("{} is {}, expected 1 to {}", field, value, most));
    }
  }
  [[noreturn]] void fail(std::string_view what) const {
    throw Error(fmt::format("model '{}': {}", model_.name, what));
  }

 private:
  const Model& model_;
};

void check_experts(const Model& m, const Checker& check) {
  const Experts& e = m.experts;
  check.size("experts", e.count, model_limits::kExperts);
  check.size("experts per token", e.per_token, e.count);
  check.size("expert ffn", e.ffn, model_limits::kFfn);
  check.size("shared expert ffn + 1", e.shared_ffn + 1, model_limits::kFfn);
  check.size("first layer with experts", e.first_layer + 1, m.layers);
  check.size("step between layers with experts", e.every, m.layers);
  check.size("groups of experts", e.groups, e.count);
  check.size("groups per token", e.groups_per_token, e.groups);
  check.size("expert latent + 1", e.latent + 1, model_limits::kHidden);
  if (e.count % e.groups != 0) {
    check.fail(fmt::format("{} groups of experts, expected a divisor of the {} experts", e.groups,
                           e.count));
  }
}

void check_recurrence(const Model& m, const Checker& check) {
  const Recurrence& r = m.recurrence;
  check.size("value heads", r.value_heads, model_limits::kHeads);
  check.size("value_dim", r.value_dim, model_limits::kProjection);
  check.size("key heads", r.key_heads, r.value_heads);
  check.size("key_dim", r.key_dim, model_limits::kHeadDim);
  check.size("value heads * value_dim", r.value_width(), model_limits::kProjection);
  check.size("key heads * key_dim", r.key_width(), model_limits::kProjection);
  check.size("taps of the convolution + 1", r.taps + 1, 65);
  check.size("rank + 1", r.rank + 1, model_limits::kHidden);
  check.size("tokens of a chunk", r.chunk, 1 << 14);
  if (r.value_heads % r.key_heads != 0) {
    check.fail(fmt::format("{} value heads, expected a multiple of the {} key heads", r.value_heads,
                           r.key_heads));
  }
}

void check_form(const Model& m, const LayerForm& form, const Checker& check) {
  check.size("forms of attention", static_cast<std::int64_t>(m.forms.size()), kMostForms - 1);
  check.size("heads of a layer", form.heads, model_limits::kHeads);
  check.size("kv_heads of a layer", form.kv_heads, form.heads);
  check.size("head_dim of a layer", form.head_dim, model_limits::kHeadDim);
  check.size("heads * head_dim of a layer", form.heads * form.head_dim, model_limits::kProjection);
  if (form.heads % form.kv_heads != 0) {
    check.fail(fmt::format("kv_heads of a layer is {}, expected a divisor of its {} heads",
                           form.kv_heads, form.heads));
  }
  if (form.windowed && m.sliding_window == 0) check.fail("windowed layers without sliding_window");
}

void check_latent(const Model& m, const Checker& check) {
  const LatentAttention& l = m.latent;
  check.size("kv_rank", l.kv_rank, model_limits::kHidden);
  check.size("q_rank + 1", l.q_rank + 1, model_limits::kHidden);
  check.size("nope_dim", l.nope_dim, model_limits::kHeadDim);
  check.size("rope_dim", l.rope_dim, model_limits::kHeadDim);
  check.size("v_dim", l.v_dim, model_limits::kHeadDim);
  check.size("heads * v_dim", m.attention_out_dim(), model_limits::kProjection);
}

}  // namespace

std::vector<LayerKind> kinds_of(const Model& m) {
  if (m.is_plain()) return {LayerKind{}};
  if (m.kinds.empty()) return {LayerKind{}, {Mixer::kAttention, Channels::kExperts}};
  std::vector<LayerKind> kinds;
  for (std::size_t i = 0; i < kLayerKinds; ++i) {
    const LayerKind kind = LayerKind::at(i);
    if (std::find(m.kinds.begin(), m.kinds.end(), kind) != m.kinds.end()) kinds.push_back(kind);
  }
  return kinds;
}

Model model_of_layer(const Model& m, LayerKind kind) {
  Model of_layer = m;
  if (kind.form == 0) return of_layer;
  const LayerForm& form = m.forms[kind.form - std::size_t{1}];
  of_layer.heads = form.heads;
  of_layer.kv_heads = form.kv_heads;
  of_layer.head_dim = form.head_dim;
  of_layer.values_are_keys = form.values_are_keys;
  of_layer.windowed_layers = form.windowed ? m.layers : 0;
  return of_layer;
}

double attended_share(const Model& m, std::int64_t seq_len) {
  if (m.sliding_window == 0 || seq_len <= m.sliding_window) return 1;
  const auto length = static_cast<double>(seq_len);
  const auto window = static_cast<double>(m.sliding_window);
  double share = 0;
  if (m.chunked_attention) {
    const auto rest = static_cast<double>(seq_len % m.sliding_window);
    share = ((length - rest) * window + rest * rest) / (length * length);
  } else {
    share = window * (2 * length - window) / (length * length);
  }
  const double windowed = static_cast<double>(m.windowed_layers) /
                          static_cast<double>(std::max<std::int64_t>(m.layers, 1));
  return 1 - windowed * (1 - share);
}

ParameterCounts count_parameters(const Model& m) {
  ParameterCounts counts;
  counts.embedding = m.vocab * m.hidden;
  counts.positions = m.position == Position::kLearned ? m.max_positions * m.hidden : 0;
  counts.layer_matrices = attention_matrices(m) + mlp_matrices(m, m.ffn);
  counts.layer_biases = attention_biases(m) + (m.mlp_bias ? mlp_biases(m, m.ffn) : 0);
  counts.layer_norms = m.norms_per_layer * norm_parameters(m) + inner_norm_parameters(m);
  counts.final_norm = norm_parameters(m);
  counts.head = m.tied_head ? 0 : m.vocab * m.hidden;
  if (m.is_moe()) count_experts(m, counts);
  if (!m.kinds.empty()) counts.all_layers = count_layers(m, counts);
  // A layer like the last one, the product before it, and norms of its two inputs and its output.
  const std::int64_t last = m.is_moe() ? counts.expert_layer() : counts.layer();
  counts.mtp = m.mtp_layers * (last + mtp_projection(m) + 3 * norm_parameters(m));
  return counts;
}

namespace {

/// Of one token in one layer's attention, in the forward pass.
double scores(const Model& m, std::int64_t seq_len) {
  return static_cast<double>(m.q_dim() + m.attention_out_dim()) * static_cast<double>(seq_len) *
         attended_share(m, seq_len);
}

}  // namespace

ForwardFlops forward_flops_per_token(const Model& m, std::int64_t seq_len) {
  const std::int64_t attention = attention_matrices(m);
  const std::int64_t mlp = mlp_matrices(m, m.ffn);
  const std::int64_t experts = m.is_moe() ? active_expert_matrices(m) : mlp;
  const std::int64_t head = m.vocab * m.hidden;
  const std::int64_t predictions = m.mtp_layers * (attention + experts + mtp_projection(m) + head);
  std::int64_t weights = head + predictions;
  if (m.kinds.empty()) {
    weights +=
        m.layers * attention + (m.layers - m.expert_layers()) * mlp + m.expert_layers() * experts;
    const double layers = static_cast<double>(m.layers + m.mtp_layers);
    return {.matrices = 2 * static_cast<double>(weights), .attention = layers * scores(m, seq_len)};
  }
  double attending = static_cast<double>(m.mtp_layers) * scores(m, seq_len);
  for (const LayerKind kind : kinds_of(m)) {
    const Model of_layer = model_of_layer(m, kind);
    const std::int64_t layers = std::count(m.kinds.begin(), m.kinds.end(), kind);
    if (kind.attends()) {
      weights += layers * attention_matrices(of_layer);
      attending += static_cast<double>(layers) * scores(of_layer, seq_len);
    }
    if (kind.recurs()) {
      weights += layers * recurrence_matrices(m);
      attending += static_cast<double>(layers) * m.recurrence.flops();
    }
    if (kind.channels == Channels::kMlp) weights += layers * mlp;
    if (kind.channels == Channels::kExperts) weights += layers * experts;
  }
  return {.matrices = 2 * static_cast<double>(weights), .attention = attending};
}

void check_model(const Model& m) {
  const Checker check(m);
  check.size("layers", m.layers, model_limits::kLayers);
  check.size("hidden", m.hidden, model_limits::kHidden);
  check.size("heads", m.heads, model_limits::kHeads);
  check.size("kv_heads", m.kv_heads, m.heads);
  check.size("head_dim", m.head_dim, model_limits::kHeadDim);
  check.size("heads * head_dim", m.q_dim(), model_limits::kProjection);
  check.size("ffn", m.ffn, model_limits::kFfn);
  check.size("vocab", m.vocab, model_limits::kVocab);
  check.size("max_positions", m.max_positions, model_limits::kPositions);
  check.size("norms_per_layer", m.norms_per_layer, 8);
  if (m.heads % m.kv_heads != 0) {
    check.fail(
        fmt::format("kv_heads is {}, expected a divisor of the {} heads", m.kv_heads, m.heads));
  }
  if (m.position == Position::kRope && m.head_dim % 2 != 0) {
    check.fail(fmt::format("head_dim is {}, expected an even number, because RoPE turns pairs",
                           m.head_dim));
  }
  if (m.sliding_window < 0) {
    check.fail(fmt::format("sliding_window is {}, expected 0 or more", m.sliding_window));
  }
  check.size("mtp_layers + 1", m.mtp_layers + 1, 64);
  if (m.latent.kv_rank > 0) check_latent(m, check);
  if (!m.kinds.empty() && static_cast<std::int64_t>(m.kinds.size()) != m.layers)
    check.fail(fmt::format("{} kinds of {} layers", m.kinds.size(), m.layers));
  for (const LayerForm& form : m.forms) check_form(m, form, check);
  if (m.recurrence.value_heads > 0) check_recurrence(m, check);
  if (m.is_moe()) {
    check_experts(m, check);
    // Counted as a real number first: experts of all layers may exceed int64.
    const double experts = static_cast<double>(m.experts.count) * static_cast<double>(m.layers) *
                           3 * static_cast<double>(m.hidden) * static_cast<double>(m.experts.ffn);
    if (experts > static_cast<double>(model_limits::kParameters)) {
      check.fail(fmt::format("its experts make {:.3g} parameters, expected at most {}", experts,
                             model_limits::kParameters));
    }
  }
  // With the bounds above one dense layer has less than 2^42 parameters, so 2^14 of them fit int64.
  const std::int64_t total = count_parameters(m).total(m.layers);
  if (total > model_limits::kParameters) {
    check.fail(fmt::format("its sizes make {} parameters, expected at most {}", total,
                           model_limits::kParameters));
  }
}

}  // namespace shardwright
