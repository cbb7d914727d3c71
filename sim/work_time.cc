#include "sim/work_time.h"

namespace shardwright::sim {

KernelCosts kernel_costs(const profiles::Profile& profile) {
  const Gpu& gpu = profile.cluster.gpu;
  KernelCosts costs;
  costs.rates = profile.cost.rates.values;
  costs.rates.peak_flops = gpu.peak_bf16_flops;
  costs.rates.sm_count = gpu.sm_count;
  costs.rates.hbm_bytes_per_s = gpu.hbm_bytes_per_s;
  costs.gemm = sustained(profile.cost.gemm.values);
  costs.attention = profile.attention();
  costs.memory = profile.cost.memory.values;
  costs.copies = profile.stack.copies;
  costs.contention = profile.cost.contention.values.kernels;
  if (gpu.peak_fp32_flops > 0) costs.fp32_slowdown = gpu.peak_bf16_flops / gpu.peak_fp32_flops;
  for (const profiles::MeasuredProduct& product : profile.measured_products) {
    const double formula = gemm_time_s(costs.gemm, costs.rates, product.m, product.n, product.k,
                                       costs.rates.sm_count) *
                           (product.dtype_bytes == 4 ? costs.fp32_slowdown : 1);
    costs.measured[{product.m, product.n, product.k, product.dtype_bytes}] =
        product.seconds / formula;
  }
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
  return kernel_time_s(costs, work, sharing,
                       [&](std::int64_t m, std::int64_t n, std::int64_t k, int sms) {
                         return gemm_time_s(costs.gemm, costs.rates, m, n, k, sms);
                       });
}

}  // namespace shardwright::sim
