// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/op_cost.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "sim/core/base/error.h"
#include "sim/cost/collectives.h"
#include "sim/cost/cost.h"
#include "sim/program/low_precision.h"

namespace shardwright::sim {

double memory_time_s(const profiles::MemoryParams& params, const profiles::GpuRates& gpu,
                     double bytes, double efficiency, const TakenBandwidth& taken) {
  if (bytes <= 0) return 0;
  const double full = gpu.hbm_bytes_per_s * params.stream_efficiency;
  const double rate =
      std::max(full - taken.bytes_per_s, taken.least_share_left * full) * efficiency;
  double resident = 0;
  if (gpu.l2_bytes > 0) resident = std::max(0.0, 1 - bytes / gpu.l2_bytes);
  // Growing in `bytes` for every speed-up: d/dy [y (1 - q (1 - y))] = 1 - q + 2 q y > 0.
  return params.t1_s + bytes / rate * (1 - (1 - 1 / params.l2_speedup) * resident);
}

namespace {

void share(KernelCosts& costs, const Gpu& gpu, double sharers) {
  profiles::GpuRates& rates = costs.rates;
  rates.peak_flops /= sharers;
  rates.hbm_bytes_per_s /= sharers;
  rates.l2_bytes /= sharers;
  rates.sm_count =
      std::max(1, static_cast<int>(std::lround(static_cast<double>(gpu.sm_count) / sharers)));
  costs.attention.forward_flops /= sharers;
  costs.attention.backward_flops /= sharers;
  costs.other_attention.flash.forward_flops /= sharers;
  costs.other_attention.flash.backward_flops /= sharers;
  const double stretch = std::max(1.0, sharers / static_cast<double>(gpu.sm_count));
  for (double* fixed :
       {&costs.gemm.t0_s, &costs.gemm.split_k_s, &costs.attention.t0_s, &costs.memory.t1_s}) {
    *fixed *= stretch;
  }
}

ProductShape shape_of(const profiles::MeasuredProduct& product) {
  return {product.m, product.n, product.k, product.dtype_bytes,
          product.layout.value_or(ProductLayout::kNT)};
}

OtherAttention other_attention(const profiles::Profile& profile) {
  const Gpu& gpu = profile.cluster.gpu;
  OtherAttention other;
  if (gpu.is_processor() || gpu.peak_fp32_flops <= 0) return other;
  other.naive = profile.stack.naive_attention;
  // Four schedulers issue an instruction each in a cycle, in which 128 lanes do an fp32 FMA each.
  constexpr double kFlopsOfAnInstruction = 2.0 * 32;
  other.instructions_per_sm_s = gpu.peak_fp32_flops / kFlopsOfAnInstruction / gpu.sm_count;
  const auto fa2 = profile.cost.attention.find("fa2");
  other.flash = fa2 != profile.cost.attention.end() ? fa2->second.values : profile.attention();
  other.has_wide_engine = has_wide_attention_engine(gpu.architecture);
  other.packs_documents = profile.stack.packs_documents;
  return other;
}

}  // namespace

AttentionForm OtherAttention::form_of(const Work& work) const {
  if (naive.forward_instructions == 0) return AttentionForm::kCudnn;
  AttentionNeeds needs;
  needs.dtype = work.dtype_bytes == 4 ? DType::kFp32 : DType::kBf16;
  needs.head_dim = work.k;
  needs.plain_scores = !work.bent_scores;
  needs.documents = packs_documents;
  needs.has_wide_engine = has_wide_engine;
  return attention_form(needs);
}

double naive_attention_time_s(const KernelCosts& costs, const Work& work, int sms) {
  const OtherAttention& other = costs.other_attention;
  const bool fp32 = work.dtype_bytes == 4;
  const double instructions =
      work.backward
          ? (fp32 ? other.naive.backward_fp32_instructions : other.naive.backward_instructions)
          : (fp32 ? other.naive.forward_fp32_instructions : other.naive.forward_instructions);
  const double tokens = static_cast<double>(work.n);
  const double pairs = static_cast<double>(work.m) * tokens * (tokens + 1) / 2 * work.attended;
  return costs.attention.t0_s * (work.backward ? 2 : 1) +
         pairs * instructions / (other.instructions_per_sm_s * sms);
}

double turns(const Gpu& gpu, std::int64_t sharers) {
  if (!gpu.is_processor()) return 1;
  return std::max(1.0, static_cast<double>(sharers) / static_cast<double>(gpu.sm_count));
}

KernelCosts kernel_costs(const profiles::Profile& profile, std::int64_t sharers) {
  const Gpu& gpu = profile.cluster.gpu;
  KernelCosts costs;
  costs.rates = profile.cost.rates.values;
  costs.rates.peak_flops = gpu.peak_bf16_flops;
  costs.rates.sm_count = gpu.sm_count;
  costs.rates.hbm_bytes_per_s = gpu.hbm_bytes_per_s;
  costs.rates.processor = gpu.is_processor();
  costs.rates.pool_threads = gpu.sm_count;
  costs.gemm = sustained(profile.cost.gemm.values);
  costs.attention = profile.attention();
  costs.other_attention = other_attention(profile);
  costs.memory = profile.cost.memory.values;
  costs.copies = profile.stack.copies;
  costs.contention = profile.cost.contention.values.kernels;
  costs.least_bandwidth_share = profile.cost.contention.values.least_bandwidth_share;
  if (gpu.peak_fp32_flops > 0) costs.fp32_slowdown = gpu.peak_bf16_flops / gpu.peak_fp32_flops;
  const KernelCosts plain = costs;
  for (const profiles::MeasuredProduct& product : profile.measured_products) {
    const ProductShape shape = shape_of(product);
    KernelCosts then = plain;
    if (product.sharers > 1) share(then, gpu, product.sharers);
    const double formula = gemm_time_s(then.gemm, then.rates, product.m, product.n, product.k,
                                       then.rates.sm_count, 1, 2, shape.layout) *
                           (product.dtype_bytes == 4 ? costs.fp32_slowdown : 1);
    const double ratio = product.seconds / formula;
    // Of several the one on the same part of a device counts.
    if (!costs.measured.contains(shape) || product.sharers == sharers)
      costs.measured[shape] = ratio;
  }
  // The formula tells layouts apart on processors alone: elsewhere the other ones are as far off.
  for (const profiles::MeasuredProduct& product : profile.measured_products) {
    if (product.layout && gpu.is_processor()) continue;
    ProductShape shape = shape_of(product);
    const double ratio = costs.measured.at(shape);
    for (const ProductLayout layout : kProductLayouts) {
      shape.layout = layout;
      costs.measured.try_emplace(shape, ratio);
    }
  }
  if (sharers > 1) share(costs, gpu, static_cast<double>(sharers));
  return costs;
}

double copy_efficiency(const CopyEfficiencies& copies, const Work& work) {
  switch (work.memory_class) {
    case MemoryClass::kStream:
      return work.efficiency;
    case MemoryClass::kCast:
      return copies.cast;
    case MemoryClass::kConcatenate:
      return copies.concatenate;
    case MemoryClass::kCopy:
      return copies.copy;
    case MemoryClass::kScale:
      return copies.scale;
    case MemoryClass::kAdd:
      return copies.add;
  }
  return 1;
}

double kernel_time_s(const KernelCosts& costs, const Work& work, const Sharing& sharing) {
  const double seconds = kernel_time_s(
      costs, work, sharing, [&](std::int64_t m, std::int64_t n, std::int64_t k, int sms) {
        return gemm_time_s(costs.gemm, costs.rates, m, n, k, sms, 1, 2, work.layout);
      });
  return with_result_traffic(costs, work, seconds);
}

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

/// Whether a module or an autograd function of Python stands behind the operation alone: the
/// weight's gradient is made where the input's is, norms, residuals and collectives of the tensor
/// and context ranks within modules that multiply.
bool is_called(const Op& op) {
  if (op.issued_with_others) return false;
  switch (op.kind) {
    case OpKind::kWeightGradient:
      return false;
    case OpKind::kAttention:
    case OpKind::kRope:
    case OpKind::kRouter:
    case OpKind::kPermute:
    case OpKind::kActivation:
    case OpKind::kAllToAll:
      return true;
    default:
      return op.work.kind == WorkKind::kGemm;
  }
}

}  // namespace

OpCosts::OpCosts(const profiles::Profile& profile)
    : profile_(profile), network_(network_of(profile.cluster)) {
  set_kernels();
}

void OpCosts::set_kernels() {
  kernels_ = kernel_costs(profile_, sharers_);
  gemms_.clear();
  const Gpu& gpu = profile_.cluster.gpu;
  // A machine with GEMMs of its own was measured as it is.
  const TrainingLoad load =
      loaded_ && kernels_.measured.empty() ? gpu.training_load : TrainingLoad{};
  kernels_.gemm.e *= load.gemm_share;
  kernels_.memory.stream_efficiency *= load.stream_share;
  kernels_.memory.reduce_efficiency *= load.stream_share;
  loss_bytes_per_s_ = profile_.stack.parallel.loss.row_per_block
                          ? gpu.row_kernel_sm_bytes_per_s * kernels_.rates.sm_count
                          : 0;
  const profiles::LowPrecisionParams& low = profile_.cost.low_precision.values;
  const auto typed = [&](Precision precision, double share, double operand_bytes) {
    const double peak = peak_flops(gpu, precision) / static_cast<double>(sharers_);
    Typed& of = typed_[static_cast<std::size_t>(precision)];
    of = {{kernels_.gemm, kernels_.rates}, operand_bytes};
    if (peak > 0) of.gemm = typed_gemm(kernels_.gemm, kernels_.rates, peak, share);
  };
  typed(Precision::kBf16, 1, 2);
  typed(Precision::kFp16, 1, 2);
  typed(Precision::kFp8, low.fp8_share, 1);
  typed(Precision::kNvfp4, low.nvfp4_share, 0.5625);
}

void OpCosts::place(const Layout& layout) {
  layout_ = layout;
  if (loaded_ != (layout.ranks > 1)) {
    loaded_ = layout.ranks > 1;
    set_kernels();
  }
  // What a node of the collective model brings to the network: the NICs of the whole domain.
  network_ = network_of(profile_.cluster);
  network_.bytes_per_s *=
      static_cast<double>(layout.domain) /
      static_cast<double>(std::min(profile_.cluster.gpus_per_node, layout.ranks));
}

void OpCosts::share_device(std::int64_t sharers) {
  if (sharers == sharers_) return;
  sharers_ = sharers;
  set_kernels();
}

CollectiveCost OpCosts::collective(const CollectiveWork& work) const {
  CollectiveGroup group = layout_.collective_group(work.group);
  if (group.ranks <= 1 || work.bytes <= 0) return {};
  profiles::CollectiveParams params = profile_.cost.collectives.values;
  if (profile_.cluster.devices_per_node > 0)
    group.copies_take_turns = in_device_memory(profile_, layout_.ranks, params);
  switch (work.pattern) {
    case Pattern::kCollective:
      return collective_cost(params, network_, group, work.kind, work.bytes);
    case Pattern::kExchange:
      // Every rank sends its part over its own link: what a gather of as many bytes moves.
      return collective_cost(params, network_, group, Collective::kAllGather, work.bytes);
    case Pattern::kTokens:
      return tokens_to_experts(work);
    case Pattern::kRingStep:
      break;
  }
  const bool leaves = group.ranks_per_node < group.ranks;
  group.ranks = 2;
  group.ranks_per_node = leaves ? 1 : 2;
  group.groups_per_node = std::max<std::int64_t>(1, layout_.domain / group.ranks_per_node);
  return collective_cost(params, network_, group, Collective::kAllGather, 2 * work.bytes);
}

CollectiveCost OpCosts::tokens_to_experts(const CollectiveWork& work) const {
  const CollectiveGroup group = layout_.collective_group(work.group);
  DispatchShape shape = work.tokens;
  shape.ranks = group.ranks;
  shape.ranks_in_domain = std::min(group.ranks, group.ranks_per_node);
  // Every rank of a domain sends at the same time.
  const double nic =
      network_.bytes_per_s / static_cast<double>(std::max<std::int64_t>(1, layout_.domain));
  const profiles::GpuCost& cost = profile_.cost;
  const DispatchCost sent = work.dispatcher == Dispatcher::kAllToAll
                                ? exchange_cost(cost.exchange.values, shape, nic)
                            : work.dispatcher == Dispatcher::kHybridEp
                                ? dispatch_cost(hybrid_params(profile_), shape, nic, work.sms)
                                : dispatch_cost(cost.dispatch.values, shape, nic, work.sms);
  CollectiveCost result;
  result.time_s = sent.time_s;
  result.wire_bytes = sent.sent_bytes;
  result.hbm_bytes = 2 * sent.sent_bytes;
  result.channels = sent.sms;
  return result;
}

Sharing OpCosts::sharing(const CollectiveCost& cost) {
  Sharing result;
  result.channels = cost.channels;
  result.hbm_bytes_per_s = cost.time_s > 0 ? cost.hbm_bytes / cost.time_s : 0;
  return result;
}

double OpCosts::transfer_s(std::int64_t stage, double bytes) const {
  return message_cost(profile_.cost.collectives.values, network_, layout_.transfer_group(stage),
                      bytes, profile_.stack.parallel.message_bytes_per_s)
      .time_s;
}

double OpCosts::memory_s(double bytes, double efficiency) const {
  return memory_time_s(kernels_.memory, kernels_.rates, bytes, efficiency);
}

double OpCosts::launch_s(bool backward) const {
  const HostCosts& host = profile_.stack.host;
  return backward ? host.backward_launch_s : host.forward_launch_s;
}

double OpCosts::module_s(const Op& op, bool backward) const {
  if (op.captured || !is_called(op)) return 0;
  const ParallelSoftware& software = profile_.stack.parallel;
  return backward ? software.module_backward_s : software.module_forward_s;
}

double OpCosts::launches_s(const Op& op, bool backward) const {
  if (op.captured) return 0;
  const HostCosts& host = profile_.stack.host;
  const double module = module_s(op, backward);
  const bool in_list = op.work.kind == WorkKind::kNone && op.collective;
  if (in_list || op.work.kind == WorkKind::kCollective)
    return module + host.collective_launches * host.forward_launch_s;
  const double each = op.dynamic && op.work.groups > 1 && op.work.kernels > 1
                          ? launch_s(backward) + profile_.stack.parallel.expert_launch_s
                          : launch_s(backward);
  return module + op.work.kernels * each;
}

double OpCosts::gemm_s(const Op& op, std::int64_t groups, int sms) {
  // Shapes stay far below 2^40, precisions below 4, SMs below 2^20.
  const auto precision = static_cast<int>(op.work.precision);
  const ProductShape key{op.work.m | groups << 40, op.work.n, op.work.k, sms | precision << 20,
                         op.work.layout};
  const auto [at, fresh] = gemms_.try_emplace(key, 0.0);
  if (fresh) {
    const Typed& typed = typed_[static_cast<std::size_t>(precision)];
    at->second = gemm_time_s(typed.gemm.params, typed.gemm.rates, op.work.m, op.work.n, op.work.k,
                             sms, groups, typed.operand_bytes, op.work.layout);
  }
  return at->second;
}

/// One kernel for GEMMs of all experts fills the device with all of them; launched one by one, as
/// many as there are streams share it at a time.
double OpCosts::gemms_s(const Op& op, int sms) {
  const auto at_once = std::int64_t{profile_.stack.parallel.moe.gemm_streams};
  const std::int64_t groups = op.work.groups;
  if (groups <= at_once || op.work.kernels == 1) return gemm_s(op, groups, sms);
  return gemm_s(op, at_once, sms) * static_cast<double>(groups) / static_cast<double>(at_once);
}

double OpCosts::kernel_s(const Op& op, const Sharing& sharing) {
  if (op.work.kind == WorkKind::kTransfer)
    return op.work.group == CommGroup::kPipeline ? 0
                                                 : host_link_s(static_cast<double>(op.work.bytes));
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
                                return gemms_s(op, sms);
                              });
  if (op.work.on_fp32_cores) {
    const double gemms = work->backward ? 4 : 2;
    const int sms = std::max(1, kernels_.rates.sm_count - sharing.channels);
    const auto alone_s = [&](const TypedGemm& of) {
      return gemm_time_s(of.params, of.rates, work->n, work->n, work->k, sms, work->m);
    };
    const double fp32_flops = kernels_.rates.peak_flops / kernels_.fp32_slowdown;
    time += gemms * (alone_s(typed_gemm(kernels_.gemm, kernels_.rates, fp32_flops, 1)) -
                     alone_s({kernels_.gemm, kernels_.rates}));
  }
  if (op.kind == OpKind::kLoss && loss_bytes_per_s_ > 0)
    return std::max(time, static_cast<double>(op.work.bytes) / loss_bytes_per_s_);
  if (op.work.extra_bytes > 0) {
    time +=
        op.work.extra_bytes / (kernels_.rates.hbm_bytes_per_s * kernels_.memory.stream_efficiency);
  }
  return with_result_traffic(kernels_, op.work, time);
}

/// The GEMM goes piece by piece, a rank's own the last; each of the others is copied to its rank
/// meanwhile, and one kernel adds up what came (TransformerEngine
/// common/comm_gemm_overlap/comm_gemm_overlap.cpp, CommOverlapP2PBase::split_overlap_rs).
double OpCosts::exchanged_pieces_s(const Op& op, double gemm_s) const {
  const double ranks = static_cast<double>(layout_.group(op.collective.group).size);
  const double piece_bytes = op.collective.bytes / ranks;
  const profiles::CollectiveParams& links = profile_.cost.collectives.values;
  const double send_s = links.simple.base_s + piece_bytes / links.simple.bytes_per_s;
  const double part_s = gemm_s / ranks;
  const double last_s = std::max(gemm_s - part_s + send_s, part_s + (ranks - 1) * send_s);
  return std::max(gemm_s, last_s) + (ranks - 1) * kernels_.gemm.t0_s +
         memory_s(op.collective.bytes + piece_bytes, profile_.stack.copies.add);
}

double OpCosts::with_collective_s(const Op& op, double gemm_s) {
  const double together = collective(op.collective).time_s;
  const double ranks = static_cast<double>(layout_.group(op.collective.group).size);
  const double gap = kernels_.gemm.t0_s;
  if (op.collective.kind == Collective::kAllGather) {
    return std::max(gemm_s, together + gemm_s / ranks) + (ranks - 1) * gap;
  }
  if (op.collective.exchanged) return exchanged_pieces_s(op, gemm_s);
  const TensorSoftware& tensor = profile_.stack.parallel.tensor;
  const double splits = tensor.overlap_splits;
  Sharing sharing;
  sharing.channels = tensor.overlap_sms;
  const double slowed = kernel_s(op, sharing);
  return std::max(slowed + together / splits, slowed / splits + together) + (splits - 1) * gap;
}

void refuse_duration(const char* what, double seconds) {
  throw Error(
      fmt::format("{} would take {:.3g} s: a rate or an efficiency of the cluster, the stack "
                  "or --set is too low, expected those of a machine",
                  what, seconds));
}

}  // namespace shardwright::sim
