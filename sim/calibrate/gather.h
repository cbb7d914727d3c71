// SPDX-License-Identifier: Apache-2.0
// Traces and logs of any known kind as one set of observations.
//
// Own traces are read with the plan they carry (sim/trace/observations.h), all others by
// profiles/import. A trace's operations on a processor also say what the processor is: its cores
// and memory replace those of a generic profile.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "profiles/cluster_file.h"
#include "profiles/import/import_observations.h"
#include "profiles/profile.h"
#include "sim/core/trace_identity.h"

namespace shardwright::sim {

struct Gathered {
  profiles::ObservationSet set;
  std::optional<TraceIdentity> identity;  // of the first own trace
};

/// Throws Error as the importers do.
Gathered gather(const std::vector<std::filesystem::path>& files,
                const profiles::ImportOptions& options = {});

/// Appends `more`, its sources and instances numbered on.
void append(profiles::ObservationSet& set, profiles::ObservationSet more);

/// Where `profile` is of a processor and the sources say how many cores it has: sets them, its
/// memory, and rates in proportion to the cores. Returns what was set, as entries of a cluster
/// file.
std::vector<profiles::SetEntry> adopt_processor(
    const std::vector<profiles::ObservationSource>& sources, const std::string& date,
    profiles::Profile& profile);

}  // namespace shardwright::sim
