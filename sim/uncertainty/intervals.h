// SPDX-License-Identifier: Apache-2.0
// Puts intervals into a prediction: of its time by what is known of such runs, of its
// memory by how far published peaks were off, and from that the verdict whether it fits.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/profile.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/core/cluster.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/engine/host_regime.h"
#include "sim/prediction.h"

namespace shardwright::sim {

/// Half-width of the logarithm of the time, for a run of `source` (empty: nobody whose runs are
/// published). Reads times, extrapolated inputs and allocator retries of `prediction`; sets its
/// novelty.
double published_half_width(Prediction& prediction, const Model& model,
                            const profiles::Profile& profile, const std::string& source);

/// Time's interval of this half-width, memory's interval and verdict.
void set_intervals(Prediction& prediction, const profiles::Profile& profile, double half_width);

/// Memory's alone: of these half-widths of the logarithm of what is reserved.
void set_memory_interval(MemoryPrediction& memory, const profiles::MemoryWidths& widths);

// The interval of a step's time on a calibrated profile.
//
// Each group of costs that was calibrated brings its own half width: how far the total of the
// group's operations was off in fits that had not seen them (sim/calibrate/fit_group.h). A
// step's time is made of its kernels by group, of collectives that nothing hides, and of the host;
// the half width of the step is that of its parts, weighted by time, as if all were off in the same
// direction. Parts that nobody measured keep the half width of published runs.

/// What a step spends its time in, in seconds.
struct StepShares {
  double total_s = 0;
  double exposed_s = 0;  // waits for collectives
  double host_s = 0;     // waits for the host
};

/// `published` is the half width by published runs. The same when no group is calibrated.
double calibrated_half_width(const profiles::Profile& profile, const KernelTimes& kernels,
                             const StepShares& shares, double published);

// How much is known of runs like one, and the interval around a predicted time.
//
// Widths are found from held-out errors by conformal prediction (profiles/research/conformal.py)
// and recorded in profiles/data/fitted.

/// What is known of runs like one of this source (empty: a source of which nothing is known) on
/// this stack, GPU and model; see add_run in extrapolation.h for what is recorded.
profiles::Novelty novelty_of(const profiles::Uncertainty& uncertainty, std::string_view source,
                             std::string_view stack, std::string_view gpu, std::string_view model);

/// {time e^-h, time e^h}.
std::array<double, 2> interval_around(double time_s, double half_width);

// How far a prediction of peak memory may be off.
//
// Nothing is fitted to peaks, so that their errors are as good as held out. What a run needs beyond
// the prediction decides whether it fits, and what it needs less only what was paid for in vain:
// each side has a conformal width of its own, at half of what the interval may miss. Software of
// which peaks were measured takes the errors of runs. Of other software (its loss, what it keeps,
// its allocator's settings) nobody has checked the description: it takes those of a new source,
// drawn before its run, as the widths of times do with cells.

/// Shares of a side's width at the published level of 90 %: beyond them lie a tenth, on the side of
/// more, and six tenths, on that of less, of what a run may need, were errors normal. In between a
/// plan is tight.
inline constexpr double kTenthBeyond = 0.779, kSixTenthsBeyond = 0.154;

/// Those of the profile's software. Static memory, which is planned to the byte and tested to be,
/// takes those of measured software; where fragmentation is estimated, runs of such software tell.
profiles::MemoryWidths memory_widths(const profiles::Profile& profile);

// How much memory a plan should leave so that it runs out of it in one case of ten at most.

/// As a share of what a rank may use of its device, when `ranks` train together: plans that leave
/// it have the verdict "fits". 0 where no interval of memory is known.
double asked_headroom(const profiles::Profile& profile, std::int64_t ranks);

// Says in words which inputs of a prediction lie outside what published runs checked.
//
// Two kinds of input: numbers, compared with the smallest and largest among the runs, and words
// (GPU, stack, strategy, ..), which some run has or none. The same two lists record what the runs
// cover and check a prediction, so that nothing can be checked that was not recorded.

/// Widens ranges and words of `uncertainty` by one run. Here and below `stack` is the stack's id;
/// that of the plan may be a path.
void add_run(profiles::Uncertainty& uncertainty, const Model& model, const Cluster& cluster,
             std::string_view stack, const Plan& plan, std::string_view source);

/// One sentence for each input outside: "seq_len 131072 is above the largest fitted, 65536",
/// "gpu b200: no training run in the ledger". Empty when nothing is known of the runs.
/// Plans whose ranks share more than data are compared with published runs that do, and so are
/// plans of frameworks of which nothing else is published.
std::vector<std::string> extrapolations(const profiles::Profile& profile, const Model& model,
                                        const Plan& plan);

/// Whether some run has this stack on this GPU; whether three cells or more have.
bool seen_on_gpu(const profiles::Uncertainty& uncertainty, std::string_view stack,
                 std::string_view gpu);
bool has_seen_often(const profiles::Uncertainty& uncertainty, std::string_view stack,
                    std::string_view gpu);
bool has_seen_gpu(const profiles::Uncertainty& uncertainty, std::string_view gpu);
bool has_seen_source(const profiles::Uncertainty& uncertainty, std::string_view source);
/// This source's runs of this model on this GPU, by this stack.
bool has_seen_cell(const profiles::Uncertainty& uncertainty, std::string_view source,
                   std::string_view stack, std::string_view gpu, std::string_view model);

}  // namespace shardwright::sim
