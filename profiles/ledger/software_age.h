// SPDX-License-Identifier: Apache-2.0
// What products in fp8 and fp4 of a young GPU reached with older software: cuBLAS and
// TransformerEngine grew month by month, so a published step of an older release is predicted with
// less of the share that gpu_cost.json gives, which is today's (fitted/software_age.json).
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "profiles/ledger/ledger.h"

namespace shardwright::profiles {

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
/// The shipped file, <data_dir>/fitted/software_age.json, read once; none there: nothing is lost.
const SoftwareAge& software_age();

}  // namespace shardwright::profiles
