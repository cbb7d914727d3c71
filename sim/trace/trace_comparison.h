// SPDX-License-Identifier: Apache-2.0
// A predicted step subtracted from a measured one: operation by operation, by class and phase, and
// by cause.
//
// The difference of the two step times is shared out without rest. Every operation brings the
// difference of its exposed times (step_summary.h), which is told apart by what differs:
//
//     r_m D_m - r_p D_p = (r_m + r_p)/2 (D_m - D_p) + (r_m - r_p) (D_m + D_p)/2
//
// where D is a duration and r the exposed share of it. The second term is overlap; the first is, of
// a kernel, its time alone and what contention adds to it, of a collective, the time of its message
// and waiting for peers. Idle time is the host's or a pipeline's bubble, an operation that only one
// trace has is missing, and what medians leave over is scatter.
//
// Both traces are treated alike: medians over all their ranks and steps, or over the steps of one
// rank (of_rank). A trace compared with itself differs in nothing, exactly.
//
// Traces of different plans are compared by class, because equal ids then mean different
// operations; what differs between the plans is said.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/schedule.h"
#include "sim/core/timeline.h"
#include "sim/predict.h"
#include "sim/trace/step_summary.h"

namespace shardwright::sim {

enum class Cause : std::uint8_t {
  kKernelTime,
  kContention,
  kMessageTime,
  kWaiting,
  kOverlap,
  kHost,
  kMissing,
  kScatter,
  kBubble
};
inline constexpr std::size_t kCauses = 9;
/// "kernel time", "waiting for peers", ...
std::string_view name_of(Cause cause);

/// A class (phase and kind) or a phase (without kind).
struct ComparedClass {
  Phase phase = Phase::kForward;
  std::optional<OpKind> kind;
  std::int64_t operations = 0;  // in both
  double predicted_s = 0;       // durations of a step on one rank, the mean of a pipeline's stages
  double measured_s = 0;
  double exposed_difference_s = 0;  // its part of the difference of the steps
  double difference_s() const { return measured_s - predicted_s; }
};

struct ComparedOperation {
  OpId id = 0;
  std::string name;
  double predicted_s = 0;
  double measured_s = 0;
  double difference_s() const { return measured_s - predicted_s; }
};

struct TraceComparison {
  double predicted_step_s = 0;
  double measured_step_s = 0;
  std::int64_t predicted_ranks = 0, predicted_steps = 0;
  std::int64_t measured_ranks = 0, measured_steps = 0;
  std::vector<ComparedClass> classes;         // the largest difference first
  std::vector<ComparedClass> phases;          // in the order of a step
  std::vector<ComparedOperation> operations;  // the largest difference first; none of other plans
  std::array<double, kCauses> causes_s{};     // add up to the difference of the steps
  std::int64_t only_predicted = 0;            // operations without a counterpart
  std::int64_t only_measured = 0;
  std::vector<Slow> slow_ranks, slow_steps;  // of the measurement
  std::optional<PipelineSummary> predicted_pipeline, measured_pipeline;
  CommunicationSummary predicted_communication, measured_communication;
  std::vector<std::string> plan_differences;  // empty: the traces are of one plan
  std::vector<std::string> left_out;
  double difference_s() const { return measured_step_s - predicted_step_s; }
  double error() const { return difference_s() / predicted_step_s; }
  /// Of the difference; 0 where there is none.
  double share(double seconds) const;
};

/// Throws Error when there is nothing to compare.
TraceComparison compare_traces(const StepTrace& predicted, const StepTrace& measured);

// A simulated step with its timeline, for traces and pictures.

struct PredictedStep {
  Prediction prediction;
  std::vector<Schedule> stages;  // that the spans refer to; one without a pipeline
  Timeline timeline;
};

/// Throws Error as predict() does.
PredictedStep predicted_step(Predictor& predictor, const Plan& plan);

// How much memory live tensors take at each moment of a simulated step, by the device's clock.
//
// A timeline's own samples of a caching allocator follow the host, which runs ahead and allocates
// long before the device computes. Here a tensor counts from the begin of the operation that needs
// it to the end of the one that drops it, which is what a reader of a timeline looks for.

/// Ordered by time; starts with what is there before the first operation.
std::vector<MemorySample> memory_over_time(const Schedule& schedule, const Timeline& timeline);

}  // namespace shardwright::sim
