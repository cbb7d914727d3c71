// SPDX-License-Identifier: Apache-2.0
// What a trace or a log says about a machine, whatever wrote it: single operations with the work
// they did and the time they took. Importers make it, calibration fits it; neither knows the other.
//
// An operation that a trace shows but whose work cannot be told (a kernel of an unknown name, a
// product without its shape) is no observation; it is counted under `left_out`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/schedule.h"
#include "sim/core/units.h"

namespace shardwright::profiles {

struct Observation {
  OpKind op = OpKind::kHostWork;  // what it was for; kHostWork: not known
  Phase phase = Phase::kForward;
  Work work;           // kHost: launching `kernels` kernels; 0: what a step adds to them
  double seconds = 0;  // on the device (kHost: on the host)
  /// Share of `seconds` in which a collective was resident (of a collective: a kernel ran).
  double contended = 0;
  /// Of collectives. `seconds` contains waiting for the slowest rank: use the least over ranks of
  /// those with the same `instance`, which numbers the collectives of a group and step.
  std::int64_t ranks = 1;
  std::int64_t nodes = 1;
  std::int64_t instance = -1;
  std::int32_t sharers = 1;  // ranks that shared the device evenly while it ran
  std::int32_t rank = 0;
  std::int32_t step = 0;    // -1: outside the steps that the trace names
  std::int32_t source = 0;  // index into ObservationSet::sources
  std::int64_t batch = 1;   // of products: independent ones of this size in the one launch
  std::int32_t unit = -1;   // sharded unit, index into ObservationSet::units; -1: not known
};

/// What was not used, and how much of the measured time it is.
struct LeftOut {
  std::string what;  // "kernels of an unknown name: vectorized_gather_kernel"
  std::int64_t count = 0;
  double seconds = 0;
};

/// One file and what it says of where it was recorded; empty or 0 where it does not say.
struct ObservationSource {
  std::string file;
  std::string format;  // "shardwright", "kineto", "nccl-tests", "nsys"
  std::string gpu;     // "NVIDIA H200"
  std::int64_t sm_count = 0;
  Bytes memory_bytes = 0;
  std::int64_t world_size = 0;
  std::int32_t rank = 0;
  std::string software;  // "NCCL 2.21.5"
  std::string date;      // YYYY-MM-DD
  bool truncated = false;
  /// Durations of the steps that lie in it whole.
  std::vector<double> step_s;
};

struct ObservationSet {
  std::vector<ObservationSource> sources;
  std::vector<Observation> observations;
  std::vector<LeftOut> left_out;
  double kernel_seconds = 0;       // of everything on devices, used or left out
  std::vector<std::string> notes;  // sentences for the reader
  std::vector<std::string> units;  // names of sharded units: "layers.3"
};

}  // namespace shardwright::profiles
