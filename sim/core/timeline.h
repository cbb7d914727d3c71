// SPDX-License-Identifier: Apache-2.0
// What happened, or will happen: spans keyed by operation id, and a memory curve. The one type for
// predicted and measured steps, so that they can be subtracted (compare) and fitted (calibrate).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/schedule.h"
#include "sim/core/units.h"

namespace shardwright {

struct Span {
  OpId id = 0;  // operation of the schedule; -1: none (foreign kernels of imported traces)
  std::int32_t rank = 0;
  std::int32_t step = 0;
  std::uint8_t stream = 0;  // index into Timeline::streams
  Nanoseconds begin_ns = 0;
  Nanoseconds end_ns = 0;
  std::int32_t name = -1;  // index into Timeline::names
};

struct MemorySample {
  Nanoseconds at_ns = 0;
  Bytes allocated_bytes = 0;
  Bytes reserved_bytes = 0;
};

struct Timeline {
  std::string source;  // "predicted" or "measured"
  std::vector<std::string> streams;
  std::vector<std::string> names;
  std::vector<Span> spans;  // ordered by begin within a rank
  std::vector<Span> host;   // what the host was doing: issuing the operation `id`, or waiting
  std::vector<MemorySample> memory;
  Nanoseconds step_ns = 0;  // length of one step
};

}  // namespace shardwright
