// SPDX-License-Identifier: Apache-2.0
#include "sim/core/hf/unmodelled.h"

#include <algorithm>
#include <array>

namespace shardwright::hf {
namespace {

struct Part {
  std::string_view type, what;
};

// Recurrent or convolutional layers instead of attention.
constexpr std::string_view kSharedMamba = "Mamba layers beside shared attention",
                           kSharedBlocks = "blocks of attention that layers share",
                           kConvolutions = "convolutional layers", kShort = "short convolutions",
                           kRecurrent = "recurrent layers";
// Attention that differs.
constexpr std::string_view kIndexer = "an indexer of sparse attention",
                           kCompressed = "compressed attention and hyper-connections",
                           kBlockSparse = "block-sparse attention",
                           kHeadSizes = "heads that differ between full and windowed attention",
                           kLatent = "latent attention in a dense model";
// Layers that differ.
constexpr std::string_view kLayerInputs = "embeddings for each layer",
                           kSearched = "blocks of different sizes",
                           kTwoAttentions = "two attentions in a layer",
                           kExpertNorm = "a norm behind experts alone",
                           kTrainedActivation = "activations with trained weights",
                           kAttentionExperts = "experts of attention",
                           kWeightless = "weightless norms", kHeadBias = "biases on the head";

constexpr std::array kParts = {
    Part{"MiniMaxM3SparseForCausalLM", kBlockSparse},
    Part{"apertus", kTrainedActivation},
    Part{"axk1", kExpertNorm},
    Part{"axk2", kIndexer},
    Part{"bitnet", "norms inside attention and MLP"},
    Part{"codegen", kHeadBias},
    Part{"deepseek_ref", kCompressed},
    Part{"deepseek_v32", kIndexer},
    Part{"deepseek_v4", kCompressed},
    Part{"diffllama", "differential attention"},
    Part{"dots3_note", kIndexer},
    Part{"dots3_note_text", kIndexer},
    Part{"gemma3n", kLayerInputs},
    Part{"gemma3n_text", kLayerInputs},
    Part{"glm_moe_dsa", kIndexer},
    Part{"gptj", kHeadBias},
    Part{"hy_v4", kIndexer},
    Part{"inkling2_text", kShort},
    Part{"inkling_text", kShort},
    Part{"jetmoe", kAttentionExperts},
    Part{"lfm3", kConvolutions},
    Part{"longcat_flash", kTwoAttentions},
    Part{"mimo_v2_flash", kHeadSizes},
    Part{"minicpm3", kLatent},
    Part{"minimax_m3", kBlockSparse},
    Part{"minimax_m3_vl_text", kBlockSparse},
    Part{"nanochat", kWeightless},
    Part{"nemotron-nas", kSearched},
    Part{"olmo", kWeightless},
    Part{"phi", kHeadBias},
    Part{"recurrent_gemma", kRecurrent},
    Part{"rwkv", kRecurrent},
    Part{"step3p7", kHeadSizes},
    Part{"step3p7_text", kHeadSizes},
    Part{"xlstm", kRecurrent},
    Part{"youtu", kLatent},
    Part{"zamba", kSharedMamba},
    Part{"zamba2", kSharedBlocks},
};

}  // namespace

std::string_view unmodelled_part(std::string_view type) {
  const auto* const part = std::find_if(kParts.begin(), kParts.end(),
                                        [&](const Part& known) { return known.type == type; });
  return part == kParts.end() ? std::string_view() : part->what;
}

}  // namespace shardwright::hf
