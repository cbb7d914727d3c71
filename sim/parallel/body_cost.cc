// SPDX-License-Identifier: Apache-2.0
#include "sim/parallel/body_cost.h"

#include <algorithm>
#include <numeric>

namespace shardwright::sim {

double BodyTime::exposed() const {
  return std::accumulate(exposed_s.begin(), exposed_s.end(), 0.0);
}

void BodyTime::add(const BodyTime& other, double times) {
  device_s += times * other.device_s;
  host_s += times * other.host_s;
  delayed_s += times * other.delayed_s;
  flops += times * other.flops;
  beside_others_s += times * other.beside_others_s;
  for (std::size_t g = 0; g < exposed_s.size(); ++g) {
    exposed_s[g] += times * other.exposed_s[g];
    sent[g].add(other.sent[g], times);
  }
}

/// Where both streams have come to.
struct BodyCosts::Streams {
  double compute = 0, communication = 0;
  double host = 0;          // issued
  bool drained = false;     // the host has waited: kernels start no sooner than they are issued
  double others = 0;        // taken by what runs beside other micro-batches
  double others_sms = 0;    // the SMs that it holds, times their seconds
  double others_bytes = 0;  // and what it reads and writes
  double memory = 0;        // seconds of kernels that memory bounds
  Sharing resident;         // of what runs beside
  Sharing background;       // of what other layers' collectives hold
  CommGroup group = CommGroup::kTensor;
  OpRun last;
};

void BodyCosts::run(const Op& op, Streams& s, BodyTime& result) {
  const auto exposed = [&](CommGroup group) -> double& {
    return result.exposed_s[static_cast<std::size_t>(group)];
  };
  if (s.drained) s.compute = std::max(s.compute, s.host);
  if (op.joins && s.communication > s.compute) {
    exposed(s.group) += s.communication - s.compute;
    s.compute = s.communication;
  }
  const bool alone = op.work.kind == WorkKind::kNone;
  if (op.collective.bytes > 0) {
    const std::size_t group = static_cast<std::size_t>(op.collective.group);
    result.sent[group].add(
        sent_bytes(op.collective, static_cast<double>(layout().group(op.collective.group).size)));
  }
  if (alone) {
    const CollectiveCost cost = collective(op.collective);
    if (op.collective.overlap == Overlap::kOtherMicroBatch) {
      s.others += cost.time_s * profile().cost.contention.values.nvlink_collectives;
      s.others_sms += cost.time_s * cost.channels;
      s.others_bytes += cost.hbm_bytes;
      return;
    }
    const double start = std::max(s.compute, s.communication);
    const double took = op.collective.overlap == Overlap::kNone
                            ? cost.time_s
                            : cost.time_s * profile().cost.contention.values.nvlink_collectives;
    s.last = {0, true, start, start + took};
    s.group = op.collective.group;
    if (op.collective.overlap == Overlap::kNone) {
      s.communication = s.last.end_s;
      exposed(s.group) += s.communication - s.compute;
      s.compute = s.communication;
    } else {
      s.communication = s.last.end_s;
      s.resident = sharing(cost);
      if (op.collective.sms > 0) s.resident.channels = op.collective.sms;
    }
    return;
  }
  double duration = kernel_s(op);
  if (s.background.channels > 0) {
    duration =
        std::max(duration, profile().cost.contention.values.kernels * kernel_s(op, s.background));
  }
  if (op.work.kind == WorkKind::kGemm)
    result.flops += gemm_flops(op.work.m, op.work.n, op.work.k, op.work.groups) *
                    (op.work.groups > 1 ? 1 : op.work.kernels);
  if (op.collective.bytes > 0) {
    const double whole = with_collective_s(op, duration);
    exposed(op.collective.group) += whole - duration;
    duration = whole;
  } else if (s.communication > s.compute) {
    // Slowed as long as the collective is there.
    const double slowed =
        std::max(duration, profile().cost.contention.values.kernels * kernel_s(op, s.resident));
    const double beside = std::min(slowed, s.communication - s.compute);
    duration = beside + (duration - beside * duration / slowed);
  }
  if (op.deferrable) result.delayed_s += duration;
  if (op.work.kind == WorkKind::kMemory) s.memory += duration;
  s.last = {0, false, s.compute, s.compute + duration};
  s.compute += duration;
  if (op.host_reads && graphs_ != CudaGraphs::kStep) {
    s.host = std::max(s.host, s.compute) + profile().stack.parallel.host_sync_s;
    s.drained = true;
  }
}

void BodyCosts::place(const Layout& layout, CudaGraphs graphs) {
  OpCosts::place(layout);
  graphs_ = graphs;
}

BodyTime BodyCosts::time(const Ops& ops, bool backward, std::vector<OpRun>* runs,
                         const Sharing& resident) {
  BodyTime result;
  Streams streams;
  streams.background = resident;
  if (graphs_ == CudaGraphs::kLayers && !ops.empty())
    streams.host = profile().stack.parallel.graph_launch_s;
  const bool blocking = profile().stack.parallel.blocking_launches;
  for (const Op& op : ops) {
    const double launches = is_captured(op, graphs_) ? 0 : launches_s(op, backward);
    result.host_s += launches;
    streams.host += launches;
    if (blocking) {
      streams.drained = true;
      streams.host = std::max(streams.compute, streams.communication) + launches;
    }
    run(op, streams, result);
    if (runs != nullptr) {
      streams.last.op = static_cast<std::size_t>(&op - ops.data());
      runs->push_back(streams.last);
    }
  }
  if (graphs_ == CudaGraphs::kLayers) result.host_s += profile().stack.parallel.graph_launch_s;
  if (streams.communication > streams.compute) {
    result.exposed_s[static_cast<std::size_t>(streams.group)] +=
        streams.communication - streams.compute;
    streams.compute = streams.communication;
  }
  result.beside_others_s = streams.others;
  if (streams.others > 0) {
    // The other micro-batch's kernels have so many SMs less meanwhile, and those that memory bounds
    // so much less of it; what is longer than all of them shows.
    const double sms_s = streams.others_sms / kernels().rates.sm_count;
    const double memory_share = streams.compute > 0 ? streams.memory / streams.compute : 0;
    streams.compute += sms_s + memory_share * memory_s(streams.others_bytes, 1);
    const double shown = std::max(0.0, streams.others - streams.compute);
    result.exposed_s[static_cast<std::size_t>(CommGroup::kExpert)] += shown;
    streams.compute += shown;
  }
  result.device_s = streams.compute;
  return result;
}

}  // namespace shardwright::sim
