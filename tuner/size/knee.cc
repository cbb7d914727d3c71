// SPDX-License-Identifier: Apache-2.0
#include "tuner/size/knee.h"

#include <algorithm>

namespace shardwright::tuner {

namespace {

/// GPU days of the whole run, by where they go.
struct GpuTime {
  double compute = 0, communication = 0, host = 0, optimizer = 0, tokens = 0, failures = 0;

  double total() const { return compute + communication + host + optimizer + tokens + failures; }
};

GpuTime gpu_time(const Sized& option) {
  const sim::TimePrediction& time = option.prediction.time;
  const auto gpus = static_cast<double>(option.gpus());
  const double steps = option.cost.ideal_days * gpus, unit = steps / time.iteration_s;
  GpuTime result;
  result.communication = unit * time.exposed_communication_s;
  result.host = unit * time.host_s;
  result.optimizer = unit * time.optimizer_s;
  result.compute = steps - result.communication - result.host - result.optimizer;
  result.tokens = steps * (option.cost.tokens_factor - 1);
  result.failures = option.cost.days * gpus - steps - result.tokens;
  return result;
}

/// The profile of a network and links that only have bandwidth.
profiles::Profile without_latency(profiles::Profile profile) {
  profile.cluster.net_latency_s = 0;
  profiles::CollectiveParams& params = profile.cost.collectives.values;
  params.ll.hop_s = params.ll128.hop_s = params.simple.hop_s = params.nvls_simple.hop_s = 0;
  profiles::NcclTable& nccl = params.nccl;
  nccl.ring_nvlink_hop_s = nccl.ring_pci_hop_s = nccl.ring_net_hop_s = {};
  nccl.tree_nvlink_hop_s = nccl.tree_pci_hop_s = nccl.tree_net_hop_s = {};
  nccl.pat_rank_s = nccl.net_overhead_intel_s = nccl.net_overhead_amd_s = 0;
  return profile;
}

double latency_share(const Model& model, const Offer& offer, const Sized& option) {
  const sim::Prediction without = sim::predict(
      model, without_latency(profile_for(offer, option.prediction.plan)), option.prediction.plan);
  return std::max(0.0, 1 - without.time.iteration_s / option.prediction.time.iteration_s);
}

Causes causes_of(const Sized& before, const Sized& after) {
  const GpuTime a = gpu_time(before), b = gpu_time(after);
  const double unit = 1 / a.total();
  return {(b.communication - a.communication) * unit,
          (b.compute - a.compute) * unit,
          (b.host - a.host) * unit,
          (b.optimizer - a.optimizer) * unit,
          (b.failures - a.failures) * unit,
          (b.tokens - a.tokens) * unit,
          0};
}

}  // namespace

Scaling scaling_of(const Model& model, const Offer& offer, std::size_t index, const Sweep& sweep) {
  Scaling scaling;
  std::vector<std::size_t> mine;
  for (std::size_t i = 0; i < sweep.options.size(); ++i) {
    const Sized& option = sweep.options[i];
    if (option.offer != index || option.cut_short || option.between) continue;
    if (option.over_critical) {
      scaling.batch_limit = true;
    } else {
      mine.push_back(i);
    }
  }
  if (mine.empty()) return scaling;
  const std::int64_t most = sweep.options[mine.back()].gpus();
  for (const LeftOut& left : sweep.left_out) {
    if (left.offer == index && left.lack == Lack::kBatch && left.gpus > most)
      scaling.batch_limit = true;
  }
  scaling.knee = mine.front();
  for (std::size_t i = 1; i < mine.size(); ++i) {
    const Sized &before = sweep.options[mine[i - 1]], &after = sweep.options[mine[i]];
    Growth growth;
    growth.from = mine[i - 1];
    growth.to = mine[i];
    growth.ideal = static_cast<double>(after.gpus()) / static_cast<double>(before.gpus());
    growth.speedup = before.cost.days / after.cost.days;
    growth.dearer = growth.ideal / growth.speedup - 1;
    if (!scaling.stops) {
      if (growth.pays()) {
        scaling.knee = mine[i];
      } else {
        scaling.stops = scaling.growth.size();
        scaling.causes = causes_of(before, after);
        scaling.causes->latency = latency_share(model, offer, after);
      }
    }
    scaling.growth.push_back(growth);
  }
  return scaling;
}

}  // namespace shardwright::tuner
