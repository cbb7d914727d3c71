// SPDX-License-Identifier: Apache-2.0
#include "sim/core/model.h"

#include <fmt/core.h>

#include <string_view>

#include "sim/core/error.h"

namespace shardwright {
namespace {

/// Matrices of attention and MLP in one layer, as weights.
std::int64_t layer_matrices(const Model& m) {
  const std::int64_t attention = 2 * m.hidden * m.q_dim() + 2 * m.hidden * m.kv_dim();
  return attention + (m.gated_mlp ? 3 : 2) * m.hidden * m.ffn;
}

std::int64_t layer_biases(const Model& m) {
  std::int64_t count = 0;
  if (m.qkv_bias) count += m.q_dim() + 2 * m.kv_dim();
  if (m.attention_out_bias) count += m.hidden;
  if (m.mlp_bias) count += (m.gated_mlp ? 2 : 1) * m.ffn + m.hidden;
  return count;
}

std::int64_t norm_parameters(const Model& m) {
  return (m.norm_bias ? 2 : 1) * m.hidden;
}

std::int64_t qk_norm_parameters(const Model& m) {
  if (!m.qk_norm) return 0;
  return m.qk_norm_whole ? m.q_dim() + m.kv_dim() : 2 * m.head_dim;
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

}  // namespace

ParameterCounts count_parameters(const Model& m) {
  ParameterCounts counts;
  counts.embedding = m.vocab * m.hidden;
  counts.positions = m.position == Position::kLearned ? m.max_positions * m.hidden : 0;
  counts.layer_matrices = layer_matrices(m);
  counts.layer_biases = layer_biases(m);
  counts.layer_norms = m.norms_per_layer * norm_parameters(m) + qk_norm_parameters(m);
  counts.final_norm = norm_parameters(m);
  counts.head = m.tied_head ? 0 : m.vocab * m.hidden;
  return counts;
}

ForwardFlops forward_flops_per_token(const Model& m, std::int64_t seq_len) {
  const auto weights = static_cast<double>(m.layers * layer_matrices(m) + m.vocab * m.hidden);
  const auto scores = static_cast<double>(m.layers * m.q_dim()) * static_cast<double>(seq_len);
  return {.matrices = 2 * weights, .attention = 2 * scores};
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
  // With the bounds above one layer has less than 2^42 parameters, so 2^14 of them fit int64.
  const std::int64_t total = count_parameters(m).total(m.layers);
  if (total > model_limits::kParameters) {
    check.fail(fmt::format("its sizes make {} parameters, expected at most {}", total,
                           model_limits::kParameters));
  }
}

}  // namespace shardwright
