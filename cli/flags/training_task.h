// SPDX-License-Identifier: Apache-2.0
// What is trained, in the words of who fine-tunes: a task stands for a few knobs and for the
// framework that is usual for it.
#pragma once

#include <optional>
#include <string>

#include "sim/core/model.h"
#include "sim/core/plan_knobs.h"

namespace shardwright::cli {

enum class TrainingTask { kPretrain, kSft, kLora, kQlora };

/// Throws Error naming --task, the word and what is accepted.
TrainingTask parse_training_task(const std::string& word);
std::string training_task_words();

/// Of sft and adapters: other frameworks are usual, and smaller batches.
bool fine_tunes(const std::optional<TrainingTask>& task, const GivenKnobs& knobs);

/// "sequence length 8,192, from the model": what usual_seq_len takes.
std::string usual_length_words(const Model& model, bool fine_tunes);

/// Knobs that the task stands for and nobody gave: adapters of the usual rank, over nf4 in qlora.
void take_task(TrainingTask task, GivenKnobs& knobs);

/// Throws Error where knobs that were given contradict the task.
void check_task(const std::optional<TrainingTask>& task, const GivenKnobs& knobs);

}  // namespace shardwright::cli
