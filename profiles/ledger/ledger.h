// SPDX-License-Identifier: Apache-2.0
// The ledger: published, real training runs as a table, one row a configuration.
//
// A row is complete in itself: the architecture, the plan and the machine are read from its own
// columns, never looked up by name, and become the Model, Plan and cluster that a prediction takes.
// What was measured stands beside them. profiles/data/published/README.md explains every column.
//
// Reading is strict. A missing column, a number that is none, a word that is not known, or sizes of
// a model that contradict each other are Errors that name file, line and column. A plan that cannot
// run on the row's machine is left to the prediction, which skips the row and says why
// (sim/score/validation.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "profiles/cluster_file.h"
#include "profiles/stack_file.h"
#include "sim/core/base/csv.h"
#include "sim/core/model.h"
#include "sim/core/parallelism.h"
#include "sim/core/plan.h"
#include "sim/core/plan_knobs.h"
#include "sim/core/stack.h"

namespace shardwright::profiles {

/// Which of the framework's counters a memory measurement is. Two kinds are never compared.
enum class MemoryCounter : std::uint8_t { kNone, kPeakAllocated, kPeakActive, kPeakReserved };

/// "", "peak_allocated", "peak_active", "peak_reserved".
std::string_view name_of(MemoryCounter counter);

struct LedgerRow {
  std::string id;
  std::string source;   // who published it
  std::string locator;  // where
  std::size_t line = 0;
  Model model;
  Plan plan;
  std::string gpu;
  std::int64_t gpus_per_node = 8;
  std::optional<double> inter_gbps_per_node;  // none: not stated, the usual network of that GPU
  std::optional<double> power_limit_w;        // of each board; none: that of its data sheet
  std::optional<double> iteration_s;
  std::string time_kind;  // "published" or "from_throughput"; empty without a time
  std::optional<double> tokens_per_gpu_s;
  std::optional<double> peak_gib;
  MemoryCounter counter = MemoryCounter::kNone;  // of peak_gib; kNone without one
  bool out_of_memory = false;                    // the run failed for want of memory
  // Of tables with parallel columns.
  std::string unsupported;   // why no plan can express the row; empty: one can
  std::string quality;       // A, B or C
  std::string version;       // of the software
  std::string stack_called;  // the software's name where another stack stands for it
  // What the source's software did; none: as its stack usually does.
  std::optional<bool> logits_kept, no_sync, kv_cache;
  std::string adapted;   // matrices that LoRA adapts: all, attention, qkv; empty: not said
  std::string software;  // its preset, in words
  std::string note;
  std::string suspect;  // why the measurement is not to be trusted; empty where it is
};

/// The shipped ledger, `data_dir()`/published/ledger.csv.
std::filesystem::path shipped_ledger();

/// Runs of sources to which nothing may be fitted: `data_dir()`/published/strangers.csv and
/// strangers_lora.csv.
std::vector<LedgerRow> load_strangers();

std::vector<LedgerRow> load_ledger(const std::filesystem::path& path);
std::vector<LedgerRow> read_ledger(const CsvTable& table);

/// The cluster that a row describes by GPU, GPUs a node and network.
ClusterFile cluster_of(const LedgerRow& row);
/// The stack that a row describes by name, preset and what its software did.
StackFile stack_of(const LedgerRow& row);

/// All that decides a row's profile: rows with equal keys share it.
using MachineKey =
    std::tuple<std::string, std::int64_t, std::optional<double>, std::string, std::string,
               std::optional<bool>, std::optional<bool>, std::optional<bool>, std::string,
               std::optional<double>, std::string, std::string>;
MachineKey machine_key(const LedgerRow& row);

// The columns of a ledger that tell how a run divided its model, in what precision, and which
// software's preset it was: those of published/parallel.csv.
//
// A table without them is one of data parallelism. Empty fields leave what the software usually
// does. What no plan can express yet is no error here: the row says why it cannot be predicted.

bool has_parallel_columns(const CsvTable& table);

/// Why a row with such a word is not predicted.
std::string unknown_word(std::string_view column, std::string_view word);

/// A knob as its column says it. An unknown word goes to `unsupported` where there is one; a number
/// out of range, and without `unsupported` a word, throws Error.
void read_knob(const CsvRow& row, const PlanKnob& knob, Plan& plan, std::string* unsupported);

/// Experts, latent attention and extra predictions of the model, and the plan's parallelism,
/// precision and modules that run again. Throws Error naming file, line and column.
void read_parallel_columns(const CsvRow& row, LedgerRow& out);

/// The shipped stack that stands for one that does not ship (stacks of a shipped name stand for
/// themselves); empty for a name that nothing is known of.
std::string shipped_stack(std::string_view name);

/// The cluster file of a machine whose owner published what its kernels reach
/// (published/machines.json); empty for other sources.
std::filesystem::path published_machine(std::string_view source, std::string_view gpu);

// The columns of a ledger that tell what a run trained: `task` (pretrain, sft, lora, qlora),
// `lora_rank` and `quantize`, the last two of adapters.
//
// Tables without them pretrain. A rank that has no column of its own may stand in `notes`, as
// "LoRA dim 16"; where it stands nowhere, it is the usual one.

/// A word that is not known goes to `unsupported`. Throws Error naming file, line and column.
void read_task(const CsvRow& row, const CsvTable& table, LedgerRow& out);

// What software does unless told, and what it offers beyond that: fields of its stack
// (sim/core/stack.h) as settings of plans.

struct SoftwareSettings {
  std::vector<TensorOverlap> tensor_overlaps;
  std::vector<Dispatcher> dispatchers;
  std::vector<PipelineKind> schedules;
  std::vector<bool> expert_overlaps;
};

SoftwareSettings software_settings(const Stack& stack);

/// What the stack does unless told. Recipes of MoE models leave tensor overlap off: attention's
/// products alone are too short; userbuffers take no operands in nvfp4 (NVIDIA's recipes and
/// MLPerf's config_common_fp4.sh turn them off).
TensorOverlap usual_overlap(const Stack& stack, const Model& model,
                            Precision precision = Precision::kBf16);
Dispatcher usual_dispatcher(const Stack& stack);

/// The same plan with nothing said that holds without it: a knob at its default, or one of what the
/// plan does not divide.
Plan without_defaults(Plan plan, const Model& model, const Stack& stack);

}  // namespace shardwright::profiles
