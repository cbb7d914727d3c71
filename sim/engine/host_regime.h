// SPDX-License-Identifier: Apache-2.0
// Whether a step lasts as long as its kernels or as long as the host takes to issue them.
//
// The host runs ahead of the device, so that its work costs nothing until a pass is over sooner
// than it can be issued. Kernels take longer with more tokens, launches and Python do not: what the
// host needs for a micro-batch over what the device needs says how many times more tokens it would
// have to hold for the host to keep up.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/core/schedule.h"
#include "sim/engine/engine.h"

namespace shardwright::sim {

enum class HostRegime : std::uint8_t { kDevice, kMixed, kHost };
/// "device-bound", "mixed", "host-bound".
std::string_view name_of(HostRegime regime);

struct HostShare {
  double issues_s = 0;  // what the host works in a step, waiting for nothing
  double device_s = 0;  // kernels, and communication that nothing hides
  double waited_s = 0;  // the device, for the host

  /// Bound by the host where it needs longer than the device for what it issues; mixed where the
  /// device waits more than a twentieth of both's time.
  HostRegime regime() const;
  /// Tokens of a micro-batch of `tokens` at which device and host take equally long; 0 where
  /// nothing is issued.
  double crossing_tokens(double tokens) const;
};

/// What the host works for the operations of a section, once.
Nanoseconds issued_ns(const Schedule& schedule, const std::vector<OpCost>& costs,
                      const Section& section);

/// Of kernels: those that multiply, bound by arithmetic where they are large, and those that only
/// move memory.
struct KernelTimes {
  Nanoseconds gemm_ns = 0, attention_ns = 0, memory_ns = 0;
  void add(const KernelTimes& other, std::int64_t times);
};
/// Of the operations of a section, once, each alone on the device.
KernelTimes kernel_times(const Schedule& schedule, const std::vector<OpCost>& costs,
                         const Section& section);

/// What bounds a step.
enum class StepRegime : std::uint8_t { kCompute, kCommunication, kHost, kMemory };
/// "compute", "communication", "host", "memory".
std::string_view name_of(StepRegime regime);
/// The host, where it needs longer than the device; else what the step spends most on: products,
/// communication that nothing hides, or kernels that move memory.
StepRegime step_regime(const HostShare& host, const KernelTimes& kernels, double exposed_s);

}  // namespace shardwright::sim
