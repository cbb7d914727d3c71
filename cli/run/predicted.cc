// SPDX-License-Identifier: Apache-2.0
#include "cli/run/predicted.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "cli/machine/host_profile.h"
#include "profiles/profile.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/core/layout.h"
#include "sim/pipeline/places_free.h"
#include "sim/predict.h"

namespace shardwright::cli {
namespace {

sim::UsedGpus used_gpus(const RunOptions& options) {
  if (options.gpus.empty()) return {};
  const OfferedGpu& gpu = options.gpus.front();
  return {{gpu.name, gpu.multiprocessors, gpu.memory_bytes},
          static_cast<std::int64_t>(options.gpus.size())};
}

profiles::Profile asked_profile(const RunOptions& options) {
  return profiles::make_profile(cluster_file_of(options), profiles::load_stack("native"),
                                options.overrides);
}

/// The profile that a run is predicted with: the one that is asked for, else that of the GPUs it
/// runs on, or the host's. A plan that was tuned for GPUs says nothing about the processor.
/// `cluster` becomes the name of what it starts from.
profiles::Profile profile_of_run(RunOptions& options, std::string& cluster) {
  const bool on_gpu = options.device == DeviceKind::kCuda;
  if (!options.cluster.empty() && options.cluster != kHostCluster) {
    profiles::Profile profile = asked_profile(options);
    const Gpu& gpu = profile.cluster.gpu;
    const bool runs_alike = gpu.independent_streams == !options.network.empty();
    if (options.cluster_given || (gpu.is_processor() != on_gpu && runs_alike)) {
      cluster = options.predicted_for = options.cluster;
      return profile;
    }
  }
  if (!options.network.empty()) {
    profiles::Profile profile = virtual_profile(options.network);
    // Of other clusters only the network is meant.
    cluster = profile.cluster.id == kVirtualCluster ? kVirtualCluster : options.network;
    options.predicted_for = fmt::format("{} (virtual clocks)", options.network);
    return profile;
  }
  if (on_gpu) {
    options.predicted_for = options.gpus.front().name;
    profiles::Profile profile = sim::gpu_profile(used_gpus(options), options.plan.gpus);
    cluster = profile.cluster.id;
    return profile;
  }
  cluster = kHostCluster;
  options.predicted_for = fmt::format("{} ({} threads, generic)", kHostCluster, options.threads);
  return host_profile(options.threads, options.cluster == kHostCluster
                                           ? options.overrides
                                           : std::vector<std::string>());
}

/// The cluster that steps are predicted for as a file: what it starts from, with the values of this
/// machine. Nodes are as the plan is lowered for, where all ranks are in one.
profiles::ClusterFile file_of(profiles::Profile profile, const RunOptions& options,
                              const Predicted& predicted) {
  const bool own = !options.cluster_file.empty() && predicted.cluster == options.cluster;
  if (predicted.gpus_per_node >= options.plan.gpus)
    profile.cluster.gpus_per_node = predicted.gpus_per_node;
  return profiles::cluster_file_of(
      profile, own ? cluster_file_of(options) : profiles::load_cluster(predicted.cluster));
}

}  // namespace

Predicted lower_and_predict(RunOptions& options, bool packs_documents) {
  Predicted predicted;
  predicted.gpus_per_node = options.plan.gpus;
  // Ranks of the host are all on this machine, however many had the plan that is run.
  if (!options.network.empty()) {
    predicted.gpus_per_node = virtual_profile(options.network).cluster.gpus_per_node;
  } else if (!options.cluster.empty() && options.cluster != kHostCluster) {
    predicted.gpus_per_node = asked_profile(options).cluster.gpus_per_node;
  }
  predicted.utilisation = sim::utilisation_of(options.model, options.plan, used_gpus(options));
  try {
    sim::PredictOptions fast;
    fast.reserved = false;
    profiles::Profile profile = profile_of_run(options, predicted.cluster);
    profile.stack.packs_documents = packs_documents;
    profile.cluster = filled(std::move(profile.cluster), options.plan.gpus);
    predicted.attention = sim::planned_attention(options.model, options.plan, profile);
    predicted.cluster_file = file_of(profile, options, predicted);
    if (options.plan.numerics.precision != Precision::kFp8)
      sim::count_measured_products(predicted.utilisation, profile, options.plan.param_dtype);
    predicted.step_s = sim::predict(options.model, profile, options.plan, fast).time.iteration_s;
  } catch (const Error& error) {
    std::string note =
        fmt::format("no step time is predicted for {}: {}", options.predicted_for, error.what());
    // Of a plan that is lowered again it is said once.
    if (std::find(options.notes.begin(), options.notes.end(), note) == options.notes.end())
      options.notes.push_back(std::move(note));
  }
  predicted.stages = sim::proven_step(options.model, options.plan,
                                      profiles::load_stack("native").stack, predicted.gpus_per_node)
                         .stages;
  return predicted;
}

}  // namespace shardwright::cli
