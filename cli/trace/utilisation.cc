// SPDX-License-Identifier: Apache-2.0
#include "cli/trace/utilisation.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <vector>

#include "profiles/data_dir.h"
#include "profiles/gpu_file.h"
#include "sim/core/error.h"
#include "sim/predict.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

/// The driver and the data file may count what is reserved differently.
constexpr double kMemoryTolerance = 0.06;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// "h100" of "h100-80g".
std::string model_word(const std::string& id) {
  return id.substr(0, id.find('-'));
}

/// Whether a name in lower case has the word of the model, and of the form where it matters.
bool same_kind(const std::string& name, const std::string& id) {
  const auto in = [](const std::string& text, const char* word) {
    return text.find(word) != std::string::npos;
  };
  return in(name, model_word(id).c_str()) && in(name, "pcie") == in(id, "pcie") &&
         in(name, "nvl") == in(id, "nvl");
}

double best_product_flops(const profiles::Profile& profile, std::int64_t dtype_bytes) {
  double best = 0;
  for (const profiles::MeasuredProduct& product : profile.measured_products) {
    if (product.dtype_bytes != dtype_bytes || product.seconds <= 0) continue;
    best = std::max(best, 2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) *
                              static_cast<double>(product.k) / product.seconds);
  }
  return best;
}

std::int64_t used(const std::vector<OfferedGpu>& gpus, std::int64_t ranks) {
  return std::min(ranks, static_cast<std::int64_t>(gpus.size()));
}

}  // namespace

std::optional<Gpu> known_gpu(const OfferedGpu& gpu) {
  std::optional<Gpu> found;
  const std::string name = lower(gpu.name);
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(profiles::data_dir() / "gpus")) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    if (!same_kind(name, file.stem().string())) continue;
    const Gpu candidate = profiles::load_gpu(file.string()).gpu;
    const double memory = static_cast<double>(candidate.memory_bytes);
    if (candidate.sm_count != gpu.multiprocessors ||
        std::abs(static_cast<double>(gpu.memory_bytes) - memory) > kMemoryTolerance * memory) {
      continue;
    }
    if (found && found->peak_bf16_flops != candidate.peak_bf16_flops) return std::nullopt;
    found = candidate;
  }
  return found;
}

Utilisation utilisation_of(const Model& model, const Plan& plan,
                           const std::vector<OfferedGpu>& gpus) {
  Utilisation use;
  use.step_flops = sim::model_flops(model, plan) * static_cast<double>(plan.gpus);
  if (gpus.empty()) return use;
  use.memory_bytes = gpus.front().memory_bytes;
  use.gpus = static_cast<double>(used(gpus, plan.gpus));
  const std::optional<Gpu> gpu = known_gpu(gpus.front());
  if (!gpu) return use;
  const bool bf16 = plan.param_dtype == DType::kBf16;
  const double peak = bf16 ? gpu->peak_bf16_flops : gpu->peak_fp32_flops;
  use.gpu = gpu->id;
  use.peak_flops = use.gpus * peak;
  use.basis = fmt::format("{:.0f} x {}, {:.0f} TFLOP/s dense {} each", use.gpus, gpus.front().name,
                          peak / 1e12, name_of(plan.param_dtype));
  return use;
}

void count_measured_products(Utilisation& use, const profiles::Profile& profile, DType dtype) {
  if (use.gpu.empty() || profile.cluster.gpu.id != use.gpu) return;
  use.product_flops = use.gpus * best_product_flops(profile, bytes_of(dtype));
}

profiles::Profile gpu_profile(const std::vector<OfferedGpu>& gpus, std::int64_t ranks) {
  const std::optional<Gpu> gpu = known_gpu(gpus.front());
  if (!gpu) {
    throw Error(fmt::format("no profile is of {} with {} multiprocessors, expected --cluster",
                            gpus.front().name, gpus.front().multiprocessors));
  }
  std::vector<std::string> overrides;
  const std::int64_t shared = used(gpus, ranks);
  if (ranks > shared) overrides.push_back(fmt::format("cluster.devices_per_node={}", shared));
  return profiles::load_profile(profiles::load_gpu(gpu->id).usual_cluster, "native", overrides);
}

}  // namespace shardwright::cli
