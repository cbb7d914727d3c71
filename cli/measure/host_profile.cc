#include "cli/measure/host_profile.h"

#include <fmt/core.h>

#include "cli/machine/processor.h"

namespace shardwright::cli {

std::vector<std::string> sized_to(const profiles::Profile& generic, int cores, Bytes memory_bytes) {
  const Gpu& gpu = generic.cluster.gpu;
  const double times = static_cast<double>(cores) / static_cast<double>(gpu.sm_count);
  return {
      fmt::format("gpu.sm_count={}", cores),
      fmt::format("gpu.peak_bf16_flops={}", times * gpu.peak_bf16_flops),
      fmt::format("gpu.peak_fp32_flops={}", times * gpu.peak_fp32_flops),
      fmt::format("gpu.hbm_bytes_per_s={}", times * gpu.hbm_bytes_per_s),
      fmt::format("gpu.memory_bytes={}", memory_bytes),
      // The rates of attention are absolute, those of products a share of the peak.
      fmt::format("cost.attention.fa2.forward_flops={}", times * generic.attention().forward_flops),
      fmt::format("cost.attention.fa2.backward_flops={}",
                  times * generic.attention().backward_flops)};
}

profiles::Profile host_profile(int threads, const std::vector<std::string>& overrides) {
  profiles::Profile profile = profiles::load_profile(kHostCluster, "native");
  std::vector<std::string> all = sized_to(profile, threads, this_processor().memory_bytes);
  all.insert(all.end(), overrides.begin(), overrides.end());
  return profiles::load_profile(kHostCluster, "native", all);
}

}  // namespace shardwright::cli
