// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/gather.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "profiles/cost_fields.h"
#include "sim/trace/observations.h"

namespace shardwright::sim {

void append(profiles::ObservationSet& set, profiles::ObservationSet more) {
  const auto sources = static_cast<std::int32_t>(set.sources.size());
  const auto units = static_cast<std::int32_t>(set.units.size());
  std::int64_t instances = 0;
  for (const profiles::Observation& o : set.observations) {
    instances = std::max(instances, o.instance + 1);
  }
  for (profiles::Observation& o : more.observations) {
    o.source += sources;
    if (o.instance >= 0) o.instance += instances;
    if (o.unit >= 0) o.unit += units;
  }
  const auto move_all = [](auto& from, auto& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  move_all(more.sources, set.sources);
  move_all(more.units, set.units);
  move_all(more.observations, set.observations);
  move_all(more.left_out, set.left_out);
  move_all(more.notes, set.notes);
  set.kernel_seconds += more.kernel_seconds;
}

Gathered gather(const std::vector<std::filesystem::path>& files,
                const profiles::ImportOptions& options) {
  Gathered result;
  std::vector<std::filesystem::path> others;
  for (const std::filesystem::path& file : files) {
    if (profiles::detect_format(file) != profiles::TraceFormat::kShardwright) {
      others.push_back(file);
      continue;
    }
    const StepTrace trace = read_step_trace(file);
    append(result.set, observations_of(trace));
    if (!result.identity) result.identity = trace.identity;
  }
  // Together, because the ranks of a job share its collectives.
  if (!others.empty()) append(result.set, profiles::import_observations(others, options));
  return result;
}

std::vector<profiles::SetEntry> adopt_processor(
    const std::vector<profiles::ObservationSource>& sources, const std::string& date,
    profiles::Profile& profile) {
  Gpu& gpu = profile.cluster.gpu;
  std::vector<profiles::SetEntry> set;
  if (!gpu.is_processor()) return set;
  const auto known =
      std::find_if(sources.begin(), sources.end(), [](const auto& s) { return s.sm_count > 0; });
  if (known == sources.end() || known->sm_count > 1 << 16) return set;
  const auto entry = [&](const char* path, const auto& value, const std::string& source) {
    nlohmann::ordered_json json{{"value", value}, {"source", source}, {"confidence", "high"}};
    if (!date.empty()) json["date"] = date;
    set.push_back({path, json.dump(), "", ""});
  };
  const std::string from = fmt::format("{}, as {} says", known->gpu, known->file);
  if (known->sm_count != gpu.sm_count) {
    const double ratio = static_cast<double>(known->sm_count) / gpu.sm_count;
    const std::string scaled = fmt::format("of the base, times {:.4g} for the cores", ratio);
    gpu.sm_count = static_cast<int>(known->sm_count);
    gpu.peak_bf16_flops *= ratio;
    gpu.peak_fp32_flops *= ratio;
    gpu.hbm_bytes_per_s *= ratio;
    entry("gpu.sm_count", gpu.sm_count, from);
    entry("gpu.peak_bf16_flops", gpu.peak_bf16_flops, scaled);
    entry("gpu.peak_fp32_flops", gpu.peak_fp32_flops, scaled);
    entry("gpu.hbm_bytes_per_s", gpu.hbm_bytes_per_s, scaled);
    // The rates of attention are absolute, those of products a share of the peak.
    for (auto& [kernel, attention] : profile.cost.attention) {
      const std::string path = "cost.attention." + kernel;
      attention.values.forward_flops *= ratio;
      attention.values.backward_flops *= ratio;
      entry((path + ".forward_flops").c_str(), attention.values.forward_flops, scaled);
      entry((path + ".backward_flops").c_str(), attention.values.backward_flops, scaled);
    }
  }
  if (known->memory_bytes > 0 && known->memory_bytes != gpu.memory_bytes) {
    gpu.memory_bytes = known->memory_bytes;
    entry("gpu.memory_bytes", gpu.memory_bytes, from);
  }
  profiles::follow_gpu(profile.cost, gpu);
  return set;
}

}  // namespace shardwright::sim
