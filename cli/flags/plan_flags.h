// The flags that say what is trained, on what and how: shared by predict, tune, size and run.
//
// A PlanFlags knows which flags were given, because tune and size search over what was not, and
// because a plan file (--plan) is changed by exactly what stands on the command line. resolve()
// turns flags into the model, profile and plan of a prediction; what nobody gave has a default.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/flags/command_line.h"
#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"

namespace shardwright::cli {

/// --ckpt-layers: a number of layers, or all of them.
struct CheckpointedLayers {
  bool all = false;
  std::int64_t count = 0;
};

struct PlanFlags {
  std::optional<std::string> model, cluster, stack, recompute;
  std::optional<std::int64_t> gpus, seq_len, micro_batch, grad_accum, shard_group;
  std::optional<std::int64_t> buffers, prefetch;
  std::optional<CheckpointedLayers> ckpt_layers;
  std::vector<Strategy> strategies;  // empty: not given
  std::optional<DType> param_dtype, reduce_dtype, moment_dtype;
  std::optional<AttentionKind> attention;
  std::vector<std::string> overrides;  // --set
  std::optional<std::string> plan_file;

  /// Binds the flags to this object, which must stay where it is. `searched` says that the verb
  /// tries the values of a knob that is not given, instead of taking a default.
  void declare(Command& command, bool searched = false);
};

/// What is trained and on what, before any knob: what a search is about.
struct Job {
  std::string model_name, cluster_name;  // as given, for files and messages
  Model model;
  profiles::Profile profile;
  std::vector<std::string> overrides;  // --set, the plan file's before the command line's
  Plan plan;  // the plan file's, or the defaults; with GPUs, sequence length and stack as given
};

/// Loads what the flags name; defaults and errors as for resolve().
Job resolve_job(const PlanFlags& flags);

/// What the flags mean. `plans` has one entry for each strategy asked for, at least one.
struct PlanInputs {
  std::string model_name, cluster_name;  // as given, for files and messages
  Model model;
  profiles::Profile profile;
  std::vector<std::string> overrides;
  std::vector<Plan> plans;
};

/// Loads what the flags name. Not given: strategy yafsdp, one node of GPUs (single: one GPU), the
/// stack native, sequences of 2048 tokens or what the model takes, and the defaults of Plan. Throws
/// Error when model or cluster is missing (wrong usage) or a value makes no sense.
PlanInputs resolve(const PlanFlags& flags);

}  // namespace shardwright::cli
