// SPDX-License-Identifier: Apache-2.0
// Why a step takes as long as it does, and what one change would buy.
//
// Each part of the step is told apart by what bounds it. The changes are tried, not
// guessed: each alters one thing about the plan, the software or the hardware and predicts again.
// They are ranked by tokens per second, because some of them change the batch.
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

namespace shardwright::sim {

// What bounds each part of a step, read off its timeline.
//
// The step is cut where kernels change phase: forward (with the loss), backward (with recomputation
// and the kernels of reduction), optimizer (with the gradient's norm), and the ends: what stands
// before the first kernel, between backward and optimizer and after the last kernel, where nothing
// hides anything. Within a part every instant is either a kernel, or a wait for communication (only
// collectives run), or a wait for the host.

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

enum class ChangeKind : std::uint8_t { kPlan, kSoftware, kHardware };
std::string_view name_of(ChangeKind kind);

struct Change {
  ChangeKind kind = ChangeKind::kPlan;
  std::string what;  // "twice the NIC bandwidth"
  std::string also;  // a consequence that a user should know: "doubles the batch"
  double iteration_s = 0;
  double gain = 0;        // tokens per second against the plan as it is, minus 1
  Bytes total_bytes = 0;  // of memory
  bool fits = false;
};

struct Explanation {
  StepParts parts;
  Prediction base;
  std::vector<Change> changes;  // best first
};

/// Predicts `plan` and its changes with the predictor's model and profile. Changes that the plan
/// does not admit are left out. Throws Error when the plan itself cannot be predicted.
Explanation explain(Predictor& predictor, const Plan& plan);

// What it costs that tokens do not choose experts equally often: the same plan with forced balance,
// held beside.

/// Of a prediction of `predictor`; none of models without experts, of experts with a capacity and
/// of plans that force balance.
std::optional<RoutingPrice> routing_price(Predictor& predictor, const Prediction& prediction);

// What a step takes when kernels vary from rank to rank and from run to run (predict --jitter).

struct Jitter {
  double kernel_spread = 0;  // standard deviation of a kernel's time, as a fraction
  int ranks = 0;             // simulated; the slowest stands for all
  double slowdown = 0;       // of the step, as a fraction
  double iteration_s = 0;    // of the slowest rank
  double waiting_s = 0;      // mean over ranks: in collectives that the last rank has not joined
  double bubble_s = 0;       // of pipelines: what a stage waits longer for others, the mean
  /// Of communication that nothing hides: what waiting for the last rank adds, the mean.
  double exposed_s = 0;
  bool settled = true;  // false: the ranks' joining times had not settled, a lower bound
};

/// For the plan that `predictor` predicted last, see sim/engine/stragglers.h; of a pipeline
/// sim/pipeline/joint_stages.h. `rank_spread` as of RankDraws.
Jitter jitter_of(const Predictor& predictor, const Prediction& prediction, double kernel_spread,
                 std::optional<double> rank_spread = {});

}  // namespace shardwright::sim
