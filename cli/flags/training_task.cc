// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/training_task.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <vector>

#include "cli/render/text/quantity.h"
#include "sim/core/base/error.h"
#include "sim/core/base/words.h"
#include "tuner/advice/advice.h"

namespace shardwright::cli {
namespace {

const std::vector<std::string> kTasks = {"pretrain", "sft", "lora", "qlora"};

}  // namespace

TrainingTask parse_training_task(const std::string& word) {
  for (std::size_t i = 0; i < kTasks.size(); ++i) {
    if (word == kTasks[i]) return static_cast<TrainingTask>(i);
  }
  fail_word("--task", word, kTasks);
}

std::string training_task_words() {
  return fmt::format("{}", fmt::join(kTasks, "|"));
}

bool fine_tunes(const std::optional<TrainingTask>& task, const GivenKnobs& knobs) {
  return task.value_or(TrainingTask::kPretrain) != TrainingTask::kPretrain ||
         knobs.parallel.lora.has_value();
}

std::string usual_length_words(const Model& model, bool fine_tunes) {
  const auto tokens = [](std::int64_t count) { return thousands(static_cast<double>(count)); };
  const std::int64_t usual = usual_seq_len(model, fine_tunes);
  std::string from = "from the model";
  if (usual < model.max_positions)
    from = fine_tunes ? "usual to fine-tune"
                      : fmt::format("of the {} that the model takes", tokens(model.max_positions));
  return fmt::format("sequence length {}, {}", tokens(usual), from);
}

void take_task(TrainingTask task, GivenKnobs& knobs) {
  GivenParallelism& given = knobs.parallel;
  if (task == TrainingTask::kPretrain || task == TrainingTask::kSft) return;
  if (!given.lora) given.lora = tuner::kUsualLoraRank;
  if (task == TrainingTask::kQlora && !given.quantize) given.quantize = Quantize::kNf4;
}

void check_task(const std::optional<TrainingTask>& task, const GivenKnobs& knobs) {
  if (!task) return;
  const GivenParallelism& given = knobs.parallel;
  const std::string& name = kTasks[static_cast<std::size_t>(*task)];
  const bool adapters = *task == TrainingTask::kLora || *task == TrainingTask::kQlora;
  if (!adapters && given.lora)
    throw Error(fmt::format("--task is {}, but --lora is {}, expected --task lora or qlora.", name,
                            *given.lora));
  const bool quantized = given.quantize.value_or(Quantize::kNone) != Quantize::kNone;
  if (*task == TrainingTask::kLora && quantized)
    throw Error(fmt::format("--task is lora, but --quantize is {}, expected --task qlora.",
                            name_of(*given.quantize)));
  if (*task == TrainingTask::kQlora && !quantized)
    throw Error("--task is qlora, but --quantize is none, expected nf4, int8 or fp8.");
}

}  // namespace shardwright::cli
