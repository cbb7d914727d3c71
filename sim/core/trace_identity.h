// SPDX-License-Identifier: Apache-2.0
// What a trace says of the plan that its operations belong to, so that whoever has the trace has
// the schedule: it travels in the trace's notes (otherData of a Chrome trace).
//
// With it the plan is lowered again and every slice's id finds its operation, and two traces of
// different plans are told apart by what differs instead of by nonsense.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/plan.h"
#include "sim/core/units.h"

namespace shardwright {

struct TraceIdentity {
  std::string model;         // name or path as given
  std::string model_config;  // the text of its config.json
  Plan plan;                 // with its stack
  std::int64_t gpus_per_node = 1;
};

using TraceNotes = std::vector<std::pair<std::string, std::string>>;

/// The notes that carry the identity.
TraceNotes notes_of(const TraceIdentity& identity);

/// Where a measured trace was recorded.
struct TraceOrigin {
  std::string device;       // "host" or "cuda"
  std::string device_name;  // "NVIDIA H200", "AMD EPYC"
  std::int64_t units = 0;   // SMs, or threads that compute
  Bytes memory_bytes = 0;
  std::int64_t devices = 0;      // that all ranks share; 0: each has its own
  std::string streams;           // "inline": operations run as they are issued; "virtual": side by
                                 // side, none slowing another
  std::string software;          // "NCCL 2.21.5"
  std::string date;              // YYYY-MM-DD
  std::string transport{};       // how ranks reached each other: "local", "nccl", "mpi"
  std::vector<double> step_s{};  // how long each step in it took
};
TraceNotes notes_of(const TraceOrigin& origin);
/// As far as the notes say; what is damaged in them counts as not said.
TraceOrigin origin_in(const std::map<std::string, std::string>& notes);

/// The identity in the notes of the trace `name`; none where a trace was written without. Throws
/// Error when it is damaged.
std::optional<TraceIdentity> identity_in(const std::map<std::string, std::string>& notes,
                                         const std::string& name);

/// What differs, one clause each: "grad_accum is 2, not 1", "the model's hidden_size is 64, not
/// 128". `other` is what it is compared with. Empty: nothing.
std::vector<std::string> differences(const TraceIdentity& identity, const TraceIdentity& other);

}  // namespace shardwright
