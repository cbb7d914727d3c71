// SPDX-License-Identifier: Apache-2.0
#include "sim/parallel/body_cost.h"

#include <algorithm>
#include <numeric>

#include "sim/cost/dispatch_cost.h"
#include "sim/parallel/precision_body.h"

namespace shardwright::sim {
namespace {

/// Kernels that leave copies to the memory engines reach what links give whatever SMs they hold.
profiles::DispatchParams hybrid_params(const profiles::Profile& profile) {
  profiles::DispatchParams params = profile.cost.dispatch.values;
  params.token_s = 0;
  params.link_bytes_per_s =
      profile.stack.parallel.moe.hybridep_link_share * profile.cost.exchange.values.bytes_per_s;
  params.sm_bytes_per_s = params.link_bytes_per_s;
  return params;
}

}  // namespace

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

CommunicationBytes sent_bytes(const CollectiveWork& collective, double ranks) {
  CommunicationBytes sent;
  const double share = collective.bytes * (ranks - 1) / ranks;
  switch (collective.pattern) {
    case Pattern::kRingStep:
      sent.point_to_point = collective.bytes;
      break;
    case Pattern::kExchange:
    case Pattern::kTokens:
      sent.all_to_all = share;
      break;
    case Pattern::kCollective:
      if (collective.kind == Collective::kAllGather) sent.all_gather = share;
      if (collective.kind == Collective::kReduceScatter) sent.reduce_scatter = share;
      if (collective.kind == Collective::kAllReduce) sent.all_reduce = 2 * share;
      break;
  }
  return sent;
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

BodyCosts::BodyCosts(const profiles::Profile& profile)
    : profile_(profile), kernels_(kernel_costs(profile)), network_(network_of(profile.cluster)) {
  const profiles::LowPrecisionParams& low = profile.cost.low_precision.values;
  // A machine with products of its own was measured as it is.
  const Gpu& gpu = profile.cluster.gpu;
  const TrainingLoad load = kernels_.measured.empty() ? gpu.training_load : TrainingLoad{};
  kernels_.gemm.e *= load.gemm_share;
  kernels_.memory.stream_efficiency *= load.stream_share;
  kernels_.memory.reduce_efficiency *= load.stream_share;
  if (profile.stack.parallel.loss.row_per_block)
    loss_bytes_per_s_ = gpu.row_kernel_sm_bytes_per_s * kernels_.rates.sm_count;
  const auto typed = [&](Precision precision, double share, double operand_bytes) {
    const double peak = peak_flops(gpu, precision);
    Typed& of = typed_[static_cast<std::size_t>(precision)];
    of = {{kernels_.gemm, kernels_.rates}, operand_bytes};
    if (peak > 0) of.gemm = typed_gemm(kernels_.gemm, kernels_.rates, peak, share);
  };
  typed(Precision::kBf16, 1, 2);
  typed(Precision::kFp16, 1, 2);
  typed(Precision::kFp8, low.fp8_share, 1);
  typed(Precision::kNvfp4, low.nvfp4_share, 0.5625);
}

void BodyCosts::place(const Layout& layout, CudaGraphs graphs) {
  layout_ = layout;
  graphs_ = graphs;
  // What a node of the collective model brings to the network: the NICs of the whole domain.
  network_ = network_of(profile_.cluster);
  network_.bytes_per_s *=
      static_cast<double>(layout.domain) /
      static_cast<double>(std::min(profile_.cluster.gpus_per_node, layout.ranks));
}

CollectiveCost BodyCosts::collective(const CollectiveWork& c) {
  CollectiveGroup group = layout_.collective_group(c.group);
  if (group.ranks <= 1 || c.bytes <= 0) return {};
  const profiles::CollectiveParams& params = profile_.cost.collectives.values;
  switch (c.pattern) {
    case Pattern::kCollective:
      return collective_cost(params, network_, group, c.kind, c.bytes);
    case Pattern::kExchange:
      // Every rank sends its part over its own link: what a gather of as many bytes moves.
      return collective_cost(params, network_, group, Collective::kAllGather, c.bytes);
    case Pattern::kTokens:
      return tokens_to_experts(c);
    case Pattern::kRingStep:
      break;
  }
  const bool leaves = group.ranks_per_node < group.ranks;
  group.ranks = 2;
  group.ranks_per_node = leaves ? 1 : 2;
  group.groups_per_node = std::max<std::int64_t>(1, layout_.domain / group.ranks_per_node);
  return collective_cost(params, network_, group, Collective::kAllGather, 2 * c.bytes);
}

double BodyCosts::transfer_s(std::int64_t stage, double bytes) const {
  return collective_cost(profile_.cost.collectives.values, network_, layout_.transfer_group(stage),
                         Collective::kAllGather, 2 * bytes)
      .time_s;
}

double BodyCosts::memory_s(double bytes, double efficiency) const {
  return memory_time_s(kernels_.memory, kernels_.rates, bytes, efficiency);
}

double BodyCosts::flops_s(double flops) const {
  return flops / (kernels_.rates.peak_flops * kernels_.gemm.e);
}

double BodyCosts::launch_s(bool backward) const {
  return backward ? profile_.stack.host.backward_launch_s : profile_.stack.host.forward_launch_s;
}

CollectiveCost BodyCosts::tokens_to_experts(const CollectiveWork& c) const {
  const CollectiveGroup group = layout_.collective_group(c.group);
  DispatchShape shape = c.tokens;
  shape.ranks = group.ranks;
  shape.ranks_in_domain = std::min(group.ranks, group.ranks_per_node);
  // Every rank of a domain sends at the same time.
  const double nic =
      network_.bytes_per_s / static_cast<double>(std::max<std::int64_t>(1, layout_.domain));
  const profiles::GpuCost& cost = profile_.cost;
  const DispatchCost sent = c.dispatcher == Dispatcher::kAllToAll
                                ? exchange_cost(cost.exchange.values, shape, nic)
                            : c.dispatcher == Dispatcher::kHybridEp
                                ? dispatch_cost(hybrid_params(profile_), shape, nic, c.sms)
                                : dispatch_cost(cost.dispatch.values, shape, nic, c.sms);
  CollectiveCost result;
  result.time_s = sent.time_s;
  result.wire_bytes = sent.sent_bytes;
  result.hbm_bytes = 2 * sent.sent_bytes;
  result.channels = sent.sms;
  return result;
}

double BodyCosts::product_s(const Op& op, int sms) {
  // Shapes stay far below 2^40, precisions below 4, SMs below 2^20.
  const auto precision = static_cast<int>(op.work.precision);
  const ProductShape key{op.work.m | op.work.groups << 40, op.work.n, op.work.k,
                         sms | precision << 20};
  const auto [at, fresh] = products_.try_emplace(key, 0.0);
  if (fresh) {
    const Typed& typed = typed_[static_cast<std::size_t>(precision)];
    at->second = gemm_time_s(typed.gemm.params, typed.gemm.rates, op.work.m, op.work.n, op.work.k,
                             sms, op.work.groups, typed.operand_bytes);
  }
  return at->second;
}

/// One kernel for products of all experts fills the device with all of them; launched one by one,
/// as many as there are streams share it at a time.
double BodyCosts::products_s(const Op& op, int sms) {
  const auto at_once = std::int64_t{profile_.stack.parallel.moe.gemm_streams};
  if (op.work.groups <= at_once || op.work.kernels == 1) return product_s(op, sms);
  Op some = op;
  some.work.groups = at_once;
  return product_s(some, sms) * static_cast<double>(op.work.groups) / static_cast<double>(at_once);
}

double BodyCosts::work_s(const Op& op, const Sharing& sharing) {
  const Work* work = &op.work;
  Work once;
  if (op.work.groups > 1) {
    once = op.work;
    once.kernels = 1;
    work = &once;
  }
  double time = (op.work.starts - 1) * kernels_.memory.t1_s +
                kernel_time_s(kernels_, *work, sharing,
                              [&](std::int64_t, std::int64_t, std::int64_t, int sms) {
                                return products_s(op, sms);
                              });
  if (op.work.on_fp32_cores) {
    const double products = work->backward ? 4 : 2;
    const int sms = std::max(1, kernels_.rates.sm_count - sharing.channels);
    const auto product = [&](const TypedGemm& of) {
      return gemm_time_s(of.params, of.rates, work->n, work->n, work->k, sms, work->m);
    };
    const double fp32_flops = kernels_.rates.peak_flops / kernels_.fp32_slowdown;
    time += products * (product(typed_gemm(kernels_.gemm, kernels_.rates, fp32_flops, 1)) -
                        product({kernels_.gemm, kernels_.rates}));
  }
  if (op.kind == OpKind::kLoss && loss_bytes_per_s_ > 0)
    return std::max(time, static_cast<double>(op.work.bytes) / loss_bytes_per_s_);
  if (op.work.extra_bytes <= 0) return time;
  return time +
         op.work.extra_bytes / (kernels_.rates.hbm_bytes_per_s * kernels_.memory.stream_efficiency);
}

/// The product goes piece by piece, a rank's own the last; each of the others is copied to its rank
/// meanwhile, and one kernel adds up what came (TransformerEngine
/// common/comm_gemm_overlap/comm_gemm_overlap.cpp, CommOverlapP2PBase::split_overlap_rs).
double BodyCosts::exchanged_pieces_s(const Op& op, double product_s) {
  const double ranks = static_cast<double>(layout_.group(op.collective.group).size);
  const double piece_bytes = op.collective.bytes / ranks;
  const profiles::CollectiveParams& links = profile_.cost.collectives.values;
  const double send_s = links.simple.base_s + piece_bytes / links.simple.bytes_per_s;
  const double part_s = product_s / ranks;
  const double last_s = std::max(product_s - part_s + send_s, part_s + (ranks - 1) * send_s);
  return std::max(product_s, last_s) + (ranks - 1) * kernels_.gemm.t0_s +
         memory_s(op.collective.bytes + piece_bytes, profile_.stack.copies.add);
}

double BodyCosts::pieces_s(const Op& op, double product_s) {
  const double together = collective(op.collective).time_s;
  const double ranks = static_cast<double>(layout_.group(op.collective.group).size);
  const double gap = kernels_.gemm.t0_s;
  if (op.collective.kind == Collective::kAllGather) {
    return std::max(product_s, together + product_s / ranks) + (ranks - 1) * gap;
  }
  if (op.collective.exchanged) return exchanged_pieces_s(op, product_s);
  const TensorSoftware& tensor = profile_.stack.parallel.tensor;
  const double splits = tensor.overlap_splits;
  Sharing sharing;
  sharing.channels = tensor.overlap_sms;
  const double slowed = work_s(op, sharing);
  return std::max(slowed + together / splits, slowed / splits + together) + (splits - 1) * gap;
}

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
        sent_bytes(op.collective, static_cast<double>(layout_.group(op.collective.group).size)));
  }
  if (alone) {
    const CollectiveCost cost = collective(op.collective);
    if (op.collective.overlap == Overlap::kOtherMicroBatch) {
      s.others += cost.time_s * profile_.cost.contention.values.nvlink_collectives;
      s.others_sms += cost.time_s * cost.channels;
      s.others_bytes += cost.hbm_bytes;
      return;
    }
    const double start = std::max(s.compute, s.communication);
    const double took = op.collective.overlap == Overlap::kNone
                            ? cost.time_s
                            : cost.time_s * profile_.cost.contention.values.nvlink_collectives;
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
  double duration = work_s(op, {});
  if (s.background.channels > 0) {
    duration =
        std::max(duration, profile_.cost.contention.values.kernels * work_s(op, s.background));
  }
  if (op.work.kind == WorkKind::kGemm)
    result.flops += gemm_flops(op.work.m, op.work.n, op.work.k, op.work.groups) *
                    (op.work.groups > 1 ? 1 : op.work.kernels);
  if (op.collective.bytes > 0) {
    const double whole = pieces_s(op, duration);
    exposed(op.collective.group) += whole - duration;
    duration = whole;
  } else if (s.communication > s.compute) {
    // Slowed as long as the collective is there.
    const double slowed =
        std::max(duration, profile_.cost.contention.values.kernels * work_s(op, s.resident));
    const double beside = std::min(slowed, s.communication - s.compute);
    duration = beside + (duration - beside * duration / slowed);
  }
  if (op.deferrable) result.delayed_s += duration;
  if (op.work.kind == WorkKind::kMemory) s.memory += duration;
  s.last = {0, false, s.compute, s.compute + duration};
  s.compute += duration;
  if (op.host_reads && graphs_ != CudaGraphs::kStep) {
    s.host = std::max(s.host, s.compute) + profile_.stack.parallel.host_sync_s;
    s.drained = true;
  }
}

/// What the host issues of an operation that no graph holds.
double BodyCosts::launches_s(const Op& op, bool backward) const {
  if (graphs_ == CudaGraphs::kStep || (graphs_ == CudaGraphs::kLayers && !op.dynamic)) return 0;
  const HostCosts& host = profile_.stack.host;
  if (op.work.kind == WorkKind::kNone) return host.collective_launches * host.forward_launch_s;
  const double each = op.dynamic && op.work.groups > 1 && op.work.kernels > 1
                          ? launch_s(backward) + profile_.stack.parallel.expert_launch_s
                          : launch_s(backward);
  return op.work.kernels * each;
}

Sharing BodyCosts::sharing(const CollectiveCost& cost) {
  Sharing result;
  result.channels = cost.channels;
  result.hbm_bytes_per_s = cost.time_s > 0 ? cost.hbm_bytes / cost.time_s : 0;
  return result;
}

BodyTime BodyCosts::time(const Ops& ops, bool backward, std::vector<OpRun>* runs,
                         const Sharing& resident) {
  BodyTime result;
  Streams streams;
  streams.background = resident;
  if (graphs_ == CudaGraphs::kLayers && !ops.empty())
    streams.host = profile_.stack.parallel.graph_launch_s;
  const bool blocking = profile_.stack.parallel.blocking_launches;
  for (const Op& op : ops) {
    const double launches = launches_s(op, backward);
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
  if (graphs_ == CudaGraphs::kLayers) result.host_s += profile_.stack.parallel.graph_launch_s;
  if (streams.communication > streams.compute) {
    result.exposed_s[static_cast<std::size_t>(streams.group)] +=
        streams.communication - streams.compute;
    streams.compute = streams.communication;
  }
  result.beside_others_s = streams.others;
  if (streams.others > 0) {
    // The other micro-batch's kernels have so many SMs less meanwhile, and those that memory bounds
    // so much less of it; what is longer than all of them shows.
    const double sms_s = streams.others_sms / kernels_.rates.sm_count;
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
