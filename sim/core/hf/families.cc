// SPDX-License-Identifier: Apache-2.0
#include "sim/core/hf/families.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/base/words.h"
#include "sim/core/hf/config.h"
#include "sim/core/hf/layer_kinds.h"
#include "sim/core/hf/rows.h"

namespace shardwright::hf {
namespace {

constexpr std::string_view kExpertKeys =
    "num_local_experts num_experts n_routed_experts moe_num_experts num_experts_per_tok";

/// Keys that only a family that knows them may have, unless they are 0, or 1 where that is said.
constexpr std::string_view kUnmodelledKeys =
    "is_encoder_decoder add_cross_attention is_causal=1 use_bidirectional_attention qk_layernorm "
    "use_qk_norm qk_norm clip_qkv alibi attention_chunk_size q_lora_rank kv_lora_rank "
    "num_kv_shared_layers num_nextn_predict_layers hidden_size_per_layer_input "
    "attention_multiplier residual_multiplier=1 embedding_multiplier=1 logits_scaling=1 "
    "logit_scale attn_logit_softcapping final_logit_softcapping query_pre_attn_scalar";

/// Of the keys that other families must not have, those that this one reads or that cost nothing.
struct Known {
  std::string_view keys;
};

struct Family {
  std::string_view type;  // model_type
  /// The class with a language-model head | the class that files name where it is another.
  std::string_view architecture;
  Shape shape;
  Known known = {};
  BeforeSizes* before = nullptr;
  std::vector<Step> steps = {};

  void add(const Keys& keys) { shape.keys = keys; }
  void add(const Windows& windows) { shape.windows = windows; }
  void add(Known keys) { known = keys; }
  void add(BeforeSizes* first) { before = first; }
  void add(const Step& step) { steps.push_back(step); }

  Model read(const JsonReader& config) const {
    Shape sizes = shape;
    if (before) before(config, sizes);
    Model m = read_shape(config, sizes);
    m.family = type;
    if (shape.experts) m.planning_only = "has experts";
    for (const Step& step : steps) step(config, m);
    return m;
  }
};

template <typename... Items>
Family row(std::string_view type, std::string_view architecture, const Shape& shape,
           const Items&... items) {
  Family family = {type, architecture, shape};
  (family.add(items), ...);
  return family;
}

constexpr Known
    kDeepseekKeys = {"q_lora_rank kv_lora_rank num_nextn_predict_layers"},
    kGemmaKeys = {"attn_logit_softcapping final_logit_softcapping query_pre_attn_scalar"},
    kGraniteKeys = {"attention_multiplier residual_multiplier embedding_multiplier logits_scaling"},
    kMtpKeys = {"num_nextn_predict_layers"},
    kGemma4Keys = {"final_logit_softcapping use_bidirectional_attention"};

// Why a family is planned only: mostly details that cost nothing.
constexpr std::string_view kMultiplies = "multiplies embeddings, scores and residuals",
                           kNoKernels = "is of a family that is planned only",
                           kOfPictures = "is the text part of a model for pictures",
                           kOneNorm = "has one norm of parallel residuals",
                           kNormsBehind =
                               "normalises what its blocks put out and queries and keys as a whole",
                           kSquaresRelu = "squares its ReLU",
                           kHasKimiDelta = "has Kimi delta attention",
                           kHasLightning = "has lightning attention",
                           kHasMamba = "has Mamba layers", kHasMamba2 = "has Mamba-2 layers";

using M = Model;
using E = Experts;

// What several rows have in common.

const Shape kGpt2 = {.positions = 1024,
                     .eps = 1e-5,
                     .activation = "gelu_new",
                     .tied = true,
                     .ffn_ratio = 4,
                     .rotary = 0,
                     .plain_heads = true,
                     .keys = {"n_embd", "n_inner", "n_layer", "n_head", "n_positions",
                              "activation_function", "layer_norm_epsilon"}};
const Shape kGemma4 = {.positions = 131072,
                       .activation = "gelu_pytorch_tanh",
                       .tied = true,
                       .head_dim = 256,
                       .layer_angles = true,
                       .mixes = true,
                       .experts = true};
const Shape kMinimax = {.positions = 131072, .eps = 1e-5, .mixes = true, .experts = true};
const Shape kGemma = {.positions = 8192, .activation = "gelu", .tied = true, .head_dim = 256};

Shape deepseek(std::int64_t positions) {
  return {.positions = positions, .latent = true, .experts = true};
}

Shape without_attention(bool tied) {
  return {.positions = 1 << 20, .eps = 1e-5, .tied = tied, .rotary = 0, .mixes = true};
}

constexpr Keys kRecurrentKeys = {
    .ffn = "", .heads = "", .positions = "", .activation = "", .eps = "layer_norm_epsilon"};
// Files before Transformers 5 call some keys after blocks.
constexpr Keys kLfm2Keys = {
    .ffn = "block_ff_dim|intermediate_size", .activation = "", .eps = "norm_eps"};

const std::vector<Trait> kBiases = {&M::qkv_bias, &M::attention_out_bias, &M::mlp_bias};
const Step kQkNorm = has({&M::qk_norm}), kWholeQkNorm = has({&M::qk_norm, &M::qk_norm_whole}),
           kQkvBias = flag("attention_bias", false, {&M::qkv_bias});
const Step kGpt2Steps =
    in_turn({sets(&M::position, Position::kLearned), sets(&M::gated_mlp, false),
             layer_norm("layer_norm_epsilon", true), has(kBiases), has({&M::fused_qkv}),
             refuses("scale_attn_weights", 1), refuses("scale_attn_by_inverse_layer_idx"),
             refuses("reorder_and_upcast_attn")});
const Step kGemmaSteps =
    in_turn({attention_bias(), gemma_activation, scale_embedding, refuses("mlp_bias")});
const Step kGemma4Steps = in_turn(
    {sets(&M::family, "gemma4_text"), planned("has other heads in full and windowed layers"),
     no_layer_inputs, passes_over({"vocab_size_per_layer_input", "use_double_wide_mlp"}),
     refuses("num_kv_shared_layers"),
     // Text attends causally all the same.
     only("use_bidirectional_attention", "vision"), attention_bias(),
     has({&M::qk_norm, &M::value_norm}), sets(&M::norms_per_layer, 4), scale_embedding,
     number(&M::logit_softcap, "final_logit_softcapping", 0.0, at_least(0.0)), window(512),
     forms_of_gemma4});
const Step kCohereSteps = in_turn({attention_bias(), layer_norm("layer_norm_eps", false),
                                   has({&M::parallel_residual}), sets(&M::norms_per_layer, 1)});
const Step kMinimaxSteps =
    in_turn({planned(kHasLightning), refuses("sliding_window"), routing("num_local_experts"),
             experts_as_mlp, refuses("shared_intermediate_size"), lightning_of_minimax});
const Step kQwenDelta = in_turn(
    {planned("has gated delta nets"), attention_bias(), has({&M::qk_norm, &M::attention_gate}),
     gated_delta({.value_heads = 32, .value_dim = 128, .key_heads = 16, .key_dim = 128}),
     attends_every("full_attention_interval", 4)});
const Step kLfm2Steps = in_turn({planned("has short convolutions"), kQkNorm, short_convolutions});

// Experts as those of Mixtral, Qwen, Moonshot and DeepSeek have keys and sizes.
const Step kMixtralExperts = in_turn({routing("num_local_experts"), experts_as_mlp});
const Step kWideExperts = in_turn({routing(), expert_width});
const Step kQwenExperts = in_turn({kWideExperts, shared_width()});
const Step kKimiExperts =
    in_turn({routing("n_routed_experts|num_experts|num_local_experts",
                     "num_experts_per_tok|num_experts_per_token"),
             expert_width, shared_experts("n_shared_experts|num_shared_experts", 1),
             groups("n_group|num_expert_group"), refuses("moe_layer_freq", 1)});
Step deepseek_experts(std::int64_t dense, std::string_view count_key = "n_routed_experts",
                      std::string_view shared_key = "n_shared_experts") {
  return in_turn({routing(count_key), expert_width, dense_layers(dense),
                  shared_experts(shared_key, 1), groups()});
}
const Step kDeepseekExperts =
    in_turn({routing("n_routed_experts"), expert_width, dense_layers(0),
             refuses("moe_layer_freq", 1), shared_experts("n_shared_experts", 0), groups()});

// Sorted by model_type.
const std::vector<Family> kFamilies = {
    row("afmoe", "AfmoeForCausalLM",
        {.positions = 16384, .eps = 1e-5, .head_dim = 128, .mixes = true, .experts = true},
        attention_bias(), has({&M::qk_norm, &M::attention_gate, &E::router_bias}),
        sets(&M::norms_per_layer, 4), scale_embedding_of_mup, kWideExperts,
        shared_experts("num_shared_experts", 2), window(1024), forms_of_afmoe),
    row("arcee", "ArceeForCausalLM", {.positions = 4096, .eps = 1e-5}, Keys{.activation = ""},
        planned(kSquaresRelu), squared_relu(), biases),
    row("bailing_hybrid", "BailingHybridForCausalLM",
        {.positions = 262144, .mixes = true, .latent = true, .experts = true}, kDeepseekKeys,
        taps_of_ling, planned(kHasKimiDelta), has({&M::head_gate}), kKimiExperts,
        mtp("num_mtp_layers|num_nextn_predict_layers"), kimi_delta_of_ling),
    row("bailing_moe_linear", "BailingMoeLinearV2ForCausalLM",
        {.positions = 131072, .mixes = true, .experts = true},
        Known{"use_qk_norm num_nextn_predict_layers"}, planned(kHasLightning), refuses("use_bias"),
        refuses("use_qkv_bias"), flag("use_qk_norm", true, {&M::qk_norm}), kKimiExperts, mtp(),
        lightning_of_ling),
    row("bamba", "BambaForCausalLM",
        {.positions = 262144, .eps = 1e-5, .rotary = 0.5, .mixes = true}, planned(kHasMamba2),
        biases, layers_of_bamba),
    row("cohere", "CohereForCausalLM", {.positions = 8192, .tied = true},
        Known{"logit_scale use_qk_norm"}, planned(kOneNorm), kCohereSteps,
        flag("use_qk_norm", false, {&M::qk_norm, &M::qk_norm_whole})),
    row("cohere2", "Cohere2ForCausalLM", {.positions = 8192, .tied = true}, kAllButFourth,
        Known{"logit_scale"}, planned(kOneNorm), kCohereSteps),
    row("cohere2_moe", "Cohere2MoeForCausalLM", {.positions = 8192, .tied = true, .experts = true},
        kAllButFourth, Known{"logit_scale"}, kCohereSteps, routing(), experts_as_mlp,
        dense_layers(0, "mlp_layer_types"), shared_experts("num_shared_experts", 0), mlp_of_prefix),
    row("cwm", "CwmForCausalLM", {.positions = 131072, .eps = 1e-5, .head_dim = 128},
        kAllBehindFourth),
    row("deepseek_v2", "DeepseekV2ForCausalLM", deepseek(4096), kDeepseekKeys, kDeepseekExperts),
    row("deepseek_v3", "DeepseekV3ForCausalLM", deepseek(4096), kDeepseekKeys, kDeepseekExperts,
        has({&E::router_bias}), mtp()),
    row("dots1", "Dots1ForCausalLM", {.experts = true}, attention_bias(), kQkNorm,
        deepseek_experts(0)),
    row("ernie4_5", "Ernie4_5ForCausalLM",
        {.positions = 131072, .eps = 1e-5, .tied = true, .head_dim = 128},
        flag("use_bias", false, kBiases)),
    row("ernie4_5_moe", "Ernie4_5_MoeForCausalLM",
        {.positions = 131072, .eps = 1e-5, .tied = true, .experts = true},
        flag("use_bias", false, kBiases), routing("moe_num_experts", "moe_k"), expert_width,
        experts_between_indices, shared_experts("moe_num_shared_experts", 2),
        has({&E::router_bias})),
    row("exaone4", "Exaone4ForCausalLM", {.eps = 1e-5}, kAllButFourth,
        planned("normalises what its blocks put out"), kQkNorm),
    row("exaone_moe", "ExaoneMoeForCausalLM", {.eps = 1e-5, .experts = true}, kAllButFourth,
        kMtpKeys, kQkNorm, deepseek_experts(1, "num_experts", "num_shared_experts"), mtp()),
    row("falcon", "FalconForCausalLM",
        {.eps = 1e-5,
         .activation = "gelu",
         .tied = true,
         .ffn_ratio = 4,
         .rotary = 0,
         .plain_heads = true,
         .mixes = true},
        Keys{.ffn = "ffn_hidden_size", .activation = "activation", .eps = "layer_norm_epsilon"},
        Known{"alibi"}, planned(kNoKernels), layer_norm("layer_norm_epsilon", true),
        has({&M::fused_qkv}), sets(&M::gated_mlp, false), flag("bias", false, kBiases),
        heads_of_falcon),
    row("falcon_h1", "FalconH1ForCausalLM", {.positions = 8192, .eps = 1e-5},
        Known{"embedding_multiplier"}, planned("has attention and Mamba-2 beside each other"),
        biases, mamba2_beside_attention, refuses("projectors_bias")),
    // Its norms of steps, B and C have no weights.
    row("falcon_mamba", "FalconMambaForCausalLM", without_attention(true), kRecurrentKeys,
        planned(kHasMamba), mamba_layers),
    row("flex_olmo", "FlexOlmoForCausalLM", {.positions = 4096, .experts = true}, attention_bias(),
        kWholeQkNorm, routing(), experts_as_mlp),
    row("flint", "FlintForCausalLM", {.positions = 262144, .head_dim = 128, .experts = true},
        kOfFlint, attention_bias(), has({&M::qk_norm, &M::attention_sinks}), kQwenExperts,
        sparse_layers),
    row("gemma", "GemmaForCausalLM", kGemma, kGemmaSteps),
    row("gemma2", "Gemma2ForCausalLM", kGemma, kOfGemma2, kGemmaKeys, kGemmaSteps,
        sets(&M::norms_per_layer, 4), softcaps(50, 30), scale_scores_of_gemma),
    row("gemma3_text", "Gemma3ForCausalLM",
        {.positions = 131072,
         .activation = "gelu",
         .tied = true,
         .head_dim = 256,
         .layer_angles = true},
        kOfGemma3, kGemmaKeys, kGemmaSteps, sets(&M::norms_per_layer, 4), softcaps(0, 0),
        scale_scores_of_gemma, planned("has two sets of RoPE frequencies"), kQkNorm),
    row("gemma4_text", "Gemma4ForCausalLM", kGemma4, Keys{.activation = "hidden_activation"},
        kGemma4Keys, kGemma4Steps),
    row("gemma4_unified_text", "Gemma4UnifiedForCausalLM", kGemma4,
        Keys{.activation = "hidden_activation"}, kGemma4Keys, kGemma4Steps),
    row("glm", "GlmForCausalLM",
        {.positions = 131072, .eps = 1.5625e-7, .head_dim = 128, .rotary = 0.5}, kQkvBias,
        has({&M::fused_gate_up})),
    row("glm4", "Glm4ForCausalLM",
        {.positions = 131072, .eps = 1.5625e-7, .head_dim = 128, .rotary = 0.5}, kQkvBias,
        has({&M::fused_gate_up}), sets(&M::norms_per_layer, 4)),
    row("glm4_moe", "Glm4MoeForCausalLM",
        {.positions = 131072, .eps = 1e-5, .rotary = 0.5, .experts = true},
        Known{"use_qk_norm num_nextn_predict_layers"}, kQkvBias,
        flag("use_qk_norm", false, {&M::qk_norm}), deepseek_experts(1), mtp()),
    row("glm4_moe_lite", "Glm4MoeLiteForCausalLM", deepseek(4096), kDeepseekKeys, kDeepseekExperts,
        mtp()),
    row("gpt2", "GPT2LMHeadModel", kGpt2, kGpt2Steps),
    row("gpt_bigcode", "GPTBigCodeForCausalLM", kGpt2, kGpt2Steps, heads_of_bigcode,
        // Said once more, and in what precision scores are kept for the softmax: here always in
        // fp32.
        passes_over({"num_key_value_heads", "attention_softmax_in_fp32",
                     "scale_attention_softmax_in_fp32"})),
    row("gpt_neox", "GPTNeoXForCausalLM",
        {.eps = 1e-5, .activation = "gelu", .rotary = 0.25, .plain_heads = true},
        Keys{.eps = "layer_norm_eps", .theta = "rotary_emb_base", .fraction = "rotary_pct"},
        layer_norm("layer_norm_eps", true), sets(&M::gated_mlp, false),
        has({&M::mlp_bias, &M::fused_qkv}), attention_bias(true),
        flag("use_parallel_residual", true, {&M::parallel_residual})),
    row("gpt_oss", "GptOssForCausalLM",
        {.positions = 131072, .eps = 1e-5, .head_dim = 64, .experts = true}, kEverySecond,
        attention_bias(true), kMixtralExperts,
        has({&E::router_bias, &E::bias, &M::attention_sinks}), refuses("mlp_bias")),
    row("granite", "GraniteForCausalLM", {}, kGraniteKeys, planned(kMultiplies), biases),
    row("granite_swa", "GraniteSWAForCausalLM", {.positions = 8192, .eps = 1e-5, .tied = true},
        kAllBehindFourth, kGraniteKeys, planned(kMultiplies), biases, has({&M::attention_sinks})),
    row("granitemoe", "GraniteMoeForCausalLM", {.experts = true}, kGraniteKeys, attention_bias(),
        kMixtralExperts),
    row("granitemoe_swa", "GraniteMoeSWAForCausalLM", {.experts = true}, kAllBehindFourth,
        kGraniteKeys, attention_bias(), kMixtralExperts, shared_width_of_granite,
        has({&M::attention_sinks})),
    // Its experts may be none.
    row("granitemoehybrid", "GraniteMoeHybridForCausalLM", {.mixes = true, .experts = true},
        kGraniteKeys, planned(kMultiplies), attention_bias(), has({&M::fused_gate_up}),
        layers_of_granite4),
    row("granitemoeshared", "GraniteMoeSharedForCausalLM", {.experts = true}, kGraniteKeys,
        attention_bias(), kMixtralExperts, shared_width_of_granite),
    row("grok-1", "Grok1ModelForCausalLM",
        {.positions = 8192, .eps = 1e-5, .activation = "gelu", .tied = true, .experts = true},
        Known{"attn_logit_softcapping"},
        routing("num_experts", "num_experts_per_tok|num_experts_per_token"), experts_as_mlp,
        sets(&M::norms_per_layer, 4),
        number(&M::embedding_scale, "embedding_multiplier_scale", 1.0, above(0.0))),
    row("helium", "HeliumForCausalLM", {.positions = 4096, .eps = 1e-8, .head_dim = 128}, biases),
    row("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", {.eps = 1e-5},
        planned("normalises queries and keys behind RoPE"), attention_bias(), kQkNorm),
    row("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", {.eps = 1e-5, .experts = true},
        Known{"use_qk_norm"}, attention_bias(), flag("use_qk_norm", true, {&M::qk_norm}),
        experts_by_lists),
    row("hy_v3", "HYV3ForCausalLM",
        {.positions = 131072, .eps = 1e-5, .head_dim = 128, .experts = true}, kMtpKeys,
        attention_bias(), refuses("mlp_bias"), kQkNorm,
        deepseek_experts(1, "num_experts", "num_shared_experts"), mtp()),
    row("hyperclovax", "HyperCLOVAXForCausalLM", {}, kGraniteKeys, planned(kMultiplies), biases,
        norms_of_hyperclovax),
    row("internlm3", "InternLM3ForCausalLM|LlamaForCausalLM",
        {.positions = 32768, .eps = 1e-5, .head_dim = 128}, planned(kNoKernels), biases,
        refuses("qkv_bias"), refuses("bias")),
    row("iquestcoder", "IQuestCoderForCausalLM|LlamaForCausalLM",
        {.positions = 131072, .eps = 1e-5, .head_dim = 128}, planned(kNoKernels), biases),
    row("jais2", "Jais2ForCausalLM", {.positions = 8192}, Keys{.activation = ""},
        planned(kSquaresRelu), squared_relu(), attention_bias(true),
        flag("mlp_bias", true, {&M::mlp_bias}), layer_norm("layer_norm_eps", true)),
    row("jamba", "JambaForCausalLM", {.positions = 262144, .mixes = true, .experts = true},
        planned(kHasMamba), layers_of_jamba),
    row("kimi_k2", "DeepseekV3ForCausalLM", deepseek(4096), kDeepseekKeys, kDeepseekExperts,
        has({&E::router_bias}), mtp()),
    row("kimi_linear", "KimiLinearForCausalLM",
        {.positions = 1048576, .eps = 1e-5, .mixes = true, .latent = true, .experts = true},
        kDeepseekKeys, positions_of_tokenizer, planned(kHasKimiDelta),
        refuses("attn_res_block_size"), refuses("mla_use_output_gate"), kKimiExperts,
        latent_experts("routed_expert_hidden_size"), kimi_delta),
    row("kolibri1", "Kolibri1ForCausalLM", {.positions = 262144, .head_dim = 128, .experts = true},
        Keys{.ffn = "moe_intermediate_size"}, kAllButFifth, kQkNorm, sets(&M::norms_per_layer, 4),
        routing(), experts_as_mlp, shared_width()),
    row("laguna", "LagunaForCausalLM",
        {.positions = 131072,
         .head_dim = 128,
         .layer_angles = true,
         .mixes = true,
         .experts = true},
        attention_bias(), has({&M::qk_norm, &E::router_bias}), gates_of_laguna, kQwenExperts,
        window(512), forms_of_laguna),
    row("lfm2", "Lfm2ForCausalLM", {.positions = 128000, .eps = 1e-5, .tied = true, .mixes = true},
        kLfm2Keys, kLfm2Steps, layers_of_lfm2),
    row("lfm2_moe", "Lfm2MoeForCausalLM",
        {.positions = 128000, .eps = 1e-5, .tied = true, .mixes = true, .experts = true}, kLfm2Keys,
        kLfm2Steps, layers_of_lfm2_moe),
    row("llama", "LlamaForCausalLM", {}, biases),
    row("llama4_text", "Llama4ForCausalLM",
        {.positions = 131072, .eps = 1e-5, .head_dim = 128, .experts = true},
        Known{"use_qk_norm attention_chunk_size"}, attention_bias(), routing("num_local_experts"),
        interleaved_experts, attend_in_chunks),
    row("mamba", "MambaForCausalLM", without_attention(true), kRecurrentKeys, planned(kHasMamba),
        mamba_layers),
    row("mamba2", "Mamba2ForCausalLM", without_attention(false), kRecurrentKeys,
        planned(kHasMamba2), mamba2_layers),
    row("mellum", "MellumForCausalLM",
        {.positions = 131072, .head_dim = 128, .layer_angles = true, .experts = true}, kNoLayer,
        kMtpKeys, attention_bias(), kQkNorm, kWideExperts, dense_layers(0, "mlp_layer_types"),
        mtp()),
    row("mimo", "MiMoForCausalLM", {.positions = 32768}, kMtpKeys, planned(kNoKernels),
        flag("attention_bias", true, {&M::qkv_bias}), mtp()),
    row("minimax", "MiniMaxForCausalLM", kMinimax, kMinimaxSteps, every_second_attends),
    row("minimax_m2", "MiniMaxM2ForCausalLM",
        {.positions = 196608, .head_dim = 128, .experts = true}, Known{"use_qk_norm"},
        kMixtralExperts,
        // One weight for every channel of all heads.
        only("qk_norm_type", "per_layer"),
        flag("use_qk_norm", true, {&M::qk_norm, &M::qk_norm_whole}), mtp_of_minimax),
    row("minimax_text_01", "MiniMaxText01ForCausalLM", kMinimax, kMinimaxSteps,
        listed_types_attend),
    row("ministral", "MinistralForCausalLM", {.positions = 131072}),
    row("ministral3", "Ministral3ForCausalLM", {.positions = 262144, .eps = 1e-5, .head_dim = 128},
        planned("scales queries by their position")),
    row("mistral", "MistralForCausalLM", {.positions = 131072}, refuses("attention_bias"),
        refuses("mlp_bias")),
    row("mistral4", "Mistral4ForCausalLM", deepseek(1048576), kDeepseekKeys, kDeepseekExperts),
    row("mixtral", "MixtralForCausalLM", {.positions = 131072, .eps = 1e-5, .experts = true},
        kMixtralExperts, refuses("attention_bias"), refuses("mlp_bias")),
    // Of LLM Foundry.
    row("mpt", "MptForCausalLM", {.eps = 1e-5, .tied = true, .rotary = 0, .plain_heads = true},
        Keys{"d_model", "", "n_layers", "n_heads", "max_seq_len", "", "layer_norm_epsilon"},
        mpt_attention, mpt_mlp, mpt_norms_and_biases, refuses("embedding_fraction", 1),
        refuses("block_overrides")),
    row("nemotron", "NemotronForCausalLM", {.positions = 4096, .rotary = 0.5},
        Keys{.activation = ""}, planned(kSquaresRelu), squared_relu(), biases,
        layer_norm("norm_eps", true)),
    // Its experts may be none.
    row("nemotron_h", "NemotronHForCausalLM",
        {.positions = 4096, .eps = 1e-5, .head_dim = 128, .mixes = true, .experts = true},
        Keys{.activation = "", .eps = "rms_norm_eps|layer_norm_epsilon"}, kMtpKeys,
        number_of_blocks, planned(kHasMamba2), squared_relu("mlp_hidden_act"), biases,
        refuses("sliding_window"), halves_of_nemotron),
    row("olmo2", "Olmo2ForCausalLM", {.eps = 1e-5}, planned(kNormsBehind), attention_bias(),
        kWholeQkNorm),
    row("olmo3", "Olmo3ForCausalLM", {.eps = 1e-5, .layer_angles = true}, kAllButFourth,
        planned(kNormsBehind), attention_bias(), kWholeQkNorm),
    // Layers that attend have their norms behind attention and MLP, the others before. Its
    // published files have no RoPE: rope_parameters without theta.
    row("olmo_hybrid", "OlmoHybridForCausalLM", {.positions = 65536, .mixes = true},
        planned("has gated delta nets"), attention_bias(), kWholeQkNorm, gated_delta_of_olmo,
        attends_every("", 4)),
    row("olmoe", "OlmoeForCausalLM", {.positions = 4096, .eps = 1e-5, .experts = true},
        attention_bias(), kWholeQkNorm, routing(), experts_as_mlp),
    row("phi3", "Phi3ForCausalLM", {.positions = 4096, .eps = 1e-5},
        has({&M::fused_qkv, &M::fused_gate_up}), count_own_position, refuses("attention_bias"),
        refuses("mlp_bias")),
    row("qwen2", "Qwen2ForCausalLM", {.positions = 32768}, kBehindMaxWindowLayers,
        has({&M::qkv_bias}), refuses("mlp_bias")),
    row("qwen2_5_vl_text", "Qwen2_5_VLForConditionalGeneration",
        {.positions = 32768, .angle_sections = true}, kBehindMaxWindowLayers,
        sets(&M::family, "qwen2"), has({&M::qkv_bias}), planned(kOfPictures)),
    row("qwen2_moe", "Qwen2MoeForCausalLM", {.positions = 32768, .experts = true},
        kBehindMaxWindowLayers, kWideExperts, sparse_layers, refuses("mlp_bias"),
        flag("qkv_bias", true, {&M::qkv_bias}), shared_width(), has({&E::shared_gate})),
    row("qwen3", "Qwen3ForCausalLM", {.positions = 32768, .head_dim = 128}, kBehindMaxWindowLayers,
        attention_bias(), kQkNorm, refuses("mlp_bias")),
    row("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM|Qwen3_5MoeForConditionalGeneration",
        {.positions = 32768,
         .head_dim = 256,
         .rotary = 0.25,
         .angle_sections = true,
         .mixes = true,
         .experts = true},
        Keys{.ffn = "shared_expert_intermediate_size"}, mtp("mtp_num_hidden_layers"),
        refuses("attn_output_gate", 1), kQwenExperts, has({&E::shared_gate}), kQwenDelta),
    row("qwen3_5_text", "Qwen3_5ForCausalLM|Qwen3_5ForConditionalGeneration",
        {.positions = 32768,
         .head_dim = 256,
         .rotary = 0.25,
         .angle_sections = true,
         .mixes = true},
        mtp("mtp_num_hidden_layers"), refuses("attn_output_gate", 1), kQwenDelta),
    // All of them normalise queries and keys.
    row("qwen3_moe", "Qwen3MoeForCausalLM", {.positions = 32768, .experts = true},
        kBehindMaxWindowLayers, Known{"use_qk_norm"}, kWideExperts, sparse_layers,
        refuses("mlp_bias"), attention_bias(), kQkNorm),
    row("qwen3_next", "Qwen3NextForCausalLM",
        {.positions = 32768, .head_dim = 256, .rotary = 0.25, .mixes = true, .experts = true},
        kQwenExperts, has({&E::shared_gate}), no_dense_layers, kQwenDelta),
    row("qwen3_vl_moe_text", "Qwen3VLMoeForConditionalGeneration",
        {.positions = 128000, .head_dim = 128, .angle_sections = true, .experts = true},
        kBehindMaxWindowLayers, sets(&M::family, "qwen3_moe"), attention_bias(), kQkNorm,
        kWideExperts, refuses("decoder_sparse_step", 1), refuses("mlp_only_layers")),
    row("qwen3_vl_text", "Qwen3VLForConditionalGeneration",
        {.positions = 128000, .head_dim = 128, .angle_sections = true}, kBehindMaxWindowLayers,
        sets(&M::family, "qwen3"), attention_bias(), kQkNorm, planned(kOfPictures)),
    row("seed_oss", "SeedOssForCausalLM", {.positions = 524288, .head_dim = 128},
        flag("attention_bias", true, {&M::qkv_bias}),
        flag("attention_out_bias", false, {&M::attention_out_bias}),
        flag("mlp_bias", false, {&M::mlp_bias})),
    row("smollm3", "SmolLM3ForCausalLM", {.positions = 32768, .tied = true},
        planned("leaves out RoPE in some layers"), biases),
    // All of its layers have experts, so that files may lack the size of an MLP without.
    row("solar_open", "SolarOpenForCausalLM",
        {.positions = 131072, .eps = 1e-5, .head_dim = 128, .experts = true},
        Keys{.ffn = "moe_intermediate_size"}, kMtpKeys, attention_bias(), refuses("use_qk_norm"),
        deepseek_experts(0), mtp()),
    row("stablelm", "StableLmForCausalLM", {.positions = 4096, .rotary = 0.25},
        Known{"qk_layernorm"}, flag("use_qkv_bias", false, {&M::qkv_bias}),
        layer_norm("layer_norm_eps", true),
        flag("use_parallel_residual", false, {&M::parallel_residual}),
        flag("qk_layernorm", false, {&M::qk_norm, &M::qk_norm_whole}), norms_of_stablelm),
    row("starcoder2", "Starcoder2ForCausalLM",
        {.positions = 4096, .activation = "gelu_pytorch_tanh", .tied = true},
        layer_norm("norm_epsilon", true), flag("use_bias", true, kBiases),
        sets(&M::gated_mlp, false)),
    row("vaultgemma", "VaultGemmaForCausalLM", kGemma, kOfGemma2, kGemmaKeys, kGemmaSteps,
        softcaps(50, 30), scale_scores_of_gemma),
};
bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

/// "one of 70 known families such as a, b and c", those whose names are most like `name`.
std::string known_ones(std::string_view name, const std::vector<std::string>& types) {
  return fmt::format("one of {} known families such as {}", types.size(),
                     fmt::join(nearest_few(name, types, 3), ", "));
}

/// By model_type, or by architectures in files that lack it; the two must agree, because another
/// head (a classifier, a reward) is another model.
const Family& family_of(const JsonReader& config) {
  const auto type = config.find<std::string>("model_type");
  const auto architectures = config.find_array("architectures");
  const JsonReader* const first =
      architectures && !architectures->empty() ? &architectures->front() : nullptr;
  const std::string given = first ? first->value<std::string>() : "";
  std::vector<std::string> types;
  for (const Family& family : kFamilies) {
    types.emplace_back(family.type);
    const std::size_t bar = family.architecture.find('|');
    const std::string_view architecture = family.architecture.substr(0, bar);
    const bool named = given.empty() || equal_ignoring_case(given, architecture);
    if (type ? *type != family.type : !first || !named) continue;
    if (!named && (bar == given.npos || given != family.architecture.substr(bar + 1)))
      first->fail(architecture);
    return family;
  }
  const auto without = [](std::string_view part) {
    return fmt::format("a model without {}, because that is not modelled", part);
  };
  if (!type && first) {
    const std::string_view part = unmodelled_part(given);
    first->fail(part.empty() ? "the language model of " + known_ones(given, types) : without(part));
  }
  const std::string_view part = type ? unmodelled_part(*type) : std::string_view();
  if (!part.empty()) config.fail("model_type", without(part));
  config.fail("model_type", known_ones(type.value_or("llama"), types));
}

/// Weights stored in 8 or 4 bits, as the files of DeepSeek-V3 and gpt-oss are, are trained in what
/// the plan says; those of others are read the same way by trainers of adapters.
void check_storage(const JsonReader& config) {
  const auto stored = config.find_object("quantization_config");
  if (!stored) return;
  if (!stored->has("quant_method") && stored->has("quant_algo")) {  // as ModelOpt writes it
    stored->require_choice("quant_algo", {"FP8", "NVFP4", "MXFP8", "MIXED_PRECISION"});
    return;
  }
  stored->require_choice("quant_method", {"fp8", "fbgemm_fp8", "mxfp4", "modelopt",
                                          "compressed-tensors", "bitsandbytes"});
}

constexpr std::array<const char*, 3> kTextParts = {"text_config", "llm_config", "language_config"};

/// The language model in a config that wraps it beside towers for pictures and sound: its
/// text_config (InternVL: llm_config, Janus: language_config) where the wrapper itself is of no
/// known family.
JsonReader text_part(const JsonReader& config) {
  const auto type = config.find<std::string>("model_type");
  const bool known =
      type && std::any_of(kFamilies.begin(), kFamilies.end(),
                          [&](const Family& family) { return family.type == *type; });
  if (known) return config;
  for (const char* key : kTextParts) {
    if (config.has(key)) return config.require_object(key);
  }
  return config;
}

bool wraps_text(const JsonReader& config) {
  return std::any_of(kTextParts.begin(), kTextParts.end(),
                     [&](const char* key) { return config.has(key); });
}

}  // namespace

Model model_from_config(const JsonReader& whole) {
  const JsonReader file = text_part(whole);
  const bool wrapped = wraps_text(whole) && !wraps_text(file);
  std::set<std::string, std::less<>> asked;
  const JsonReader config = file.noting(asked);
  const Family& family = family_of(config);
  const std::vector<std::string_view> known = words_of(family.known.keys);
  if (!family.shape.experts) {
    const std::string why = fmt::format("{} models with experts are not modelled", family.type);
    for (const std::string_view key : words_of(kExpertKeys)) refuse(config, key, 0, why);
  }
  check_storage(config);
  if (wrapped) check_storage(whole);
  for (const std::string_view unmodelled : words_of(kUnmodelledKeys)) {
    const std::string_view key = unmodelled.substr(0, unmodelled.find('='));
    if (std::find(known.begin(), known.end(), key) == known.end())
      refuse(config, key, key == unmodelled ? 0 : 1);
  }
  Model model = family.read(config);
  if (!model.is_moe() &&
      (model.rope.scaling == RopeScaling::kYarn || model.rope.scaling == RopeScaling::kLongrope)) {
    model.planning_only = "stretches RoPE with yarn or longrope";
  }
  if (model.planning_only.empty() && stretches_dynamically(config))
    model.planning_only = "stretches RoPE with the length of sequences";
  if (!model.is_moe() && model.rope.scaling == RopeScaling::kLlama3 &&
      model.rope.high_freq_factor == model.rope.low_freq_factor) {
    model.planning_only = "stretches some frequencies of RoPE without a transition";
  }
  model.initial_deviation =
      config.optional<double>("initializer_range", model.initial_deviation, above(0.0));
  model.dropout = dropout_of(file);
  const bool stored = file.has("quantization_config") || whole.has("quantization_config");
  if (stored && model.planning_only.empty()) model.planning_only = "is stored in fewer bits";
  asked.insert(known.begin(), known.end());
  model.ignored_keys = ignored_keys(file, asked);
  if (wrapped) {
    if (model.planning_only.empty())
      model.planning_only = "is the text part of a model for pictures";
    for (const char* tower : {"audio_config", "vision_config"}) {
      if (whole.has(tower)) model.ignored_keys.insert(model.ignored_keys.begin(), tower);
    }
    // Wrappers may tie the head where the text alone says nothing.
    if (whole.has("tie_word_embeddings") && !file.has("tie_word_embeddings"))
      model.tied_head = whole.require<bool>("tie_word_embeddings");
  }
  return model;
}

}  // namespace shardwright::hf
