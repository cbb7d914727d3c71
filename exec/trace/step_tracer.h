// SPDX-License-Identifier: Apache-2.0
// What sees the work of a device from outside, kernel by kernel, where a device has such a thing
// (CUPTI); otherwise exec/recorder.h reads the device's clock around every operation.
//
// The recorder asks before a step whether it is watched. If so it says which operation the host is
// issuing, and afterwards takes over the spans that the tracer saw.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/schedule.h"
#include "sim/core/timeline.h"

namespace shardwright::exec {

/// What a device and its driver did in a step, by the clock of std::chrono::steady_clock.
/// Span::name indexes `names`: the kernel, or the call.
struct TracedStep {
  std::vector<Span> spans;  // of the device
  std::vector<Span> host;   // calls of the driver and the tracer's own doings
  std::vector<std::string> names;
  std::vector<std::string> streams;  // by Span::stream; the schedule's come first
};

class StepTracer {
 public:
  virtual ~StepTracer() = default;
  /// Before a step, outside its time: whether it is watched. The device is idle.
  virtual bool begin_step(std::int32_t step) = 0;
  /// Around the issue of an operation, on the thread that issues it.
  virtual void begin_op(OpId id) = 0;
  virtual void end_op() = 0;
  /// What was seen of this rank's last step. The device is idle.
  virtual TracedStep take_step() = 0;
  /// What was recorded so far and what recording cost: one sentence.
  virtual std::string report() const = 0;
};

}  // namespace shardwright::exec
