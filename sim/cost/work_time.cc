// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/work_time.h"

#include <cmath>

#include "sim/cost/result_traffic.h"

namespace shardwright::sim {

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

}  // namespace shardwright::sim
