// SPDX-License-Identifier: Apache-2.0
// The table of published runs.
#include "profiles/ledger/ledger.h"

#include "sim/core/base/check.h"
#include "tests/fuzz/fuzz_target.h"

namespace shardwright::fuzz {
namespace {

void fuzz_ledger(std::string_view input) {
  for (const profiles::LedgerRow& row :
       profiles::read_ledger(CsvTable::parse(std::string(input), "ledger.csv"))) {
    SHARDWRIGHT_CHECK(!row.iteration_s || *row.iteration_s > 0, "line {}", row.line);
    SHARDWRIGHT_CHECK(!row.peak_gib || *row.peak_gib > 0, "line {}", row.line);
    SHARDWRIGHT_CHECK(row.model.layers > 0 && row.plan.gpus > 0, "line {}", row.line);
  }
}

SHARDWRIGHT_FUZZ_TARGET(ledger, fuzz_ledger, nullptr);

}  // namespace
}  // namespace shardwright::fuzz
