// SPDX-License-Identifier: Apache-2.0
// The few constants that are fitted to training run steps, and what the fit found:
// profiles/data/fitted/step_parameters.json.
//
// Kernels are fitted to kernel tables (gpu_cost.h). What no kernel shows, such as the clocks that a
// GPU holds under hours of load or the host's share of a step, is one physical constant of a GPU, a
// cluster or a stack, fitted by `python3 -m profiles.research steps` to the published training
// runs. A constant is shared by everything that runs on its GPU, cluster or stack: none may belong
// to a strategy, a model or a row. The file says what is fitted, within which bounds, and around
// which prior; the fit writes the value to where the profile reads it (gpu_cost.json, the cluster
// or the stack) and repeats it here beside its interval and errors.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "profiles/gpu_cost.h"
#include "profiles/profile.h"

namespace shardwright::profiles {

/// A value of the profile that the constant sets: to `times` the constant.
struct StepTarget {
  std::string path;  // as --set takes it
  double times = 1;
};

enum class StepScope : std::uint8_t { kGpu, kCluster, kStack };
/// "gpu", "cluster", "stack".
std::string_view name_of(StepScope scope);

struct FittedStep {
  double value = 0;
  std::array<double, 2> interval{};  // at a level of 0.9
  ErrorSummary in_sample, held_out;  // of iteration times, over the rows that see the constant
};

struct StepParameter {
  std::string name;
  std::string meaning;
  StepScope scope = StepScope::kGpu;
  std::vector<std::string> applies_to;  // ids of the scope (of stacks: families), at least one
  /// Sources whose runs alone see it, because nobody else's tell anything about it; empty: all.
  /// What others see of its targets is what the profile's files hold.
  std::vector<std::string> sources;
  std::vector<StepTarget> targets;  // of one file each: cost.* of GPUs, cluster.*, stack.*
  double min = 0, max = 0;          // 0 < min < max
  double prior = 0;
  double prior_spread = 0;  // standard deviation of the logarithm
  std::string prior_source;
  std::optional<FittedStep> fitted;
};

struct StepParameters {
  std::vector<StepParameter> parameters;
};

/// The shipped file, `data_dir()`/fitted/step_parameters.json.
std::filesystem::path shipped_step_parameters();
/// Throws Error naming file and path, also for a path that no file of its scope can hold.
StepParameters load_step_parameters(const std::filesystem::path& file);

/// Whether a run of `source` with this profile sees the constant. `cluster` is
/// ClusterFile::described_by.
bool sees(const StepParameter& parameter, const Profile& profile, const std::string& cluster,
          std::string_view source);
/// The constants of `all` that such a run sees, without those whose targets a constant of the
/// source sets.
std::vector<const StepParameter*> seen_by(const std::vector<const StepParameter*>& all,
                                          const Profile& profile, const std::string& cluster,
                                          std::string_view source);

/// Whether one of `overrides`, as given to --set, sets a target of the constant.
bool is_set_by(const StepParameter& parameter, const std::vector<std::string>& overrides);

/// Sets what only runs of `source` are known to have: the fitted constants that name it, except
/// those that `overrides` set.
void apply_source_constants(const StepParameters& parameters, const std::string& cluster,
                            std::string_view source, const std::vector<std::string>& overrides,
                            Profile& profile);

/// Sets the targets of parameters[i], where the profile sees it, to values[i]. Throws Error for
/// paths that are no numbers of the profile.
void apply_steps(const std::vector<const StepParameter*>& parameters,
                 const std::vector<double>& values, Profile& profile);

}  // namespace shardwright::profiles
