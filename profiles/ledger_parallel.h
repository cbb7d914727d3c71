// SPDX-License-Identifier: Apache-2.0
// The columns of a ledger that tell how a run divided its model, in what precision, and which
// software's edition it was: those of published/parallel.csv.
//
// A table without them is one of data parallelism. Empty fields leave what the software usually
// does. What no plan can express yet is no error here: the row says why it cannot be predicted.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "profiles/ledger.h"
#include "sim/core/csv.h"

namespace shardwright::profiles {

bool has_parallel_columns(const CsvTable& table);

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
