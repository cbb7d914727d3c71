// SPDX-License-Identifier: Apache-2.0
// The built-in models against the parameter counts that others published.

#include <tuple>
#include <utility>

#include "sim/core/hf/config.h"
#include "tests/core/common.h"

namespace shardwright {
namespace {

const std::filesystem::path kModels =
    std::filesystem::path(SHARDWRIGHT_TEST_DATA "/../../profiles/data/models").lexically_normal();

struct Published {
  std::string name;
  std::int64_t parameters;
};

// Safetensors metadata on the Hugging Face Hub (https://huggingface.co/api/models/NAME, field
// safetensors.total). For Llama 2 the Hub also counts the rotary frequencies, 64 numbers a layer,
// which are no parameters and are left out here. Qwen3 0.6B and 1.7B are what
// sum(p.numel() for p in model.parameters()) gives, because their files repeat the tied head.
const std::vector<Published> kHub = {
    {"codellama-34b", 33'743'970'304}, {"gemma-2-2b", 2'614'341'888},
    {"gemma-2-9b", 9'241'705'984},     {"gemma-2-27b", 27'227'128'320},
    {"gemma-2b", 2'506'172'416},       {"gemma-7b", 8'537'680'896},
    {"llama-2-7b", 6'738'415'616},     {"llama-2-13b", 13'015'864'320},
    {"llama-2-70b", 68'976'648'192},   {"llama-3-8b", 8'030'261'248},
    {"llama-3-70b", 70'553'706'496},   {"llama-3.1-8b", 8'030'261'248},
    {"llama-3.1-70b", 70'553'706'496}, {"llama-3.1-405b", 405'853'388'800},
    {"llama-3.2-1b", 1'235'814'400},   {"llama-3.2-3b", 3'212'749'824},
    {"mistral-7b", 7'241'732'096},     {"mistral-7b-v0.3", 7'248'023'552},
    {"phi-3-mini", 3'821'079'552},     {"qwen2.5-0.5b", 494'032'768},
    {"qwen2.5-1.5b", 1'543'714'304},   {"qwen2.5-3b", 3'085'938'688},
    {"qwen2.5-7b", 7'615'616'512},     {"qwen2.5-14b", 14'770'033'664},
    {"qwen2.5-32b", 32'763'876'352},   {"qwen2.5-72b", 72'706'203'648},
    {"qwen3-0.6b", 596'049'920},       {"qwen3-1.7b", 1'720'574'976},
    {"qwen3-4b", 4'022'468'096},       {"qwen3-8b", 8'190'735'360},
    {"qwen3-14b", 14'768'307'200},     {"qwen3-32b", 32'762'123'264},
    {"tinyllama-1.1b", 1'100'048'384},
};

// Column NumParams at 2048 tokens in scripts/train/benchmarking/README.md of mosaicml/llm-foundry.
const std::vector<Published> kLlmFoundry = {
    {"mpt-125m", 125'311'488},   {"mpt-350m", 355'985'408},   {"mpt-760m", 760'470'528},
    {"mpt-1b", 1'315'950'592},   {"mpt-3b", 2'651'837'440},   {"mpt-7b", 6'658'859'008},
    {"mpt-13b", 12'853'954'560}, {"mpt-30b", 29'975'214'080}, {"mpt-70b", 64'862'437'376},
};

const std::vector<Published> kElsewhere = {
    // Half of metadata.total_size (bf16) in pytorch_model.bin.index.json of mosaicml/mpt-7b.
    {"mosaicml-mpt-7b", 13'298'573'312 / 2},
    // Model card of EleutherAI/gpt-neox-20b, n_parameters.
    {"gpt-neox-20b", 20'554'567'680},
    // Counts of the released checkpoints with their padded vocabularies, as EleutherAI's Pythia
    // repository and the studies of the suite list them.
    {"pythia-70m", 70'426'624},
    {"pythia-160m", 162'322'944},
    {"pythia-410m", 405'334'016},
    {"pythia-1b", 1'011'781'632},
    {"pythia-1.4b", 1'414'647'808},
    {"pythia-2.8b", 2'775'208'960},
    {"pythia-6.9b", 6'857'302'016},
    {"pythia-12b", 11'846'072'320},
    // num_parameters() of the checkpoints in Transformers: "124M", "355M", "774M", "1.5B".
    {"gpt2", 124'439'808},
    {"gpt2-medium", 354'823'168},
    {"gpt2-large", 774'030'080},
    {"gpt2-xl", 1'557'611'200},
    // "Number of parameters" of the model cards or of the Hub's safetensors index.
    {"command-r", 34'980'831'232},
    {"command-r-plus", 103'810'674'688},
    {"falcon-7b", 6'921'720'704},
    {"gemma-3-1b", 999'885'952},
    {"glm-4-9b", 9'399'951'360},
    {"glm-4-9b-0414", 9'400'279'040},
    {"granite-3.0-8b", 8'170'848'256},
    {"minitron-4b", 4'190'509'056},
    {"olmo-2-7b", 7'298'617'344},
    {"phi-4-mini", 3'836'021'760},
    {"smollm3-3b", 3'075'098'624},
    {"stablelm-2-1.6b", 1'644'515'328},
    {"stablelm-2-12b", 12'143'185'920},
    {"starcoder2-3b", 3'030'371'328},
    // Never released; the architecture of CodeLlama 34B.
    {"llama-2-34b", 33'743'970'304},
};

// MoE models, weights without the scales of a quantization and without modules of
// multi-token prediction: safetensors metadata on the Hub (of deepseek-v3, kimi-k2 and gpt-oss that
// of conversions to bf16).
const std::vector<Published> kMoe = {
    {"mixtral-8x7b", 46'702'792'704},      {"mixtral-8x22b", 140'620'634'112},
    {"qwen1.5-moe-a2.7b", 14'315'784'192}, {"qwen3-30b-a3b", 30'532'122'624},
    {"qwen3-235b-a22b", 235'093'634'560},  {"deepseek-v2-lite", 15'706'484'224},
    {"deepseek-v2", 235'741'434'880},      {"deepseek-v3", 671'026'419'200},
    {"kimi-k2", 1'026'408'232'448},        {"gpt-oss-20b", 20'914'757'184},
    {"gpt-oss-120b", 116'829'156'672},
};

// Where only billions are published; `share` is how far their rounding and what they count beside
// the language model can take them.
struct Rounded {
  std::string name;
  double billions;
  double share;
};
const std::vector<Rounded> kRounded = {
    {"qwen2-57b-a14b", 57.41, 0.0001},  // its model card
    {"llama-4-scout", 109, 0.012},      // MODEL_CARD.md of meta-llama/llama-models; with vision
    {"llama-4-maverick", 400, 0.003},
    {"grok-1", 314, 0.006},  // README.md of xai-org/grok-1
};

// Hybrids, whose cards round: what Transformers 5.24's own modules of these sizes have
// (scripts/check_models). "27B", "35B", "397B", "80B", "31.6B", "120B", "56B", "48B", "34B", "52B",
// "30.7B", "25.2B", "8.3B", "7B", "456B".
const std::vector<Published> kHybrids = {
    {"qwen3.5-27b", 26'895'998'464},
    {"qwen3.5-35b-a3b", 34'660'610'688},
    {"qwen3.5-397b-a17b", 396'346'350'336},
    {"qwen3-next-80b-a3b", 79'674'391'296},
    {"nemotron-3-nano-30b-a3b", 31'577'937'344},
    {"nemotron-3-super-120b-a12b", 120'668'687'360},
    {"nemotron-h-56b", 56'324'350'464},
    {"kimi-linear-48b-a3b", 49'122'675'072},
    {"falcon-h1-34b", 33'642'221'312},
    {"jamba-v0.1", 51'570'323'328},
    {"gemma-4-31b", 30'697'345'280},
    {"gemma-4-26b-a4b", 25'233'141'760},
    {"lfm2-8b-a1b", 8'339'929'856},
    {"olmo-hybrid-7b", 7'430'870'688},
    {"minimax-text-01", 456'089'655'296},
};

std::vector<Published> all_published() {
  std::vector<Published> all = kHub;
  all.insert(all.end(), kLlmFoundry.begin(), kLlmFoundry.end());
  all.insert(all.end(), kElsewhere.begin(), kElsewhere.end());
  all.insert(all.end(), kMoe.begin(), kMoe.end());
  all.insert(all.end(), kHybrids.begin(), kHybrids.end());
  return all;
}

TEST(BuiltinModels, HaveExactlyThePublishedParameterCounts) {
  for (const Published& row : all_published()) {
    const Model model = load_model(kModels, row.name);
    EXPECT_EQ(count_parameters(model).total(model.layers), row.parameters) << row.name;
  }
}

TEST(BuiltinModels, HaveTheBillionsThatAreAllThatIsPublished) {
  for (const Rounded& row : kRounded) {
    const Model model = load_model(kModels, row.name);
    const auto total = static_cast<double>(count_parameters(model).total(model.layers));
    EXPECT_NEAR(total / 1e9, row.billions, row.share * row.billions) << row.name;
  }
}

TEST(BuiltinModels, ActiveParametersArePublishedInBillions) {
  // The first three: huggingface/huggingface.js pull request 2182, all parameters less the experts
  // that a token does not pass. qwen3: model cards, "3.3B activated", "22B".
  for (const auto& [name, billions, digits] :
       std::vector<std::tuple<std::string, double, double>>{{"mixtral-8x7b", 12.88, 0.005},
                                                            {"qwen1.5-moe-a2.7b", 2.69, 0.005},
                                                            {"deepseek-v2-lite", 2.66, 0.005},
                                                            {"qwen3-30b-a3b", 3.3, 0.06},
                                                            {"qwen3-235b-a22b", 22, 0.5},
                                                            {"deepseek-v2", 21, 0.5},
                                                            {"deepseek-v3", 37, 0.6},
                                                            {"kimi-k2", 32, 0.9}}) {
    const Model model = load_model(kModels, name);
    EXPECT_NEAR(static_cast<double>(count_parameters(model).active(model.layers)) / 1e9, billions,
                digits)
        << name;
  }
  // Table 1 of the gpt-oss model card (arXiv 2508.10925) leaves out the embedding.
  for (const auto& [name, billions] : {std::pair{"gpt-oss-120b", 5.13}, {"gpt-oss-20b", 3.61}}) {
    const Model model = load_model(kModels, name);
    const ParameterCounts counts = count_parameters(model);
    EXPECT_NEAR(static_cast<double>(counts.active(model.layers) - counts.embedding) / 1e9, billions,
                0.005)
        << name;
  }
}

TEST(BuiltinModels, MultiTokenPredictionIsBesideTheTotal) {
  // README_WEIGHTS.md of DeepSeek-V3: 11.5 B parameters of its own.
  const ParameterCounts counts = count_parameters(load_model(kModels, "deepseek-v3"));
  EXPECT_NEAR(static_cast<double>(counts.mtp) / 1e9, 11.5, 0.15);
}

TEST(BuiltinModels, TrainingFlopsOfMoeModelsAsTheirPublishersCountThem) {
  // 3 times forward in causal attention at 4,096 tokens, GFLOP a token: NVIDIA's published TFLOP/s
  // over tokens/s of Megatron-Bridge (DeepSeek-V3 with its prediction module, Qwen3).
  for (const auto& [name, gflop] : {std::pair{"deepseek-v3", 260.6},
                                    {"qwen3-30b-a3b", 23.1},
                                    {"qwen3-235b-a22b", 148.3},
                                    {"mixtral-8x7b", 79.7},
                                    {"mixtral-8x22b", 242.2}}) {
    const Model model = load_model(kModels, name);
    EXPECT_NEAR(3 * forward_flops_per_token(model, 4096).total() / 1e9, gflop, 0.003 * gflop)
        << name;
  }
}

TEST(BuiltinModels, WindowsAreWherePublished) {
  for (const auto& [name, window, layers] :
       std::vector<std::tuple<std::string, std::int64_t, std::int64_t>>{
           {"gemma-3-1b", 512, 22},  // of 26, every sixth sees all
           {"gpt-oss-120b", 128, 18},
           {"mistral-7b", 4096, 32},
           {"gemma-2-27b", 4096, 23},
           {"mistral-7b-v0.3", 0, 0},
           {"llama-4-scout", 8192, 36}}) {
    const Model model = load_model(kModels, name);
    EXPECT_EQ(model.sliding_window, window) << name;
    EXPECT_EQ(model.windowed_layers, layers) << name;
  }
}

TEST(BuiltinModels, HaveNoKeyThatIsIgnored) {
  for (const std::string& name : not_empty(builtin_models(kModels))) {
    EXPECT_EQ(load_model(kModels, name).ignored_keys, std::vector<std::string>()) << name;
  }
}

TEST(BuiltinModels, AreAllInTheTable) {
  std::set<std::string> listed;
  for (const Rounded& row : kRounded) EXPECT_TRUE(listed.insert(row.name).second);
  for (const Published& row : all_published()) EXPECT_TRUE(listed.insert(row.name).second);
  for (const std::string& name : not_empty(builtin_models(kModels))) {
    EXPECT_EQ(listed.erase(name), 1U) << name << " ships without a row in the tables above";
  }
  for (const std::string& name : listed) ADD_FAILURE() << name << " has a row and does not ship";
}

TEST(BuiltinModels, MptGrowsWithItsPositionsAsPublished) {
  // The same table at other sequence lengths.
  Model model = load_model(kModels, "mpt-7b");
  for (const auto& [length, parameters] :
       {std::pair{512, 6'652'567'552}, {8192, 6'684'024'832}, {65536, 6'918'905'856}}) {
    model.max_positions = length;
    EXPECT_EQ(count_parameters(model).total(model.layers), parameters) << length;
  }
}

TEST(BuiltinModels, NonEmbeddingCountsOfPythia) {
  // Table 1 of Biderman et al. 2023 (arXiv 2304.01373).
  for (const auto& [name, parameters] : {std::pair{"pythia-70m", 18'915'328L},
                                         {"pythia-410m", 302'311'424L},
                                         {"pythia-1b", 805'736'448L},
                                         {"pythia-2.8b", 2'517'652'480L},
                                         {"pythia-12b", 11'327'027'200L}}) {
    const Model model = load_model(kModels, name);
    const ParameterCounts counts = count_parameters(model);
    EXPECT_EQ(counts.total(model.layers) - counts.embedding - counts.head, parameters) << name;
  }
}

TEST(BuiltinModels, EveryAliasFindsItsModelAndNoOther) {
  for (const auto& [typed, name] : std::vector<std::pair<std::string, std::string>>{
           {"meta-llama/Llama-2-70b-hf", "llama-2-70b"},
           {"meta-llama/Meta-Llama-3-8B", "llama-3-8b"},
           {"meta-llama/Llama-3.1-405B", "llama-3.1-405b"},
           {"Llama-3.2-1B-Instruct", "llama-3.2-1b"},
           {"MISTRALAI/mistral-7b-v0.1", "mistral-7b"},
           {"mosaicml/mpt-7b", "mosaicml-mpt-7b"},
           {"MPT-7B", "mpt-7b"},
           {"microsoft/Phi-3-mini-4k-instruct", "phi-3-mini"},
           {"phi3-mini", "phi-3-mini"},
           {"gemma2-9b", "gemma-2-9b"},
           {"openai-community/gpt2", "gpt2"},
           {"Qwen/Qwen2.5-0.5B", "qwen2.5-0.5b"},
           {"LLAMA-3-70B", "llama-3-70b"}}) {
    EXPECT_EQ(load_model(kModels, typed).name, name) << typed;
  }
}

TEST(BuiltinModels, AreListedWithNumbersByValue) {
  std::vector<std::string> llama;
  for (const std::string& name : not_empty(builtin_models(kModels))) {
    if (name.starts_with("llama-2")) llama.push_back(name);
  }
  EXPECT_EQ(llama,
            (std::vector<std::string>{"llama-2-7b", "llama-2-13b", "llama-2-34b", "llama-2-70b"}));
}

}  // namespace
}  // namespace shardwright
