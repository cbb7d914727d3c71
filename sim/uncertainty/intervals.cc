// SPDX-License-Identifier: Apache-2.0
#include "sim/uncertainty/intervals.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "profiles/uncertainty/anchored_uncertainty.h"
#include "profiles/uncertainty/scale_uncertainty.h"
#include "sim/core/base/portable_math.h"
#include "sim/cost/scale.h"
#include "sim/uncertainty/conformal.h"
#include "sim/uncertainty/extrapolation.h"
#include "sim/uncertainty/memory_uncertainty.h"

namespace shardwright::sim {
namespace {

bool names(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// What a measured step leaves of `half_width`. What many GPUs lose, one node does not show.
double anchored_half_width(const TimePrediction& time, bool model_parallel, double half_width) {
  const double scale = std::min(time.scale_half_width, half_width);
  const double of_machine = std::sqrt(half_width * half_width - scale * scale);
  const double narrowed = profiles::anchored_uncertainty().half_width(model_parallel, of_machine);
  return std::sqrt(narrowed * narrowed + scale * scale);
}

}  // namespace

double published_half_width(Prediction& prediction, const Model& model,
                            const profiles::Profile& profile, const std::string& source) {
  const profiles::Uncertainty& known = profile.uncertainty;
  TimePrediction& time = prediction.time;
  time.novelty =
      novelty_of(known, source, profile.stack.family, profile.cluster.gpu.id, model.name);
  Uncertainties uncertainties;
  // Somebody else's cluster: what others have on the same GPU says less than one's own runs.
  uncertainties.novelty = has_seen_source(known, source)
                              ? time.novelty
                              : std::max(time.novelty, profiles::Novelty::kSourceOnly);
  time.anchored = names(profile.anchored_models, model.name);
  if (!time.anchored && !profile.anchored_models.empty()) {
    prediction.extrapolated.push_back(
        fmt::format("model {}: the profile was anchored by a step of {}, which says nothing "
                    "measurable of other models",
                    model.name, fmt::join(profile.anchored_models, ", ")));
  }
  // An input that no run had makes a run less known than its cell; a GPU that nobody ran, less than
  // others of its source.
  if (!prediction.extrapolated.empty())
    uncertainties.novelty = std::max(uncertainties.novelty, profiles::Novelty::kSourceOnly);
  const bool new_gpu = !has_seen_gpu(known, profile.cluster.gpu.id);
  if (new_gpu) uncertainties.novelty = profiles::Novelty::kNothing;
  uncertainties.guessed = profile.cluster.gpu.is_processor();
  uncertainties.retries = prediction.memory.allocator_retries > 0;
  // Rates of its kernels that nobody measured are one input more.
  const bool estimated = profile.cost.gemm.provenance.confidence == "estimate";
  uncertainties.extrapolations = prediction.extrapolated.size() + (new_gpu && estimated ? 1 : 0);
  // Whose runs are published has a loss of scale of its own; others get the mean of all.
  if (!has_seen_source(known, source)) {
    uncertainties.scale_half_width = profiles::scale_uncertainty().half_width(
        profile.cluster.network, doublings_beyond_node(profile.cluster, prediction.plan.gpus));
    time.scale_half_width = uncertainties.scale_half_width;
  }
  if (prediction.other_tie_order_s > 0) {
    uncertainties.ties_half_width =
        std::abs(portable_log(prediction.other_tie_order_s / time.iteration_s)) / 2;
  }
  return half_width(known, uncertainties);
}

void set_intervals(Prediction& prediction, const profiles::Profile& profile, double half_width) {
  TimePrediction& time = prediction.time;
  if (time.anchored) half_width = anchored_half_width(time, !prediction.stages.empty(), half_width);
  const auto interval = interval_around(time.iteration_s, half_width);
  std::copy(interval.begin(), interval.end(), time.interval_s);
  time.interval_level = profile.uncertainty.level;

  set_memory_interval(prediction.memory, memory_widths(profile));
}

void set_memory_interval(MemoryPrediction& memory, const profiles::MemoryWidths& widths) {
  const auto reserved = static_cast<double>(memory.total_bytes - memory.runtime_bytes);
  const auto at = [&](double log) {
    return static_cast<Bytes>(reserved * portable_exp(log)) + memory.runtime_bytes;
  };
  memory.interval_bytes[0] = at(-widths.less);
  memory.interval_bytes[1] = at(widths.more);
  memory.verdict = !memory.fits                                      ? MemoryVerdict::kDoesNotFit
                   : memory.interval_bytes[1] <= memory.usable_bytes ? MemoryVerdict::kFits
                                                                     : MemoryVerdict::kTight;
}

}  // namespace shardwright::sim
