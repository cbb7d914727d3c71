// SPDX-License-Identifier: Apache-2.0
// What `tune --stack native` answers `run` starts: every rank has its memory. And a small model
// that is as deep trains with the same layout.

#include "cli/embed/verb_call.h"
#include "sim/core/hf/config.h"
#include "sim/core/plan_json.h"
#include "tests/cli/program.h"
#include "tests/exec/all_layouts.h"
#include "tests/support/parameter_name.h"

namespace shardwright::cli {
namespace {

struct TunedQuestion {
  const char* model;
  const char* cluster;
  std::int64_t gpus, seq_len;
};

void PrintTo(const TunedQuestion& asked, std::ostream* out) {
  *out << fmt::format("{} on {} x {} at {}", asked.model, asked.gpus, asked.cluster, asked.seq_len);
}

constexpr TunedQuestion kTuned[] = {{"llama-3.2-3b", "dgx-h100", 8, 131072},
                                    {"llama-3.2-3b", "rtx-4090-pcie8", 8, 2048},
                                    {"llama-3.2-1b", "dgx-h100", 1, 2048},
                                    {"llama-3.2-1b", "l4-pcie8", 8, 4096},
                                    {"llama-3.2-1b", "dgx-h100", 8, 131072},
                                    {"qwen2.5-1.5b", "l40s-pcie8", 4, 8192},
                                    {"gpt2-xl", "p4d", 2, 1024},
                                    {"gemma-2b", "g5", 8, 4096},
                                    {"qwen3-1.7b", "rtx-3090-pcie8", 8, 2048},
                                    {"qwen2.5-7b", "dgx-h100", 16, 8192},
                                    {"llama-3-8b", "dgx-a100-80g", 8, 8192},
                                    {"llama-3-8b", "dgx-h100", 16, 131072},
                                    {"qwen3-8b", "dgx-b200", 8, 32768},
                                    {"gemma-7b", "dgx-h100", 16, 8192},
                                    {"mistral-7b", "p4d", 24, 4096},
                                    {"llama-2-13b", "a40-pcie8", 16, 4096},
                                    {"qwen3-14b", "dgx-h200", 32, 65536},
                                    {"qwen2.5-14b", "dgx-h100", 64, 16384},
                                    {"gpt-neox-20b", "p4d", 24, 2048},
                                    {"mpt-30b", "a100-80g-8xhdr200", 64, 2048},
                                    {"qwen3-32b", "dgx-h100", 32, 16384},
                                    {"codellama-34b", "p4de", 64, 4096},
                                    {"llama-3-70b", "dgx-h100", 64, 32768},
                                    {"llama-3-70b", "a100-80g-4xhdr200", 256, 2048},
                                    {"llama-3.1-70b", "dgx-b200", 32, 4096},
                                    {"llama-3.1-70b", "a3-mega", 128, 131072},
                                    {"qwen2.5-72b", "gb200-nvl72", 72, 8192},
                                    {"llama-3-70b", "p5", 512, 8192},
                                    {"llama-3.1-405b", "dgx-h100", 512, 8192},
                                    {"llama-3.1-405b", "dgx-b200", 256, 8192}};

/// What the program answers to a line, which it must.
std::string answer_to(const std::string& line) {
  std::istringstream text(line);
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  VerbCall call;
  EXPECT_EQ(call.run(words), 0) << line << ": " << call.messages();
  return call.results();
}

class TunedRuns : public ::testing::TestWithParam<TunedQuestion> {};

TEST_P(TunedRuns, HaveTheirMemoryAndTrainASmallModel) {
  const TunedQuestion& asked = GetParam();
  const std::filesystem::path folder = shardwright::testing::temp_folder();
  const std::string file = folder / "plan.json", small = folder / "small.json";
  answer_to(
      fmt::format("tune --model {} --cluster {} --gpus {} --seq-len {} --stack native "
                  "--threads 1 --out {}",
                  asked.model, asked.cluster, asked.gpus, asked.seq_len, file));
  const PlanDocument document = read_plan(file);
  const Plan& plan = document.plan;
  EXPECT_EQ(plan.gpus, asked.gpus);
  const std::string run =
      fmt::format("run --plan {} --clock virtual --network {} --json ", file, asked.cluster);
  const json begun = json::parse(answer_to(run + "--until allocation --dropout none"));
  EXPECT_GT(begun.at("planned_memory_bytes"), 0);

  const Model model = parse_hf_config(document.model_config, file, document.model);
  std::ofstream(small) << fmt::format(
      R"({{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "head_dim": 8,
           "num_hidden_layers": {}, "num_attention_heads": 8, "vocab_size": 256, "rms_norm_eps": 1e-5,
           "max_position_embeddings": 256, "tie_word_embeddings": {}}})",
      model.layers, model.tied_head);
  const std::int64_t batch = std::min<std::int64_t>(plan.micro_batch, 4);
  const json trained = json::parse(answer_to(fmt::format(
      "{}--model {} --data synthetic --hold-out 0 --steps 2 --micro-batch {} --seq-len {} "
      "--grad-accum {} --save none --overwrite yes --out {}",
      run, small, batch, 64 / batch, std::min(plan.grad_accum, 2 * plan.parallel.pp),
      (folder / "run").string())));
  EXPECT_EQ(trained.at("last_step"), 2);
  EXPECT_EQ(trained.at("peak_memory_bytes"), trained.at("planned_memory_bytes"));
}

// The first ones always, all where SHARDWRIGHT_LAYOUTS asks for it.
INSTANTIATE_TEST_SUITE_P(Questions, TunedRuns,
                         ::testing::ValuesIn(std::begin(kTuned), exec::testing::tries_all_layouts()
                                                                     ? std::end(kTuned)
                                                                     : std::begin(kTuned) + 2),
                         parameter_name);

}  // namespace
}  // namespace shardwright::cli
