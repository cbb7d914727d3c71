// SPDX-License-Identifier: Apache-2.0
// What a prediction says: of a step's time, memory and communication, with their intervals.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/uncertainty/uncertainty.h"
#include "sim/accounting.h"
#include "sim/core/plan.h"
#include "sim/core/schedule.h"
#include "sim/engine/host_regime.h"

namespace shardwright::sim {

/// By the chance that the run goes out of memory: below a tenth, up to six tenths (also where a
/// little more is expected than there is), or above.
enum class MemoryVerdict : std::uint8_t { kFits, kTight, kDoesNotFit };
/// "fits", "tight", "does not fit".
inline std::string_view name_of(MemoryVerdict verdict) {
  return verdict == MemoryVerdict::kFits    ? "fits"
         : verdict == MemoryVerdict::kTight ? "tight"
                                            : "does not fit";
}

struct MemoryPrediction {
  bool fits = false;               // what is expected; for verbs see verdict
  Bytes peak_allocated_bytes = 0;  // as torch.cuda.max_memory_allocated; static stacks: the arenas
  Bytes peak_active_bytes = 0;     // and blocks that wait for another stream
  Bytes peak_reserved_bytes = 0;   // as torch.cuda.max_memory_reserved
  Bytes runtime_bytes = 0;         // context, libraries, communicators
  Bytes total_bytes = 0;           // reserved and runtime
  Bytes interval_bytes[2] = {0, 0};  // of total_bytes, at TimePrediction::interval_level
  MemoryVerdict verdict = MemoryVerdict::kDoesNotFit;
  Bytes usable_bytes = 0;                // as CUDA reports the device
  bool of_stranger = false;              // whose settings of the allocator nobody published
  bool given_up = false;                 // at PredictOptions::most_bytes; nothing else is known
  bool estimates_fragmentation = false;  // no allocator is replayed over the step
  std::int64_t allocator_retries = 0;    // cudaMalloc failures answered by freeing the cache
  std::string peak_at;                   // the operation during which the peak is reached, in words
  std::array<Bytes, kMemoryCategories> breakdown_bytes{};  // allocated, at the peak
};

struct TimePrediction {
  double iteration_s = 0;
  double interval_s[2] = {0, 0};  // at interval_level
  double interval_level = 0.9;
  /// Of the interval's half-width (of a logarithm), what the loss with scale adds in quadrature: it
  /// is the machine's, whatever runs there.
  double scale_half_width = 0;
  /// What the half-width is made of, by axis; they add up as squares.
  profiles::AddedWidths added_half_widths{};
  bool anchored = false;  // a step of this model was measured (sim/calibrate/anchor.h)
  profiles::Novelty novelty = profiles::Novelty::kNothing;  // of the run to those published
  double compute_s = 0, exposed_communication_s = 0, host_s = 0, optimizer_s = 0;
  double tokens_per_gpu_s = 0, tokens_per_s = 0;
  double peak_flops = 0;           // dense bf16, what mfu and hfu refer to
  double model_flops_per_gpu = 0;  // per second
  double mfu = 0, hfu = 0;
  double forward_s = 0, backward_s = 0;  // compute-stream kernels by phase

  /// What the four parts leave of the iteration. The simulator gives every nanosecond to one of
  /// them, so a rest below one is rounding and counts as none.
  double other_s() const {
    const double rest = iteration_s - (compute_s + exposed_communication_s + host_s + optimizer_s);
    return std::abs(rest) < 1e-9 ? 0 : rest;
  }
};

/// One stage of a pipeline; the times add up to the step.
struct StagePrediction {
  std::int64_t stage = 0, layers = 0;
  double compute_s = 0, exposed_communication_s = 0, host_s = 0, optimizer_s = 0, bubble_s = 0;
  Bytes peak_allocated_bytes = 0, peak_reserved_bytes = 0;
  bool fits = false;
  std::array<double, kMemoryCategories> breakdown_bytes{};  // allocated, at the peak
};

struct PipelinePrediction {
  double bubble = 0;  // share of the stages' time, until the last backward pass
  std::int64_t micro_batches = 0;
  std::int64_t steady_state_after = 0;  // micro-batches that were simulated one by one
};

/// A plan whose experts get uneven rows beside the same with forced balance.
struct RoutingPrice {
  BusiestRank busiest;
  double balanced_s = 0;     // of an iteration
  Bytes balanced_bytes = 0;  // MemoryPrediction::total_bytes
};

struct Prediction {
  Plan plan;
  TimePrediction time;
  HostShare host;  // of the busiest stage, its own work between steps left out
  StepRegime regime = StepRegime::kCompute;  // of the same stage
  MemoryPrediction memory;
  CommunicationBytes communication;     // of all groups
  std::vector<StagePrediction> stages;  // of a plan without a pipeline, one
  PipelinePrediction pipeline;
  // By CommGroup, of the busiest stage: what a rank sends in a step, and what of it the step waits
  // for.
  CommunicationByGroup sent{};
  std::array<double, kCommGroups> exposed_s{};
  /// The step if kernels of side streams went before the compute stream's among equal priorities
  /// (Engine); half of the spread is in the interval. 0 without PredictOptions::reserved.
  double other_tie_order_s = 0;
  std::optional<RoutingPrice> routing;  // sim/explain/explain.h
  std::vector<std::string>
      extrapolated;  // inputs outside what the parameters were fitted on, in words
};

}  // namespace shardwright::sim
