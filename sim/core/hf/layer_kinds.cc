// SPDX-License-Identifier: Apache-2.0
#include "sim/core/hf/layer_kinds.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/hf/keys.h"

namespace shardwright::hf {

namespace {

/// What a config calls a kind of layer.
struct LayerName {
  std::string_view name;
  Mixer mixer = Mixer::kAttention;
  std::optional<Channels> channels = {};  // none: the name does not say
  std::uint8_t form = 0;
};
using LayerNames = std::vector<LayerName>;

constexpr std::uint8_t kWindowedForm = 1, kFullForm = 2;

const LayerNames kLinearNames = {{"linear_attention", Mixer::kRecurrence}, {"full_attention"}},
                 kConvolutionNames = {{"conv", Mixer::kRecurrence}, {"full_attention"}},
                 // Of files before Transformers 5, and since.
    kMambaNames = {{"mamba", Mixer::kRecurrence},
                   {"attention"},
                   {"linear_attention", Mixer::kRecurrence},
                   {"full_attention"}},
                 kWindowNames = {{"sliding_attention", Mixer::kAttention, {}, kWindowedForm},
                                 {"full_attention", Mixer::kAttention, {}, kFullForm}};

/// Kinds by the list under `key`, one name a layer; what names do not say, or all where there is no
/// list, as `otherwise` says. Throws Error naming the entry, or the key where the list is not as
/// long as the model.
void set_kinds(const JsonReader& config, Model& m, const LayerNames& names,
               const std::function<LayerKind(std::int64_t layer)>& otherwise,
               std::string_view key = "layer_types") {
  const auto types = config.find_array(key);
  if (types && static_cast<std::int64_t>(types->size()) != m.layers)
    config.fail(key, fmt::format("a type for each of the {} layers", m.layers));
  m.kinds.clear();
  for (std::int64_t layer = 0; layer < m.layers; ++layer) {
    m.kinds.push_back(otherwise(layer));
    if (!types) continue;
    const JsonReader& type = (*types)[static_cast<std::size_t>(layer)];
    const std::string given = type.value<std::string>();
    const auto named = std::find_if(names.begin(), names.end(),
                                    [&](const LayerName& each) { return each.name == given; });
    if (named == names.end()) {
      std::vector<std::string_view> known;
      for (const LayerName& each : names) known.push_back(each.name);
      type.fail(fmt::format("{}", fmt::join(known, " or ")));
    }
    LayerKind& kind = m.kinds.back();
    kind = {named->mixer, named->channels.value_or(kind.channels), named->form};
  }
}

/// Leading layers have an MLP, and the others experts, where the model has any.
LayerKind kind_of(const Model& m, bool attends, std::int64_t layer, std::int64_t dense) {
  return {attends ? Mixer::kAttention : Mixer::kRecurrence,
          !m.is_moe() || layer < dense ? Channels::kMlp : Channels::kExperts};
}

/// The same of layers that attend or recur.
void set_mixers(const JsonReader& config, Model& m, const LayerNames& names,
                const std::function<bool(std::int64_t layer)>& attends, std::int64_t dense = 0) {
  set_kinds(config, m, names,
            [&](std::int64_t layer) { return kind_of(m, attends(layer), layer, dense); });
}

constexpr auto kNone = [](std::int64_t) { return false; };

bool lists(const std::vector<JsonReader>& layers, std::int64_t layer) {
  return std::any_of(layers.begin(), layers.end(),
                     [&](const JsonReader& each) { return each.value<std::int64_t>() == layer; });
}

/// The layers of 1 to n that linear_attn_config lists, as Moonshot's files do.
void set_listed_kinds(const JsonReader& linear, Model& m, std::int64_t dense) {
  std::vector<bool> listed(static_cast<std::size_t>(m.layers));
  for (std::int64_t layer = 0; layer < m.layers; ++layer)
    m.kinds.push_back(kind_of(m, false, layer, dense));
  const auto read = [&](std::string_view key, Mixer mixer) {
    for (const JsonReader& each : linear.require_array(key)) {
      const auto layer =
          static_cast<std::size_t>(each.value<std::int64_t>(between<std::int64_t>(1, m.layers))) -
          1;
      if (listed[layer]) each.fail("a layer that is listed once");
      listed[layer] = true;
      m.kinds[layer].mixer = mixer;
    }
  };
  read("full_attn_layers", Mixer::kAttention);
  read("kda_layers", Mixer::kRecurrence);
  const auto missing = std::find(listed.begin(), listed.end(), false);
  if (missing != listed.end()) {
    linear.fail("kda_layers", fmt::format("layer {}, which no list has",
                                          std::distance(listed.begin(), missing) + 1));
  }
}

/// Queries, keys and values alike.
void set_recurrence(Model& m, RecurrenceKind kind, std::int64_t heads, std::int64_t head_dim,
                    std::int64_t taps, std::int64_t chunk) {
  m.recurrence = {kind, heads, head_dim, heads, head_dim, taps, chunk};
}

// Layers whose attention differs in heads and windows.

/// Layers that see all, and others with a window.
void set_windows(const JsonReader& config, Model& m, std::int64_t dense,
                 const std::function<bool(std::int64_t layer)>& full) {
  set_kinds(config, m, kWindowNames, [&](std::int64_t layer) {
    LayerKind kind = kind_of(m, true, layer, dense);
    kind.form = full(layer) ? kFullForm : kWindowedForm;
    return kind;
  });
}

/// A form of attention for each number of heads that layers have, with the window or without.
void set_forms_by_heads(const JsonReader& config, Model& m,
                        const std::vector<std::int64_t>& heads) {
  for (std::size_t layer = 0; layer < m.kinds.size(); ++layer) {
    LayerForm form = {heads[layer], m.kv_heads, m.head_dim, m.kinds[layer].form == kWindowedForm,
                      false};
    if (form.heads % form.kv_heads != 0)
      config.fail("num_attention_heads_per_layer",
                  fmt::format("multiples of the {} key and value heads", m.kv_heads));
    auto at = std::find(m.forms.begin(), m.forms.end(), form);
    if (at == m.forms.end()) at = m.forms.insert(at, form);
    if (m.forms.size() >= kMostForms) {
      config.fail("num_attention_heads_per_layer",
                  "one number for layers with a window and one for those without");
    }
    m.windowed_layers += form.windowed ? 1 : 0;
    m.kinds[layer].form = static_cast<std::uint8_t>(at - m.forms.begin() + 1);
  }
}

/// What per_layer_config of Transformers 5 says of all full layers alike, or nothing.
std::optional<JsonReader> full_layers(const JsonReader& config, const Model& m) {
  const auto by_layer = config.find_object("per_layer_config");
  if (!by_layer) return std::nullopt;
  const std::size_t digits = fmt::format("{}", m.layers - 1).size();
  std::optional<JsonReader> first;
  for (std::int64_t layer = 0; layer < m.layers; ++layer) {
    const std::string key = fmt::format("{:0{}}", layer, digits);
    const bool listed = by_layer->has(key);
    if (listed != (m.kind(layer).form == kFullForm))
      config.fail("per_layer_config", "sizes of the layers with full attention");
    if (!listed) continue;
    const JsonReader sizes = by_layer->require_object(key);
    if (first && sizes.raw() != first->raw())
      by_layer->fail(key, "the sizes of the other layers with full attention");
    first = sizes;
  }
  return first;
}

void set_gemma_forms(const JsonReader& config, Model& m) {
  LayerForm windowed = {m.heads, m.kv_heads, m.head_dim, true, false}, full = windowed;
  const bool one_product = config.optional<bool>("attention_k_eq_v", false);
  full.windowed = false;
  full.values_are_keys = one_product;
  const auto sizes = full_layers(config, m);
  const JsonReader& source = sizes ? *sizes : config;
  const std::string_view heads_key = sizes ? "num_key_value_heads" : "num_global_key_value_heads";
  full.head_dim =
      size_or(source, sizes ? "head_dim" : "global_head_dim", sizes ? m.head_dim : 512, kHeadDim);
  // Only with one product for both does the number of key heads count.
  if (sizes || one_product) {
    full.kv_heads = size_or(source, heads_key, m.kv_heads, kHeads);
  } else {
    pass_over(config, {heads_key});
  }
  if (full.heads % full.kv_heads != 0)
    source.fail(heads_key, fmt::format("a divisor of the {} num_attention_heads", full.heads));
  m.forms = {windowed, full};
}

}  // namespace

/// Trinity: every fourth layer sees all.
void forms_of_afmoe(const JsonReader& config, Model& m) {
  const std::int64_t dense = count_or(config, "num_dense_layers", 1, m.layers - 1);
  const std::int64_t every = size_or(config, "global_attn_every_n_layers", 4, kLayers);
  set_windows(config, m, dense, [=](auto layer) { return (layer + 1) % every == 0; });
  set_forms_by_heads(config, m, std::vector<std::int64_t>(m.kinds.size(), m.heads));
}

/// Layers may differ in how many heads they have.
void forms_of_laguna(const JsonReader& config, Model& m) {
  constexpr std::string_view kKey = "num_attention_heads_per_layer";
  set_windows(config, m, leading_dense_layers(config, 1), [](auto) { return true; });
  std::vector<std::int64_t> heads(m.kinds.size(), m.heads);
  if (const auto given = config.find_array(kKey)) {
    if (given->size() != heads.size())
      config.fail(kKey, fmt::format("a number for each of the {} layers", m.layers));
    std::transform(given->begin(), given->end(), heads.begin(), [](const JsonReader& each) {
      return each.value<std::int64_t>(between<std::int64_t>(1, kHeads));
    });
  }
  set_forms_by_heads(config, m, heads);
}

/// Layers with experts have the MLP beside them: it counts as a shared expert, and the scale of the
/// router's input as one of the norms. Embeddings for each layer and layers that share keys and
/// values (E2B, E4B) are refused.
void forms_of_gemma4(const JsonReader& config, Model& m) {
  if (config.optional<bool>("enable_moe_block", false)) {
    routing("num_experts", "top_k_experts")(config, m);
    expert_width(config, m);
    m.experts.shared_ffn = m.ffn;
    m.experts.router_bias = true;  // per_expert_scale
    m.norms_per_layer = 8;         // three more, and the router's scale
  } else {
    pass_over(config, {"num_experts", "top_k_experts", "moe_intermediate_size"});
  }
  // Every sixth layer sees all, and the last one.
  set_windows(config, m, 0, [](auto layer) { return (layer + 1) % 6 == 0; });
  m.kinds.back().form = kFullForm;
  set_gemma_forms(config, m);
  m.windowed_layers = std::count_if(m.kinds.begin(), m.kinds.end(),
                                    [](LayerKind kind) { return kind.form == kWindowedForm; });
}

// Delta rules, lightning attention and short convolutions.

Step attends_every(std::string_view key, std::int64_t usual) {
  return [key, usual](const JsonReader& config, Model& m) {
    const std::int64_t every = key.empty() ? usual : size_or(config, key, usual, kLayers);
    set_mixers(config, m, kLinearNames, [=](auto layer) { return (layer + 1) % every == 0; });
  };
}

Step gated_delta(const Recurrence& usual) {
  return [usual](const JsonReader& config, Model& m) {
    Recurrence& r = m.recurrence;
    r.kind = RecurrenceKind::kGatedDelta;
    r.key_heads = size_or(config, "linear_num_key_heads", usual.key_heads, kHeads);
    r.value_heads = size_or(config, "linear_num_value_heads", usual.value_heads, kHeads);
    if (r.value_heads % r.key_heads != 0) {
      config.fail("linear_num_key_heads",
                  fmt::format("a divisor of the {} value heads", r.value_heads));
    }
    r.key_dim = size_or(config, "linear_key_head_dim", usual.key_dim, kHeadDim);
    r.value_dim = size_or(config, "linear_value_head_dim",
                          usual.value_dim > 0 ? usual.value_dim : 2 * r.key_dim, kHeadDim);
    r.taps = size_or(config, "linear_conv_kernel_dim", 4, 64);
    r.chunk = 64;
  };
}

void gated_delta_of_olmo(const JsonReader& config, Model& m) {
  const std::int64_t key_heads = size_or(config, "linear_num_key_heads", m.heads, kHeads);
  gated_delta(
      {.value_heads = m.heads, .key_heads = m.heads, .key_dim = 3 * m.hidden / (4 * key_heads)})(
      config, m);
}

void kimi_delta(const JsonReader& config, Model& m) {
  const std::int64_t dense = leading_dense_layers(config, 1);
  const auto linear = config.find_object("linear_attn_config");
  const auto head = [&](std::string_view inside, std::string_view outside, std::int64_t usual,
                        std::int64_t most) {
    return size_or(linear ? *linear : config, linear ? inside : outside, usual, most);
  };
  const std::int64_t heads = head("num_heads", "linear_num_heads", 32, kHeads);
  const std::int64_t head_dim = head("head_dim", "linear_head_dim", 128, kHeadDim);
  const std::int64_t taps = head("short_conv_kernel_size", "linear_conv_kernel_dim", 4, 64);
  set_recurrence(m, RecurrenceKind::kKimiDelta, heads, head_dim, taps, 64);
  const bool full_rank = linear && linear->optional<bool>("use_full_rank_gate", false);
  if (!full_rank) m.recurrence.rank = m.recurrence.key_dim;
  if (linear && linear->has("full_attn_layers")) return set_listed_kinds(*linear, m, dense);
  set_mixers(
      config, m, kLinearNames, [](auto layer) { return layer > 0 && layer % 4 == 0; }, dense);
}

void kimi_delta_of_ling(const JsonReader& config, Model& m) {
  const std::int64_t heads = size_or(config, "linear_num_heads", m.heads, kHeads);
  // Transformers 5 calls head_dim what RoPE turns.
  const std::int64_t head_dim = size_or(config, "linear_head_dim|head_dim", 128, kHeadDim);
  const std::int64_t taps = size_or(config, "linear_conv_kernel_dim|short_conv_kernel_size", 4, 64);
  set_recurrence(m, RecurrenceKind::kKimiDelta, heads, head_dim, taps, 64);
  const std::int64_t dense = leading_dense_layers(config, 2);
  const std::int64_t group = size_or(config, "layer_group_size", 6, kLayers);
  set_mixers(
      config, m, kLinearNames, [=](auto layer) { return (layer + 1) % group == 0; }, dense);
}

void lightning_of_minimax(const JsonReader& config, Model& m) {
  const std::int64_t chunk = size_or(config, "block_size", 256, 1 << 14);
  set_recurrence(m, RecurrenceKind::kLightning, m.heads, m.head_dim, 0, chunk);
}

void every_second_attends(const JsonReader& config, Model& m) {
  set_mixers(config, m, kLinearNames, [](auto layer) { return layer % 2 == 0; });
}

/// attn_type_list: 1 for layers that attend.
void listed_types_attend(const JsonReader& config, Model& m) {
  const std::vector<JsonReader> types = config.require_array("attn_type_list");
  if (static_cast<std::int64_t>(types.size()) != m.layers)
    config.fail("attn_type_list", fmt::format("a type for each of the {} layers", m.layers));
  for (const JsonReader& type : types) {
    const bool attends = type.value<std::int64_t>(between<std::int64_t>(0, 1)) == 1;
    m.kinds.push_back(kind_of(m, attends, 0, 0));
  }
}

/// Ling and Ring 2.0 linear: the last layer of each group attends.
void lightning_of_ling(const JsonReader& config, Model& m) {
  set_recurrence(m, RecurrenceKind::kLightning, m.heads, m.head_dim, 0, 256);
  m.recurrence.inner_norms = m.qk_norm;
  const std::int64_t dense = leading_dense_layers(config, 1);
  const std::int64_t group = size_or(config, "layer_group_size", 5, kLayers);
  for (std::int64_t layer = 0; layer < m.layers; ++layer) {
    // Layers that are left over after the last whole group attend, too.
    const bool attends = (layer + 1) % group == 0 || layer >= m.layers / group * group;
    m.kinds.push_back(kind_of(m, attends, layer, dense));
  }
}

void short_convolutions(const JsonReader& config, Model& m) {
  // Sizes said twice, and how blocks begin.
  pass_over(config, {"block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale",
                     "block_use_swiglu", "block_use_xavier_init", "conv_dim", "conv_dim_out",
                     "conv_use_xavier_init", "num_heads", "theta", "use_pos_enc"});
  m.tied_head = config.optional<bool>("tie_embedding", m.tied_head);
  Recurrence& r = m.recurrence;
  r.kind = RecurrenceKind::kShortConvolution;
  r.value_heads = r.key_heads = r.key_dim = 1;
  r.value_dim = m.hidden;
  r.taps = size_or(config, "conv_L_cache", 3, 64);
  r.norm = false;
  r.bias = r.convolution_bias = config.optional<bool>("conv_bias", false);
}

void layers_of_lfm2(const JsonReader& config, Model& m) {
  if (config.optional<bool>("block_auto_adjust_ff_dim", true)) {
    const double factor = config.optional<double>("block_ffn_dim_multiplier", 1.0, above(0.0));
    const std::int64_t unit = size_or(config, "block_multiple_of", 256, kFfn);
    const auto ffn = static_cast<std::int64_t>(
        std::floor(factor * std::floor(2 * static_cast<double>(m.ffn) / 3)));
    m.ffn = (ffn + unit - 1) / unit * unit;
  }
  const auto attending = config.find_array("full_attn_idxs");
  set_mixers(config, m, kConvolutionNames,
             [&](auto layer) { return !attending || lists(*attending, layer); });
}

void layers_of_lfm2_moe(const JsonReader& config, Model& m) {
  if (!config.has("layer_types"))
    config.fail("layer_types", "conv or full_attention for each layer");
  routing()(config, m);
  expert_width(config, m);
  const std::int64_t dense = count_or(config, "num_dense_layers", 2, m.layers - 1);
  set_mixers(config, m, kConvolutionNames, kNone, dense);
}

// Mamba and Mamba-2.

namespace {

std::optional<std::int64_t> size_unless_auto(const JsonReader& config, std::string_view key,
                                             std::int64_t most) {
  pass_over(config, {key});
  const bool given = present(config, key) && config.raw()[std::string(key)].is_number_integer();
  return given ? std::optional(size(config, key, most)) : std::nullopt;
}

/// The keys of Mamba layers as a family calls them.
struct MambaKeys {
  std::string_view state, taps, expand, rank, convolution_bias, bias;
};

void set_mamba(const JsonReader& config, Model& m, const MambaKeys& keys) {
  Recurrence& r = m.recurrence;
  r.kind = RecurrenceKind::kMamba1;
  r.value_heads = r.key_heads = 1;
  r.value_dim = m.hidden * size_or(config, keys.expand, 2, 64);
  r.key_dim = size_or(config, keys.state, 16, kHeadDim);
  r.taps = size_or(config, keys.taps, 4, 64);
  r.rank = size_unless_auto(config, keys.rank, kHidden).value_or((m.hidden + 15) / 16);
  r.norm = false;
  r.convolution_bias = config.optional<bool>(keys.convolution_bias, true);
  r.bias = config.optional<bool>(keys.bias, false);
}

/// The keys of Mamba-2 layers as a family calls them.
struct Mamba2Keys {
  std::string_view heads, head_dim, groups, state, taps, chunk, convolution_bias, bias;
};
constexpr auto kMamba2Keys = Mamba2Keys{"num_heads",   "head_dim",   "n_groups",      "state_size",
                                        "conv_kernel", "chunk_size", "use_conv_bias", "use_bias"};
constexpr auto kNemotronKeys =
    Mamba2Keys{"mamba_num_heads", "mamba_head_dim", "n_groups",      "ssm_state_size",
               "conv_kernel",     "chunk_size",     "use_conv_bias", "mamba_proj_bias"};
/// As bamba, granitemoehybrid and falcon_h1 call them.
constexpr auto kHybridKeys =
    Mamba2Keys{"mamba_n_heads", "mamba_d_head",     "mamba_n_groups",  "mamba_d_state",
               "mamba_d_conv",  "mamba_chunk_size", "mamba_conv_bias", "mamba_proj_bias"};

/// `width`: of the layer where the file does not say head_dim; 0: expand times the model's.
void set_mamba2(const JsonReader& config, Model& m, const Mamba2Keys& keys,
                std::int64_t usual_groups, std::int64_t usual_state, std::int64_t width = 0) {
  Recurrence& r = m.recurrence;
  r.kind = RecurrenceKind::kMamba2;
  r.value_heads = size_or(config, keys.heads, 128, kHeads);
  const std::int64_t expand = size_or(config, "mamba_expand|expand", 2, kHeadDim);
  if (width == 0) width = expand * m.hidden;
  // "auto": what makes the layer as wide as that.
  const auto head_dim = size_unless_auto(config, keys.head_dim, kHeadDim);
  if (!head_dim && width % r.value_heads != 0)
    config.fail(keys.heads, fmt::format("a divisor of {}", width));
  r.value_dim = head_dim.value_or(width / r.value_heads);
  r.key_heads = size_or(config, keys.groups, usual_groups, kHeads);
  if (r.value_heads % r.key_heads != 0)
    config.fail(keys.groups, fmt::format("a divisor of the {} heads", r.value_heads));
  r.key_dim = size_or(config, keys.state, usual_state, kHeadDim);
  r.taps = size_or(config, keys.taps, 4, 64);
  r.chunk = size_or(config, keys.chunk, 256, 1 << 14);
  r.convolution_bias = config.optional<bool>(keys.convolution_bias, true);
  r.bias = config.optional<bool>(keys.bias, false);
}

/// No layer has heads or an MLP, which have sizes all the same.
void set_recurrent_only(Model& m, std::int64_t heads, std::int64_t head_dim) {
  m.kinds.assign(static_cast<std::size_t>(m.layers), {Mixer::kRecurrence, Channels::kNone});
  m.heads = m.kv_heads = heads;
  m.head_dim = 2 * head_dim;
  m.ffn = m.recurrence.value_width();
}

constexpr std::string_view kPattern = "hybrid_override_pattern", kBlocks = "layers_block_type";

/// Each layer of nemotron_h is half of another's: letters of the pattern, and names.
constexpr std::string_view kLetters = "MM**-E";
const LayerNames kHalfNames = {{"mamba", Mixer::kRecurrence, Channels::kNone},
                               {"linear_attention", Mixer::kRecurrence, Channels::kNone},
                               {"attention", Mixer::kAttention, Channels::kNone},
                               {"full_attention", Mixer::kAttention, Channels::kNone},
                               {"mlp", Mixer::kNone, Channels::kMlp},
                               {"moe", Mixer::kNone, Channels::kExperts}};

void set_halves(const JsonReader& config, Model& m) {
  if (!config.has(kPattern))
    return set_kinds(
        config, m, kHalfNames, [](std::int64_t) { return LayerKind{}; }, kBlocks);
  const auto pattern = config.require<std::string>(kPattern);
  if (static_cast<std::int64_t>(pattern.size()) != m.layers)
    config.fail(kPattern, fmt::format("{} letters, one a layer", m.layers));
  for (const char letter : pattern) {
    const std::size_t at = kLetters.find(letter);
    if (at == kLetters.npos)
      config.fail(kPattern, "M, *, - and E, because others are not modelled");
    m.kinds.push_back({kHalfNames[at].mixer, *kHalfNames[at].channels});
  }
}

}  // namespace

void mamba_layers(const JsonReader& config, Model& m) {
  set_mamba(config, m,
            {"state_size", "conv_kernel", "expand", "time_step_rank", "use_conv_bias", "use_bias"});
  set_recurrent_only(m, 1, m.recurrence.key_dim);
  pass_over(config, {"intermediate_size"});  // of expand
}

void mamba2_layers(const JsonReader& config, Model& m) {
  set_mamba2(config, m, kMamba2Keys, 8, 128);
  set_recurrent_only(m, m.recurrence.value_heads, m.recurrence.value_dim);
  pass_over(config, {"time_step_rank"});  // of Mamba
}

void layers_of_bamba(const JsonReader& config, Model& m) {
  set_mamba2(config, m, kHybridKeys, 1, 256);
  const auto attending = config.find_array("attn_layer_indices");
  set_mixers(config, m, kMambaNames,
             [&](auto layer) { return attending && lists(*attending, layer); });
}

/// In every layer of falcon_h1.
void mamba2_beside_attention(const JsonReader& config, Model& m) {
  constexpr std::string_view kWidth = "mamba_d_ssm";
  // null: expand times the model's.
  const std::int64_t width = present(config, kWidth) && !config.has(kWidth)
                                 ? 0
                                 : size_or(config, kWidth, 1024, kProjection);
  set_mamba2(config, m, kHybridKeys, 1, 256, width);
  Recurrence& r = m.recurrence;
  if (width > 0 && r.value_width() != width) {
    config.fail(kWidth,
                fmt::format("{}, the {} heads of {}", r.value_width(), r.value_heads, r.value_dim));
  }
  r.norm = config.optional<bool>("mamba_rms_norm", false);
  m.kinds.assign(static_cast<std::size_t>(m.layers), {Mixer::kParallel, Channels::kMlp});
}

void layers_of_jamba(const JsonReader& config, Model& m) {
  const std::string_view count = key_of(config, "num_experts|num_local_experts");
  if (config.optional<std::int64_t>(count, 16) > 1) {  // one is an MLP
    routing(count)(config, m);
    experts_as_mlp(config, m);
  }
  set_mamba(config, m,
            {"mamba_d_state", "mamba_d_conv", "mamba_expand", "mamba_dt_rank", "mamba_conv_bias",
             "mamba_proj_bias"});
  m.recurrence.inner_norms = true;
  const auto every = [&](std::string_view period_key, std::string_view offset_key,
                         std::int64_t period, std::int64_t offset) {
    period = size_or(config, period_key, period, kLayers);
    offset = count_or(config, offset_key, offset, period - 1);
    return [period, offset](std::int64_t layer) { return layer % period == offset; };
  };
  const auto attends = every("attn_layer_period", "attn_layer_offset", 8, 4);
  const auto routes = every("expert_layer_period", "expert_layer_offset", 2, 1);
  for (std::int64_t layer = 0; layer < m.layers; ++layer)
    m.kinds.push_back(kind_of(m, attends(layer), 0, routes(layer) ? 0 : 1));
}

void layers_of_granite4(const JsonReader& config, Model& m) {
  const std::int64_t expert_ffn = m.ffn;
  m.ffn = size(config, "shared_intermediate_size", kFfn);
  if (config.optional<std::int64_t>("num_local_experts", 8) > 0) {
    routing("num_local_experts")(config, m);
    m.experts.ffn = expert_ffn;
    m.experts.shared_ffn = m.ffn;
    m.planning_only = "has experts";
  } else {
    pass_over(config, {"num_experts_per_tok"});
  }
  set_mixers(config, m, kMambaNames, kNone);
  // Files of models without these layers have their sizes all the same.
  pass_over(config,
            {"mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv",
             "mamba_chunk_size", "mamba_conv_bias", "mamba_proj_bias", "mamba_expand"});
  if (std::none_of(m.kinds.begin(), m.kinds.end(), [](LayerKind k) { return k.recurs(); })) {
    m.kinds.clear();
    return;
  }
  m.planning_only = "has Mamba-2 layers";
  set_mamba2(config, m, kHybridKeys, 1, 256);
}

void halves_of_nemotron(const JsonReader& config, Model& m) {
  if (config.has("attention_head_dim"))  // older files
    m.head_dim = size(config, "attention_head_dim", kHeadDim);
  set_mamba2(config, m, kNemotronKeys, 8, 128);
  set_halves(config, m);
  if (std::none_of(m.kinds.begin(), m.kinds.end(),
                   [](LayerKind kind) { return kind.channels == Channels::kExperts; }))
    return;
  routing("n_routed_experts")(config, m);
  expert_width(config, m);
  shared_width("moe_shared_expert_intermediate_size")(config, m);
  refuse(config, "n_shared_experts", 1);
  latent_experts("moe_latent_size")(config, m);
  groups()(config, m);
  mtp()(config, m);
  // A module holds attention and experts.
  if (m.mtp_layers > 0) only("mtp_hybrid_override_pattern", "*E")(config, m);
}

// Before sizes are read.

void positions_of_tokenizer(const JsonReader& config, Shape& shape) {
  shape.positions = size_or(config, "model_max_length", shape.positions, kPositions);
}

/// Ling 3. Its older files have other linear attention under the same name.
void taps_of_ling(const JsonReader& config, Shape& shape) {
  if (!config.has("short_conv_kernel_size") && !config.has("linear_conv_kernel_dim")) {
    config.fail("short_conv_kernel_size",
                "the taps of Kimi delta attention's convolution, because other linear attention "
                "of this family is not modelled");
  }
  positions_of_tokenizer(config, shape);
}

void number_of_blocks(const JsonReader& config, Shape& shape) {
  const auto blocks = config.find_array(kBlocks);
  if (!blocks && !config.has(kPattern))
    config.fail(kPattern, fmt::format("the kinds of all layers, there or in {}", kBlocks));
  if (blocks) shape.layers = static_cast<std::int64_t>(blocks->size());
}

}  // namespace shardwright::hf
