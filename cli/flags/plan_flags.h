// SPDX-License-Identifier: Apache-2.0
// The flags that say what is trained, on what and how: of every verb that predicts.
//
// A PlanFlags knows which flags were given, because tune and size search over what was not, and
// because a plan file (--plan) is changed by exactly what stands on the command line. resolve()
// turns flags into the model, profile and plan of a prediction; what nobody gave has a default.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags/command_line.h"
#include "sim/core/model.h"
#include "sim/core/plan_json.h"
#include "sim/core/plan_knobs.h"
#include "sim/job.h"

namespace shardwright::cli {

// What is trained, in the words of who fine-tunes: a task stands for a few knobs and for the
// framework that is usual for it.

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

struct PlanFlags {
  std::optional<std::string> model, cluster, stack, plan_file;
  std::optional<std::int64_t> gpus, global_batch;
  GivenKnobs knobs;
  std::optional<TrainingTask> task;
  std::vector<std::string> overrides;       // --set
  std::optional<double> node_network;       // bytes per second of a whole node
  std::optional<double> power_limit_watts;  // of each GPU's board

  /// Binds the flags to this object, which must stay where it is. `searched` says that the verb
  /// tries the values of a knob that is not given, instead of taking a default.
  void declare(Command& command, bool searched = false);
};

/// What is trained and on what, before any knob: what a search is about. One plan: the plan file's,
/// or the defaults, with GPUs, sequence length and stack as given. Errors as for resolve().
sim::Job resolve_base(const PlanFlags& flags);

/// Loads what the flags name, with a plan for each strategy asked for. Not given: strategy yafsdp,
/// one node of GPUs (single: one GPU), the cluster's usual stack, sequences of the usual length and
/// the defaults of Plan. Throws Error when model or cluster is missing (wrong usage) or
/// a value makes no sense.
sim::Job resolve(const PlanFlags& flags);

/// The plan of a job that `verb` takes one of. Throws Error where --strategy names several.
const Plan& only_plan(const sim::Job& job, std::string_view verb);

// A plan that comes from elsewhere than a file of --plan, changed by the flags of the command line.

/// As resolve() with a plan file of this content.
sim::Job resolve_onto(const PlanFlags& flags, const PlanDocument& document);

}  // namespace shardwright::cli
