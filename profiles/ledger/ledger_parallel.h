// SPDX-License-Identifier: Apache-2.0
// The columns of a ledger that tell how a run divided its model, in what precision, and which
// software's preset it was: those of published/parallel.csv.
//
// A table without them is one of data parallelism. Empty fields leave what the software usually
// does. What no plan can express yet is no error here: the row says why it cannot be predicted.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "profiles/ledger/ledger.h"
#include "sim/core/base/csv.h"
#include "sim/core/plan_knobs.h"

namespace shardwright::profiles {

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

}  // namespace shardwright::profiles
