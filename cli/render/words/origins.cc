// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/origins.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "cli/render/text/quantity.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/cost/cost.h"
#include "sim/uncertainty/intervals.h"

namespace shardwright::cli {

namespace {

using profiles::Provenance;

/// Of the factor of an interval, what a measurement has to take away to be named.
constexpr double kWorthMeasuring = 0.02;

/// "fitted, median error 2.9 % held out", "published", "those of h200", "an estimate".
std::string how_known(const Provenance& from) {
  if (from.confidence == "fitted" && from.held_out.n > 0)
    return fmt::format("fitted, median error {} held out", percent(from.held_out.median));
  if (from.confidence == "analogue") {
    return from.analogue_of.empty() ? "those of a related GPU" : "those of " + from.analogue_of;
  }
  return from.confidence == "estimate" ? "an estimate" : from.confidence;
}

std::string kernels_words(const profiles::Profile& profile) {
  const profiles::GpuCost& cost = profile.cost;
  std::vector<std::string> parts = {"GEMMs " + how_known(cost.gemm.provenance)};
  const std::string& kernel = profile.stack.attention_kernel;
  const auto own = cost.attention.find(kernel);
  const auto used = own != cost.attention.end() ? own : cost.attention.find("fa2");
  if (used != cost.attention.end())
    parts.push_back(
        fmt::format("attention ({}) {}", used->first, how_known(used->second.provenance)));
  parts.push_back("other kernels " + how_known(cost.memory.provenance));
  if (profile.cluster.gpus_per_node > 1)
    parts.push_back("collectives in a node " + how_known(cost.collectives.provenance));
  std::string words =
      fmt::format("rates of {}: {}", profile.cluster.gpu.id, fmt::join(parts, "; "));
  const auto sustained = cost.gemm.apart.find("sustained_factor");
  if (sustained != cost.gemm.apart.end() && sustained->second.confidence == "fitted")
    words += "; clocks under load fitted to published steps";
  return words;
}

std::string with_origin(const profiles::Profile& profile, const std::string& value,
                        const std::string& path) {
  const auto at = profile.origins.find(path);
  if (at == profile.origins.end() || at->second.source.empty()) return value + " (as given)";
  return fmt::format("{} ({}{}{})", value, at->second.source,
                     at->second.confidence.empty() ? "" : "; confidence: ", at->second.confidence);
}

std::string network_words(const profiles::Profile& profile) {
  const Cluster& cluster = profile.cluster;
  const std::string hop = cluster.net_latency_s > 0 ? duration(cluster.net_latency_s) : "nothing";
  return fmt::format(
      "{} a node; of that {}; added to each hop: {}",
      quantity(cluster.node_net_bytes_per_s(), "byte/s"),
      with_origin(profile, percent(cluster.nic_efficiency, 0), "cluster.nic_efficiency"),
      with_origin(profile, hop, "cluster.net_latency_s"));
}

/// `widened`: the interval allows for what machines of this kind were not seen to lose.
std::string scale_words(const profiles::Profile& profile, double doublings, bool widened) {
  const profiles::ScaleUncertainty& uncertainty = profiles::scale_uncertainty();
  std::string words = fmt::format("{} of a step for each doubling beyond a node, {:.3g} here",
                                  percent(profile.cost.contention.values.scale_loss), doublings);
  if (!uncertainty.known()) return words;
  const std::string& network = profile.cluster.network;
  const bool measured = uncertainty.measured(network);
  words += fmt::format(", where {} published machines lost {:.1f} to {:.1f} %; {}",
                       uncertainty.machines, std::round(1000 * uncertainty.least_loss) / 10 + 0.0,
                       100 * uncertainty.largest_loss,
                       measured          ? fmt::format("some of them on {}", network)
                       : network.empty() ? "the kind of this network is not said"
                                         : fmt::format("none of them on {}", network));
  if (widened)
    words += fmt::format(", so the interval allows for {} a doubling",
                         percent(uncertainty.half_width(network, 1)));
  return words;
}

std::string width_words(const profiles::Profile& profile, const sim::Prediction& prediction,
                        bool widened) {
  const sim::TimePrediction& time = prediction.time;
  const double factor = time.interval_s[1] / time.iteration_s;
  if (profile.cluster.gpu.is_processor() && profile.cost.gemm.provenance.confidence == "estimate")
    return fmt::format("a factor of {:.3g}, as processors differ; nobody measured this one",
                       factor);
  const auto& calibrated = profile.calibrated_half_width;
  const char* whose = "published runs, predicted as a stranger's,";
  if (std::any_of(calibrated.begin(), calibrated.end(), [](double width) { return width > 0; }))
    whose = "the measurements that it was calibrated on, each left out";
  if (time.anchored) whose = "published runs like one that was measured, as here";
  std::string words = fmt::format("a factor of {:.3g}: how far {} of 10 steps of {} were off{}",
                                  factor, std::lround(10 * time.interval_level), whose,
                                  widened ? ", and what the scale adds" : "");
  const std::vector<NoveltyWords> added = novelty_words(profile, prediction);
  double squares = 0;
  for (const NoveltyWords& axis : added) squares += axis.adds * axis.adds;
  for (const NoveltyWords& axis : added) {
    // What the others leave: the width without this axis is the root of the rest.
    const double without = std::exp(std::sqrt(std::max(0.0, squares - axis.adds * axis.adds)));
    if (factor - without < kWorthMeasuring || axis.axis == name_of(profiles::WidthAxis::kSource))
      continue;
    words += fmt::format("; {}: without that {:.3g}, by {}", axis.what, without, axis.measure);
  }
  return words;
}

std::string memory_words(const profiles::Profile& profile, const sim::Prediction& prediction) {
  const sim::MemoryPrediction& memory = prediction.memory;
  const char* how = "every tensor and the allocator replayed";
  if (prediction.memory.estimates_fragmentation) {
    how = "tensors of the fullest stage as they live and die, fragmentation estimated";
  } else if (profile.stack.memory == MemoryManager::kStatic) {
    how = "every tensor at its place in planned arenas";
  }
  if (profile.uncertainty.memory.more == 0)
    return fmt::format("{}; no peak was ever measured", how);
  return fmt::format("{}; {} to {} with what published peaks were off", how,
                     bytes(memory.interval_bytes[0]), bytes(memory.interval_bytes[1]));
}

}  // namespace

std::vector<NumberOrigin> number_origins(const profiles::Profile& profile,
                                         const sim::Prediction& prediction) {
  const Cluster& cluster = profile.cluster;
  const Plan& plan = prediction.plan;
  std::vector<NumberOrigin> origins = {{"kernels", kernels_words(profile)}};
  const double doublings = sim::doublings_beyond_node(cluster, plan.gpus);
  const bool scaled = !profile.stack.optimizer.bucketed && sim::scale_factor(profile, plan) > 1;
  const bool widened = prediction.time.scale_half_width > 0;
  if (doublings > 0) {
    origins.push_back({"network", network_words(profile)});
    if (scaled) origins.push_back({"scale", scale_words(profile, doublings, widened)});
  }
  if (prediction.time.interval_s[1] > prediction.time.iteration_s)
    origins.push_back({"interval", width_words(profile, prediction, widened)});
  origins.push_back({"memory", memory_words(profile, prediction)});
  if (cluster.usd_per_gpu_hour > 0 && !cluster.price_note.empty()) {
    origins.push_back({"price", fmt::format("{:.2f} USD per GPU hour: {}", cluster.usd_per_gpu_hour,
                                            cluster.price_note)});
  }
  origins.push_back(
      {"to change it",
       fmt::format("a measured step of yours (`anchor`) narrows the interval, a traced one "
                   "(`calibrate`) replaces these rates; `--explain` says what bounds the step, "
                   "`inspect cluster {}` each value's source",
                   cluster.id)});
  return origins;
}

namespace {

using profiles::WidthAxis;

constexpr double kLeastShown = 5e-4;  // of a half-width: a twentieth of a percent

std::string class_of(WidthAxis axis, const profiles::Profile& profile,
                     const sim::Prediction& prediction) {
  const Plan& plan = prediction.plan;
  const std::string& gpu = profile.cluster.gpu.id;
  switch (axis) {
    case WidthAxis::kSource:
      return prediction.time.novelty <= profiles::Novelty::kStackOnGpu
                 ? "runs like it are published"
                 : "nobody published such a run";
    case WidthAxis::kModelClass:
      return "an MoE model";
    case WidthAxis::kPrecision:
      return fmt::format("{} on {}", name_of(plan.numerics.precision), gpu);
    case WidthAxis::kGpu:
      return profile.cost.gemm.provenance.confidence == "estimate" &&
                     !profiles::novelty_widths().ran_on(profile.cluster.gpu.architecture)
                 ? fmt::format("rates of {} are estimates", gpu)
                 : fmt::format("few or no published steps on {}", gpu);
    case WidthAxis::kFramework:
      return fmt::format("few or no published steps of {} with such plans", profile.stack.family);
    case WidthAxis::kSize:
      return "larger than any published run";
    case WidthAxis::kHost:
      return "layers quicker than any published ones: the host may not keep up";
    case WidthAxis::kRouting:
      return "loads of experts that nobody measured";
    case WidthAxis::kScale:
      return fmt::format("{} GPUs on several nodes", plan.gpus);
    case WidthAxis::kOrder:
      return "kernels of equal priority in either order";
    case WidthAxis::kRetries:
      return "the allocator empties its cache within a step";
  }
  return {};
}

std::string measure_of(WidthAxis axis) {
  switch (axis) {
    case WidthAxis::kSource:
    case WidthAxis::kModelClass:
    case WidthAxis::kFramework:
      return "a step of this model and framework on one node (anchor)";
    case WidthAxis::kPrecision:
    case WidthAxis::kGpu:
      return "a traced step on one node (calibrate)";
    case WidthAxis::kSize:
    case WidthAxis::kScale:
      return "steps on two numbers of nodes";
    case WidthAxis::kHost:
      return "a traced step (calibrate): what its launches take on this host";
    case WidthAxis::kRouting:
      return "how many tokens each expert takes, layer by layer";
    case WidthAxis::kOrder:
    case WidthAxis::kRetries:
      return "a step of this plan";
  }
  return {};
}

}  // namespace

std::vector<NoveltyWords> novelty_words(const profiles::Profile& profile,
                                        const sim::Prediction& prediction) {
  std::vector<NoveltyWords> words;
  const profiles::AddedWidths& added = prediction.time.added_half_widths;
  for (std::size_t i = 0; i < added.size(); ++i) {
    if (added[i] < kLeastShown) continue;
    const auto axis = static_cast<WidthAxis>(i);
    words.push_back(
        {name_of(axis), class_of(axis, profile, prediction), added[i], measure_of(axis)});
  }
  std::stable_sort(words.begin(), words.end(),
                   [](const NoveltyWords& a, const NoveltyWords& b) { return a.adds > b.adds; });
  return words;
}

}  // namespace shardwright::cli
