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

/// The identity in the notes of the trace `name`; none where a trace was written without. Throws
/// Error when it is damaged.
std::optional<TraceIdentity> identity_in(const std::map<std::string, std::string>& notes,
                                         const std::string& name);

/// What differs, one clause each: "grad_accum is 2, not 1", "the model's hidden_size is 64, not
/// 128". `other` is what it is compared with. Empty: nothing.
std::vector<std::string> differences(const TraceIdentity& identity, const TraceIdentity& other);

}  // namespace shardwright
