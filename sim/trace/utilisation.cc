// SPDX-License-Identifier: Apache-2.0
#include "sim/trace/utilisation.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "profiles/gpu_file.h"
#include "sim/core/base/error.h"
#include "sim/predict.h"

namespace shardwright::sim {
namespace {

double best_product_flops(const profiles::Profile& profile, std::int64_t dtype_bytes) {
  double best = 0;
  for (const profiles::MeasuredProduct& product : profile.measured_products) {
    if (product.dtype_bytes != dtype_bytes || product.seconds <= 0) continue;
    best = std::max(best, 2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) *
                              static_cast<double>(product.k) / product.seconds);
  }
  return best;
}

}  // namespace

Utilisation utilisation_of(const Model& model, const Plan& plan, const UsedGpus& gpus) {
  Utilisation use;
  use.step_flops = model_flops(model, plan) * static_cast<double>(plan.gpus);
  if (gpus.count == 0) return use;
  use.memory_bytes = gpus.kind.memory_bytes;
  use.gpus = static_cast<double>(std::min(gpus.count, plan.gpus));
  const std::optional<Gpu> gpu = profiles::known_gpu(gpus.kind);
  if (!gpu) return use;
  const bool fp8 = plan.numerics.precision == Precision::kFp8;
  const bool bf16 = plan.param_dtype == DType::kBf16;
  const double peak = fp8    ? gpu->peak_fp8_flops
                      : bf16 ? gpu->peak_bf16_flops
                             : gpu->peak_fp32_flops;
  use.gpu = gpu->id;
  use.peak_flops = use.gpus * peak;
  use.basis = fmt::format("{:.0f} x {}, {:.0f} TFLOP/s dense {} each", use.gpus, gpus.kind.name,
                          peak / 1e12, fp8 ? name_of(Precision::kFp8) : name_of(plan.param_dtype));
  return use;
}

void count_measured_products(Utilisation& use, const profiles::Profile& profile, DType dtype) {
  if (use.gpu.empty() || profile.cluster.gpu.id != use.gpu) return;
  use.product_flops = use.gpus * best_product_flops(profile, bytes_of(dtype));
}

profiles::Profile gpu_profile(const UsedGpus& gpus, std::int64_t ranks) {
  const std::optional<Gpu> gpu = profiles::known_gpu(gpus.kind);
  if (!gpu) {
    throw Error(fmt::format("no profile is of {} with {} multiprocessors, expected --cluster",
                            gpus.kind.name, gpus.kind.multiprocessors));
  }
  std::vector<std::string> overrides;
  if (ranks > gpus.count) {
    overrides.push_back(fmt::format("cluster.devices_per_node={}", gpus.count));
  }
  return profiles::load_profile(profiles::load_gpu(gpu->id).usual_cluster, "native", overrides);
}

}  // namespace shardwright::sim
