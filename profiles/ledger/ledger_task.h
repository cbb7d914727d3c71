// SPDX-License-Identifier: Apache-2.0
// The columns of a ledger that tell what a run trained: `task` (pretrain, sft, lora, qlora),
// `lora_rank` and `quantize`, the last two of adapters.
//
// Tables without them pretrain. A rank that has no column of its own may stand in `notes`, as
// "LoRA dim 16"; where it stands nowhere, it is the usual one.
#pragma once

#include "profiles/ledger/ledger.h"
#include "sim/core/base/csv.h"

namespace shardwright::profiles {

/// A word that is not known goes to `unsupported`. Throws Error naming file, line and column.
void read_task(const CsvRow& row, const CsvTable& table, LedgerRow& out);

}  // namespace shardwright::profiles
