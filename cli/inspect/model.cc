// SPDX-License-Identifier: Apache-2.0
#include "sim/core/model.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/inspect/inspect.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "cli/render/words/plan.h"
#include "cli/text.h"
#include "profiles/data_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/words.h"
#include "sim/core/hf/config.h"
#include "sim/core/local_shape.h"
#include "sim/core/plan_knobs.h"
#include "sim/core/units.h"
#include "sim/predict.h"

namespace shardwright::cli {
namespace {

using nlohmann::ordered_json;

// What training a whole model on one device would take: the rule of thumb that people carry in
// their heads beside the bytes that this program counts.

/// Bytes a parameter: 2 of weights, 2 of gradients, 12 of fp32 weights and Adam's moments, and 8
/// for activations and what else is on a GPU.
constexpr double kRuleOfThumbBytes = 24;

/// One unsharded copy, bf16 with fp32 weights and moments, native stack, one sequence.
struct TrainingMemory {
  double rule_of_thumb_bytes = 0;
  Bytes state_bytes = 0;            // weights, their fp32 copy, gradients and moments
  Bytes peak_bytes = 0;             // with every activation kept
  Bytes recomputed_peak_bytes = 0;  // with every layer recomputed
};

Bytes of(const sim::MemoryPrediction& memory, MemoryCategory category) {
  return memory.breakdown_bytes[static_cast<std::size_t>(category)];
}

/// None for a model that is not predicted on one device.
std::optional<TrainingMemory> training_memory(const Model& model, std::int64_t seq_len) {
  // Bytes are the model's and the schedule's; of the cluster only the GPU's alignment enters.
  constexpr const char* kAnyCluster = "dgx-h100";
  Plan plan;
  plan.strategy = Strategy::kSingle;
  plan.seq_len = seq_len;
  try {
    sim::Predictor predictor(model, profiles::load_profile(kAnyCluster, plan.stack));
    const auto memory_with = [&](std::int64_t checkpointed) {
      plan.ckpt_layers = checkpointed;
      plan.recompute = checkpointed > 0 ? Recompute::kFull : Recompute::kNone;
      return predictor.predict(plan).memory;
    };
    const sim::MemoryPrediction kept = memory_with(0);
    TrainingMemory result;
    result.rule_of_thumb_bytes =
        kRuleOfThumbBytes * static_cast<double>(count_parameters(model).total(model.layers));
    result.state_bytes = of(kept, MemoryCategory::kParameters) + of(kept, MemoryCategory::kMaster) +
                         of(kept, MemoryCategory::kGradients) +
                         of(kept, MemoryCategory::kOptimizer);
    result.peak_bytes = kept.peak_allocated_bytes;
    result.recomputed_peak_bytes = memory_with(model.layers).peak_allocated_bytes;
    return result;
  } catch (const InvalidPlan&) {
    return std::nullopt;  // longer than its window, or a family that needs more than one device
  }
}

std::string training_memory_table(const TrainingMemory& memory, std::int64_t seq_len,
                                  std::int64_t parameters, const Terminal& out) {
  const auto each = [parameters](double bytes) {
    return fmt::format("{:.1f} bytes a parameter", bytes / static_cast<double>(parameters));
  };
  Table table({"training, unsharded", "", ""});
  table.add_row(
      {"rule of thumb", bytes(memory.rule_of_thumb_bytes), each(memory.rule_of_thumb_bytes)});
  table.add_row({"weights, gradients, Adam", bytes(memory.state_bytes),
                 each(static_cast<double>(memory.state_bytes)) + ", exact"});
  table.add_row({fmt::format("  and a sequence of {}", seq_len), bytes(memory.peak_bytes),
                 each(static_cast<double>(memory.peak_bytes))});
  table.add_row({"  every layer recomputed", bytes(memory.recomputed_peak_bytes),
                 each(static_cast<double>(memory.recomputed_peak_bytes))});
  return table.render(out);
}

constexpr std::string_view kSource = "_source";

std::filesystem::path models_folder() {
  return profiles::data_dir() / "models";
}

std::string_view name_of(Activation activation) {
  static constexpr std::array<std::string_view, 4> kNames = {"silu", "gelu", "gelu-tanh", "relu"};
  static_assert(kNames.size() == static_cast<std::size_t>(Activation::kRelu) + 1);
  return name_in(kNames, activation);
}

std::string_view name_of(Position position) {
  static constexpr std::array<std::string_view, 3> kNames = {"rope", "learned", "alibi"};
  static_assert(kNames.size() == static_cast<std::size_t>(Position::kAlibi) + 1);
  return name_in(kNames, position);
}

std::string_view name_of(RopeScaling scaling) {
  static constexpr std::array<std::string_view, 5> kNames = {"none", "linear", "llama3", "yarn",
                                                             "longrope"};
  static_assert(kNames.size() == static_cast<std::size_t>(RopeScaling::kLongrope) + 1);
  return name_in(kNames, scaling);
}

std::string latent_words(const Model& m) {
  const LatentAttention& l = m.latent;
  const std::string query = l.q_rank > 0 ? fmt::format("queries of {} and ", l.q_rank) : "";
  return fmt::format(
      "{} heads of {}, {} of them rotated, with values of {}, from latent {}keys and values of {}",
      m.heads, m.head_dim, l.rope_dim, l.v_dim, query, l.kv_rank);
}

std::string attention_words(const Model& m) {
  if (m.latent.kv_rank > 0) return latent_words(m);
  std::string heads = fmt::format("{} query heads", m.heads);
  if (m.kv_heads == m.heads) {
    heads = fmt::format("{} heads of {}", m.heads, m.head_dim);
  } else {
    heads +=
        fmt::format(" that share {} of {}", counted(m.kv_heads, "key and value head"), m.head_dim);
  }
  if (m.fused_qkv) heads += " in one matrix";
  if (m.qk_norm) heads += ", normalised queries and keys";
  return heads;
}

std::string expert_words(const Model& m) {
  const Experts& e = m.experts;
  const std::string width = e.latent > 0 ? fmt::format(" at a width of {}", e.latent) : "";
  std::string words = fmt::format("{} of {} experts of {} ({}){} for each token", e.per_token,
                                  e.count, e.ffn, name_of(m.activation), width);
  if (e.shared_ffn > 0) words += fmt::format(" beside a shared one of {}", e.shared_ffn);
  const std::int64_t dense =
      m.kinds.empty() ? m.layers - m.expert_layers()
                      : std::count_if(m.kinds.begin(), m.kinds.end(),
                                      [](LayerKind k) { return k.channels == Channels::kMlp; });
  if (dense > 0) words += fmt::format(", a dense MLP of {} in {} layers", m.ffn, dense);
  return words;
}

std::string position_words(const Model& m) {
  if (m.position == Position::kAlibi) return "ALiBi positions";
  if (m.position == Position::kLearned) {
    return fmt::format("{} learned positions", m.max_positions);
  }
  std::string words = fmt::format("RoPE with theta {:g}", m.rope.theta);
  if (m.rope.scaling == RopeScaling::kYarn || m.rope.scaling == RopeScaling::kLongrope) {
    words += fmt::format(" stretched by {}", name_of(m.rope.scaling));
  } else if (m.rope.scaling != RopeScaling::kNone) {
    words += fmt::format(" scaled {}-fold ({})", m.rope.factor, name_of(m.rope.scaling));
  }
  if (m.rope.rotary_fraction < 1) {
    words += fmt::format(" on {:g} % of each head", 100 * m.rope.rotary_fraction);
  }
  return words + fmt::format(" up to {} positions", m.max_positions);
}

std::string bias_words(const Model& m) {
  std::vector<std::string_view> where;
  if (m.qkv_bias) where.push_back("queries, keys and values");
  if (m.attention_out_bias) where.push_back("the attention output");
  if (m.mlp_bias) where.push_back("the MLP");
  if (m.norm_bias) where.push_back("the norms");
  return where.empty() ? "no biases" : fmt::format("biases in {}", fmt::join(where, ", "));
}

std::int64_t layers_with(const Model& m, bool (*has)(LayerKind)) {
  return m.kinds.empty() ? m.layers : std::count_if(m.kinds.begin(), m.kinds.end(), has);
}

std::string recurrence_words(const Model& m) {
  const Recurrence& r = m.recurrence;
  std::string heads =
      fmt::format("{} heads of {} with keys of {}", r.value_heads, r.value_dim, r.key_dim);
  if (r.kind == RecurrenceKind::kMamba1)
    heads = fmt::format("{} channels with states of {}", r.value_dim, r.key_dim);
  if (r.kind == RecurrenceKind::kShortConvolution) heads = fmt::format("{} tokens", r.taps);
  return fmt::format("{} in {} of the layers, {}", name_of(r.kind),
                     layers_with(m, [](LayerKind kind) { return kind.recurs(); }), heads);
}

/// The architecture in one sentence.
std::string in_words(const Model& m) {
  std::vector<std::string> parts = {fmt::format("{} layers of {}", m.layers, m.hidden)};
  if (layers_with(m, [](LayerKind kind) { return kind.attends(); }) > 0)
    parts.push_back(attention_words(m));
  if (m.recurrence.value_heads > 0) parts.push_back(recurrence_words(m));
  if (m.is_moe()) {
    parts.push_back(expert_words(m));
  } else if (layers_with(m, [](LayerKind k) { return k.channels == Channels::kMlp; }) > 0) {
    parts.push_back(fmt::format("{} MLP of {} ({})", m.gated_mlp ? "gated" : "plain", m.ffn,
                                name_of(m.activation)));
  }
  const std::vector<std::string> rest = {
      fmt::format("{} {}s a layer", m.norms_per_layer,
                  m.norm == Normalization::kRmsNorm ? "RMSNorm" : "LayerNorm"),
      bias_words(m), position_words(m),
      fmt::format("vocabulary of {} with {} head", m.vocab,
                  m.tied_head ? "the embedding as its" : "its own")};
  parts.insert(parts.end(), rest.begin(), rest.end());
  if (m.parallel_residual) parts.emplace_back("attention and MLP in parallel");
  if (m.mtp_layers > 0) {
    parts.push_back(counted(m.mtp_layers, "module") + " of multi-token prediction");
  }
  if (m.sliding_window > 0) {
    parts.push_back(fmt::format("{} of {} tokens in {} of the layers",
                                m.chunked_attention ? "chunks" : "a sliding window",
                                m.sliding_window, m.windowed_layers));
  }
  if (m.attention_softcap > 0)
    parts.push_back(fmt::format("scores capped at {:g}", m.attention_softcap));
  if (m.logit_softcap > 0) parts.push_back(fmt::format("logits capped at {:g}", m.logit_softcap));
  return fmt::format("{}.", fmt::join(parts, "; "));
}

/// Key and value bytes of one token in all layers, in bf16.
std::int64_t kv_bytes_per_token(const Model& m) {
  const LatentAttention& l = m.latent;
  const std::int64_t of_layer = l.kv_rank > 0 ? l.kv_rank + l.rope_dim : 2 * m.kv_dim();
  if (m.kinds.empty()) return 2 * m.layers * of_layer;
  std::int64_t numbers = 0;
  for (const LayerKind kind : m.kinds) {
    if (!kind.attends()) continue;
    numbers += kind.form == 0 ? of_layer : 2 * model_of_layer(m, kind).kv_dim();
  }
  return 2 * numbers;
}

ordered_json to_json(const Experts& e, std::int64_t layers) {
  return {
      {"layers", layers}, {"count", e.count},           {"per_token", e.per_token},
      {"ffn", e.ffn},     {"shared_ffn", e.shared_ffn}, {"first_layer", e.first_layer},
      {"every", e.every}, {"groups", e.groups},         {"groups_per_token", e.groups_per_token}};
}

ordered_json to_json(const LatentAttention& l) {
  return {{"kv_rank", l.kv_rank},
          {"q_rank", l.q_rank},
          {"nope_dim", l.nope_dim},
          {"rope_dim", l.rope_dim},
          {"v_dim", l.v_dim}};
}

ordered_json to_json(const Model& m) {
  const ordered_json none;
  return {{"family", m.family},
          {"layers", m.layers},
          {"hidden", m.hidden},
          {"heads", m.heads},
          {"kv_heads", m.kv_heads},
          {"head_dim", m.head_dim},
          {"ffn", m.ffn},
          {"vocab", m.vocab},
          {"max_positions", m.max_positions},
          {"sliding_window", m.sliding_window},
          {"windowed_layers", m.windowed_layers},
          {"chunked_attention", m.chunked_attention},
          {"experts", m.is_moe() ? to_json(m.experts, m.expert_layers()) : none},
          {"latent_attention", m.latent.kv_rank > 0 ? to_json(m.latent) : none},
          {"mtp_layers", m.mtp_layers},
          {"gated_mlp", m.gated_mlp},
          {"activation", name_of(m.activation)},
          {"norm", m.norm == Normalization::kRmsNorm ? "rmsnorm" : "layernorm"},
          {"norms_per_layer", m.norms_per_layer},
          {"norm_eps", m.norm_eps},
          {"norm_bias", m.norm_bias},
          {"qkv_bias", m.qkv_bias},
          {"attention_out_bias", m.attention_out_bias},
          {"mlp_bias", m.mlp_bias},
          {"qk_norm", m.qk_norm},
          {"fused_qkv", m.fused_qkv},
          {"fused_gate_up", m.fused_gate_up},
          {"parallel_residual", m.parallel_residual},
          {"tied_head", m.tied_head},
          {"position", name_of(m.position)},
          {"rope_theta", m.rope.theta},
          {"rope_scaling", name_of(m.rope.scaling)},
          {"rope_factor", m.rope.factor},
          {"rotary_fraction", m.rope.rotary_fraction},
          {"attention_scale", m.attention_scale},
          {"attention_softcap", m.attention_softcap},
          {"logit_softcap", m.logit_softcap},
          {"embedding_scale", m.embedding_scale},
          {"initial_deviation", m.initial_deviation},
          {"dropout", m.dropout},
          {"ignored_keys", m.ignored_keys}};
}

ordered_json to_json(const std::optional<TrainingMemory>& memory) {
  if (!memory) return nullptr;
  return {{"rule_of_thumb_bytes", memory->rule_of_thumb_bytes},
          {"state_bytes", memory->state_bytes},
          {"peak_bytes", memory->peak_bytes},
          {"recomputed_peak_bytes", memory->recomputed_peak_bytes}};
}

std::int64_t all_layers(const ParameterCounts& counts, std::int64_t layers) {
  return counts.total(layers) - counts.embedding - counts.positions - counts.final_norm -
         counts.head;
}

ordered_json to_json(const ParameterCounts& counts, std::int64_t layers) {
  return {{"total", counts.total(layers)},
          {"active", counts.active(layers)},
          {"embedding", counts.embedding},
          {"positions", counts.positions},
          {"layer", counts.layer()},
          {"layer_matrices", counts.layer_matrices},
          {"layer_biases", counts.layer_biases},
          {"layer_norms", counts.layer_norms},
          {"layers", all_layers(counts, layers)},
          {"expert_layers", counts.expert_layers},
          {"expert_layer", counts.expert_layers > 0 ? counts.expert_layer() : 0},
          {"expert", counts.expert},
          {"shared_experts", counts.shared_experts},
          {"router", counts.router},
          {"mtp", counts.mtp},
          {"final_norm", counts.final_norm},
          {"head", counts.head}};
}

/// "Mamba-2 and MLP".
std::string halves_of(LayerKind kind, const Model& m) {
  std::string words;
  if (kind.attends()) words = "attention";
  if (kind.form > 0) {
    const LayerForm& form = m.forms[kind.form - std::size_t{1}];
    words = fmt::format("{} attention of {} heads of {}", form.windowed ? "windowed" : "full",
                        form.heads, form.head_dim);
  }
  if (kind.mixer == Mixer::kParallel) words += " beside ";
  if (kind.recurs()) words += name_of(m.recurrence.kind);
  const bool both = !words.empty() && kind.channels != Channels::kNone;
  if (both) words += " and ";
  if (kind.channels == Channels::kMlp) words += "MLP";
  if (kind.channels == Channels::kExperts) words += "experts";
  return words;
}

std::string parameter_table(const Model& m, const ParameterCounts& counts, const Terminal& out) {
  const std::int64_t total = counts.total(m.layers);
  Table table({"where", "parameters", right("share")});
  const auto row = [&](const std::string& where, std::int64_t parameters) {
    if (parameters == 0) return;
    table.add_row({where, thousands(parameters),
                   fmt::format("{:.2f} %", 100.0 * static_cast<double>(parameters) /
                                               static_cast<double>(total))});
  };
  row("embedding", counts.embedding);
  row("positions", counts.positions);
  if (!m.kinds.empty()) {
    for (const LayerKind kind : kinds_of(m)) {
      std::int64_t parameters = kind.channels == Channels::kExperts ? counts.experts : 0;
      for (const WeightShape& weight : weights_of(m, kind)) parameters += weight.elements();
      row(fmt::format("each of {} layers ({})", std::count(m.kinds.begin(), m.kinds.end(), kind),
                      halves_of(kind, m)),
          parameters);
    }
  } else if (counts.expert_layers < m.layers) {
    row(counts.expert_layers > 0 ? "a dense layer" : "a layer", counts.layer());
    row("  matrices", counts.layer_matrices);
    row("  biases", counts.layer_biases);
    row("  norms", counts.layer_norms);
  }
  if (m.kinds.empty() && counts.expert_layers > 0) {
    row("a layer with experts", counts.expert_layer());
    row("  router", counts.router);
    row("  shared experts", counts.shared_experts);
    row("  routed experts", counts.experts);
    row("  one of them", counts.expert);
  }
  row(fmt::format("all {} layers", m.layers), all_layers(counts, m.layers));
  row("final norm", counts.final_norm);
  row("head", counts.head);
  table.add_rule();
  row("total", total);
  if (m.is_moe()) row("active", counts.active(m.layers));
  row("multi-token prediction beside it", counts.mtp);
  return table.render(out);
}

std::string per_token_table(const Model& m, std::int64_t seq_len, std::int64_t total,
                            const Terminal& out) {
  const ForwardFlops flops = forward_flops_per_token(m, seq_len);
  Table table({"per token", "", ""});
  table.add_row({"forward products", quantity(flops.matrices, "flop"),
                 "2 per weight of a matrix that a token meets"});
  table.add_row({"forward attention", quantity(flops.attention, "flop"),
                 fmt::format("causal, in a sequence of {}", seq_len)});
  table.add_row({"training", quantity(3 * flops.total(), "flop"), "three times forward"});
  table.add_row({"keys and values", bytes(kv_bytes_per_token(m)), "bf16, all layers"});
  table.add_rule();
  table.add_row({"weights in bf16", bytes(2 * total), ""});
  table.add_row({"weights in fp32", bytes(4 * total), ""});
  return table.render(out);
}

}  // namespace

std::string inspect_model(const std::string& name, std::optional<std::int64_t> asked_seq_len,
                          Form form, const Terminal& out) {
  const ModelFile file = find_model(models_folder(), name);
  const Model model = load_model(models_folder(), name);
  const std::int64_t seq_len = asked_seq_len.value_or(usual_seq_len(model, false));
  const ParameterCounts counts = count_parameters(model);
  const std::int64_t total = counts.total(model.layers);
  const std::optional<TrainingMemory> memory = training_memory(model, seq_len);
  const std::string source =
      load_model_config(file.path).root().optional<std::string>(kSource, file.path.string());
  if (form == Form::kJson) {
    const ForwardFlops flops = forward_flops_per_token(model, seq_len);
    return json_text({{"schema", "shardwright.inspection/1.0"},
                      {"kind", "model"},
                      {"name", model.name},
                      {"source", source},
                      {"model", to_json(model)},
                      {"parameters", to_json(counts, model.layers)},
                      {"flops_per_token",
                       {{"seq_len", seq_len},
                        {"forward_matrices", flops.matrices},
                        {"forward_attention", flops.attention},
                        {"training", 3 * flops.total()}}},
                      {"kv_bytes_per_token", kv_bytes_per_token(model)},
                      {"training_memory", to_json(memory)}}) +
           "\n";
  }
  const auto apart = [&](const std::string& text) { return paragraph(text, out) + "\n"; };
  std::string notes;
  for (const std::string& note : model_notes(model, 0)) notes += apart("Note: " + note + ".");
  return fmt::format("{} ({}, {} parameters)\n",
                     paint(out, Style::kBold, printable(model.name, out.utf8)), model.family,
                     thousands(total)) +
         apart(in_words(model)) + parameter_table(model, counts, out) + "\n" +
         per_token_table(model, seq_len, total, out) + "\n" +
         (memory ? training_memory_table(*memory, seq_len, total, out) + "\n" : "") + notes +
         apart("Source: " + source);
}

std::string list_models(Form form, const Terminal& out) {
  Table table({"model", "family", "parameters", "layers", "hidden", "heads", "vocabulary"});
  ordered_json list = ordered_json::array();
  for (const std::string& name : builtin_models(models_folder())) {
    const Model m = load_model(models_folder(), name);
    const std::int64_t total = count_parameters(m).total(m.layers);
    list.push_back({{"id", name},
                    {"family", m.family},
                    {"parameters", total},
                    {"layers", m.layers},
                    {"hidden", m.hidden},
                    {"heads", m.heads},
                    {"kv_heads", m.kv_heads},
                    {"vocab", m.vocab}});
    table.add_row({name, m.family, thousands(total), m.layers, m.hidden,
                   fmt::format("{}/{}", m.heads, m.kv_heads), m.vocab});
  }
  if (form == Form::kText) return table.render(out);
  return json_text({{"schema", "shardwright.list/1.0"}, {"models", std::move(list)}}) + "\n";
}

}  // namespace shardwright::cli
