// SPDX-License-Identifier: Apache-2.0
// What bounds each part of a step, read off its timeline.
//
// The step is cut where kernels change phase: forward (with the loss), backward (with recomputation
// and the kernels of reduction), optimizer (with the gradient's norm), and the ends: what stands
// before the first kernel, between backward and optimizer and after the last kernel, where nothing
// hides anything. Within a part every instant is either a kernel, or a wait for communication (only
// collectives run), or a wait for the host.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "sim/core/schedule.h"
#include "sim/core/timeline.h"

namespace shardwright::sim {

enum class StepPart : std::uint8_t { kForward, kBackward, kOptimizer, kEnds };
inline constexpr int kStepParts = 4;
std::string_view name_of(StepPart part);

enum class Bound : std::uint8_t { kKernels, kCommunication, kHost };
std::string_view name_of(Bound bound);

struct PartTimes {
  double kernels_s = 0;       // some kernel runs ...
  double products_s = 0;      // ... of these: GEMMs,
  double attention_s = 0;     // attention,
  double memory_bound_s = 0;  // kernels that move memory
  double awaits_communication_s = 0;
  double awaits_host_s = 0;
  double gathers_s = 0;  // collectives issued in this part, hidden or not
  double reductions_s = 0;
  std::int64_t gathers = 0, reductions = 0;

  double total_s() const { return kernels_s + awaits_communication_s + awaits_host_s; }
  /// What the part mostly waits for; kernels when it waits for less than a twentieth of its time.
  Bound bound() const;
};

using StepParts = std::array<PartTimes, kStepParts>;

/// The parts add up to the length of the step.
StepParts part_times(const Schedule& schedule, const Timeline& timeline);

}  // namespace shardwright::sim
