// SPDX-License-Identifier: Apache-2.0
// What PyTorch said of a GPU's memory: a snapshot (torch.cuda.memory._dump_snapshot) or the message
// of an OutOfMemoryError in a log.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/units.h"

namespace shardwright::cli {

struct AllocationSite {
  std::string where;  // "modeling_llama.py:231 forward"
  Bytes bytes = 0;
};

struct SeenMemory {
  std::string source;              // "snapshot", "message"
  std::optional<Bytes> capacity;   // of the device
  std::optional<Bytes> in_use;     // by the process, with what is not PyTorch's
  std::optional<Bytes> allocated;  // at the end, or where it failed
  std::optional<Bytes> reserved;
  std::optional<Bytes> peak_allocated;  // as far back as was recorded
  std::optional<Bytes> refused;         // the request that failed
  std::optional<Bytes> free;            // of the device, when it failed
  bool expandable = false;              // segments were
  std::vector<AllocationSite> largest;  // at the peak, most first

  /// What the job needed at least, context and libraries included: what was in use and what was
  /// asked for. None where nothing of it is known.
  std::optional<Bytes> needed() const;
};

/// What read_snapshot.py says of a file's bytes: they are a pickle, which Python reads in a process
/// that runs nothing of it and is bounded in time and memory. Throws Error.
SeenMemory read_snapshot(std::string_view bytes, const std::string& name);
/// The last message in a log; none where there is none.
std::optional<SeenMemory> find_message(std::string_view log, const std::string& name = "the log");

/// A file of either kind, told apart by its first bytes. Throws Error.
SeenMemory read_seen_memory(const std::string& path);

}  // namespace shardwright::cli
