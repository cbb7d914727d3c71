// SPDX-License-Identifier: Apache-2.0
// A published run on other GPUs and of another release, for tests of what these change.
#pragma once

#include <string>

#include "profiles/data_file.h"
#include "profiles/ledger/ledger.h"

namespace shardwright::profiles {

/// Llama 3.1 405B in tensorwise fp8.
inline LedgerRow published_run(const std::string& gpu, const std::string& software) {
  for (LedgerRow& row : load_ledger(data_dir() / "published" / "parallel.csv")) {
    if (row.id != "p1175") continue;
    row.gpu = gpu;
    row.software = software;
    return row;
  }
  return {};
}

}  // namespace shardwright::profiles
