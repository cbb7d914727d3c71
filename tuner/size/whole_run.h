// SPDX-License-Identifier: Apache-2.0
// Whole published trainings: their layout, the GPU hours that they would take ideally, and the
// score.
//
// Published training runs against what would have been predicted: validate --whole-runs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/ledger/whole_runs.h"
#include "profiles/profile.h"
#include "profiles/uncertainty/production.h"
#include "sim/predict.h"
#include "tuner/search/space.h"

namespace shardwright::tuner {

// The ideal GPU hours of a published training: every token in steps as predicted, nothing lost.
//
// Where the layout is published (sharding, recomputation, micro-batch; tensor, pipeline and expert
// parallel sizes), that is held fixed and the rest is searched; where it is not
// published, the search decides on the row's GPUs and software. A dense model whose published
// division has no plan is planned with data parallelism instead. Where there is no published shape,
// or no plan at all, the step is analytic: model FLOPs at the share of the peak that published
// steady steps reach (Production::analytic_mfu). Whatever was assumed is told with the answer.

struct IdealHours {
  double gpu_hours = 0;
  double step_half_width = 0;                 // of the logarithm; 0: an analytic step
  profiles::AddedWidths added_half_widths{};  // what it is made of
  std::optional<Plan> plan;                   // none: an analytic step
  std::string stack, cluster;                 // empty: an analytic step
  std::vector<std::string> assumed;
};

/// Keeps profiles and constants between rows.
class IdealHoursOf {
 public:
  /// `analytic_mfu` as in profiles::Production.
  explicit IdealHoursOf(double analytic_mfu, std::vector<std::string> overrides = {});

  /// Of a run that can be scored (WholeRun::not_scorable is empty).
  IdealHours operator()(const profiles::WholeRun& run);

 private:
  std::optional<IdealHours> planned(const profiles::WholeRun& run,
                                    std::vector<std::string>& assumed);
  IdealHours analytic(const profiles::WholeRun& run, std::vector<std::string> assumed) const;
  const profiles::Profile& profile_of(const std::string& cluster, const std::string& stack);

  double analytic_mfu_;
  std::vector<std::string> overrides_;
  std::map<std::string, profiles::Profile, std::less<>> profiles_;  // by cluster and stack
};

/// The stack that stands for what a source calls its software, by words in it; else torch-compile
/// as it was when these models were trained.
std::string stack_of_software(const std::string& software);

/// The shipped GPU that a published name such as "a100-80g-sxm" means; empty: none.
std::string gpu_of_name(const std::string& published);

// The steps of a published training that divided its model: tensor, pipeline and expert parallel
// sizes as published, on model-parallel frameworks; what nobody published (micro-batch, virtual
// stages, context parallelism of 1, how much is recomputed) is searched.

/// Whether it divided the model, or has experts, which data parallelism alone does not express.
bool shares_more_than_data(const profiles::WholeRun& run);

/// What a word in a published name stands for.
struct NameWord {
  std::string_view in_name, meaning;
};

/// What the first of `words` that `name` holds stands for, in small letters; else `otherwise`.
std::string by_words(const std::string& name, std::span<const NameWord> words,
                     std::string_view otherwise);

/// The stack with tensor and pipeline parallelism that stands for what a source calls its software,
/// by words in it; else megatron-core.
std::string model_parallel_stack_of(const std::string& software);

/// The fastest step with the published layout. `request` holds GPUs, sequence length and
/// recomputation; its batch and layout are set here. None where nothing of that layout fits or
/// makes sense. `run` has a model. Appends what it assumed.
std::optional<sim::Prediction> published_layout(const profiles::WholeRun& run, Request request,
                                                const profiles::Profile& profile,
                                                std::vector<std::string>& assumed);

struct ScoredWholeRun {
  profiles::WholeRun run;
  std::string skipped;  // why it was not predicted; empty: it was
  IdealHours ideal;
  double gpu_hours = 0;  // of the whole run
  std::array<double, 2> interval_gpu_hours{};
  bool inside = false;

  /// Predicted over published.
  double ratio() const { return gpu_hours / run.gpu_hours; }
};

struct WholeRunSummary {
  std::int64_t n = 0, inside = 0;  // tiers A and B
  double median_ratio = 1;         // of predicted over published
  double median_width = 1;         // of the interval's upper over lower end
};

struct WholeRunScore {
  std::vector<ScoredWholeRun> runs;
  WholeRunSummary summary;
};

struct WholeRunOptions {
  std::vector<std::string> overrides;
  std::function<void(std::int64_t done)> progress;
};

WholeRunScore score_whole_runs(const std::vector<profiles::WholeRun>& runs,
                               const profiles::Production& production,
                               const WholeRunOptions& options = {});

}  // namespace shardwright::tuner
