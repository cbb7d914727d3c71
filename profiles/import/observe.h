// SPDX-License-Identifier: Apache-2.0
// Makes observations of the joined tables of one process.
//
// Device work is grouped by the operator that launched it: a product that ran as a split-k kernel
// and its reduction is one observation, as is the backward of attention with its three kernels.
// Collectives become observations one by one. What has no operator with known shapes around its
// launch is left out, under the name of its operator or, without one, of its kernel.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "profiles/import/import_observations.h"
#include "profiles/import/trace_tables.h"
#include "profiles/observation.h"

namespace shardwright::profiles {

/// The numbers of collectives, shared by the ranks of a job: by group, step, operation, bytes and
/// turn.
class CollectiveInstances {
 public:
  std::int64_t number(const std::string& group, std::int32_t step, OpKind op, std::int64_t bytes,
                      std::int64_t turn) {
    const auto next = static_cast<std::int64_t>(numbers_.size());
    return numbers_.try_emplace({group, step, static_cast<int>(op), bytes, turn}, next)
        .first->second;
  }

 private:
  std::map<std::tuple<std::string, std::int32_t, int, std::int64_t, std::int64_t>, std::int64_t>
      numbers_;
};

/// Appends to `set` the source and what it shows. `tables` must be joined.
void observe(const TraceTables& tables, const ImportOptions& options,
             CollectiveInstances& instances, ObservationSet& set);

}  // namespace shardwright::profiles
