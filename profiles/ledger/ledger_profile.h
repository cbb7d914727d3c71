// SPDX-License-Identifier: Apache-2.0
// The profile that a row of the ledger is predicted with: its cluster, its preset of the stack,
// and the constants that only its source is known to have.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/ledger/ledger.h"
#include "profiles/profile.h"
#include "profiles/step_parameters.h"
#include "sim/core/cluster.h"
#include "sim/core/plan.h"

namespace shardwright::profiles {

/// What lowers rates in this run alone: a cap of the boards' power, software older than today's.
/// Values that `overrides` set stay. Throws Error about a cap that the GPU cannot have.
void apply_circumstances(const LedgerRow& row, const std::vector<std::string>& overrides,
                         Profile& profile);

/// `overrides` as given to --set win over everything. Throws Error.
Profile profile_of(const LedgerRow& row, const StepParameters& parameters,
                   const std::vector<std::string>& overrides = {});
/// With the parameters that ship.
Profile profile_of(const LedgerRow& row, const std::vector<std::string>& overrides = {});

// What runs of a stack set in their plans where a table does not say:
// profiles/data/published/usual_plans.json.

struct UsualPlan {
  std::optional<DType> reduce_dtype;
  /// Parameters are kept and gathered in fp8 where a tensor has one scale, or with MXFP8.
  bool fp8_params = false;
  std::string recompute;  // as a plan says it; empty: none
  /// Of runs that drop no tokens.
  std::optional<Dispatcher> dispatcher;
};

/// Of the shipped stack of that name and models of an architecture, as Hugging Face calls it, on a
/// GPU; nothing of a stack that the file does not mention. Later entries of the file go before.
UsualPlan usual_plan(const std::string& stack, std::string_view architecture, std::string_view gpu);

// The software that an answer is about where nobody names any.

/// GPUs: torch-compile, whose steps on GPUs others have published. Processors: native, this
/// project's executor, which runs there and has never run on a GPU.
std::string usual_stack(const Cluster& cluster);

/// Of model-parallel plans: megatron-core, with which most published runs of
/// that kind were made.
std::string usual_model_parallel_stack();

/// Of fine-tuning: hf-trainer, Transformers' Trainer and those built on it (TRL, axolotl).
std::string usual_fine_tuning_stack();

// What products in fp8 and fp4 of a young GPU reached with older software: cuBLAS and
// TransformerEngine grew month by month, so a published step of an older release is predicted with
// less of the share that gpu_cost.json gives, which is today's (fitted/software_age.json).

struct SoftwareAge {
  std::set<std::string> gpus;
  double lost_a_month = 0;     // of the share, for each month before `newest`
  int oldest = 0, newest = 0;  // months since the year 0; older releases lose no more
  /// Months of releases that name none, by stack and by how `version` begins.
  std::map<std::string, std::map<std::string, int>> releases;

  /// Of today's share of products in few bits, what the row's GPU and release reached; 1 where the
  /// row names no month.
  double kept(const LedgerRow& row) const;
};

/// Throws Error naming file, path, value and what is accepted.
SoftwareAge load_software_age(const std::filesystem::path& file);
/// The shipped file, profiles/data/fitted/software_age.json, read once; none there: nothing is
/// lost.
const SoftwareAge& software_age();

}  // namespace shardwright::profiles
