#include "cli/measured_profile.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/host_profile.h"
#include "sim/calibrate/rows.h"
#include "sim/core/error.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

const profiles::ObservationSource* processor_of(const profiles::ObservationSet& set) {
  for (const profiles::ObservationSource& source : set.sources) {
    if (source.sm_count > 0) return &source;
  }
  return nullptr;
}

/// "KEY=VALUE" for the processor; none where the base is none or nothing is known of it.
std::vector<std::string> sizes(const profiles::Profile& base, const profiles::ObservationSet& set) {
  const profiles::ObservationSource* source = processor_of(set);
  if (!base.cluster.gpu.is_processor() || source == nullptr) return {};
  if (base.cluster.gpu.sm_count == source->sm_count) return {};
  const Bytes memory =
      source->memory_bytes > 0 ? source->memory_bytes : base.cluster.gpu.memory_bytes;
  return sized_to(base, static_cast<int>(source->sm_count), memory);
}

std::string reference(const std::string& base, const std::string& out) {
  const bool is_path = base.find('/') != std::string::npos || base.ends_with(".json");
  if (!is_path) return base;
  const fs::path folder = fs::absolute(out).parent_path();
  const fs::path relative = fs::absolute(base).lexically_normal().lexically_relative(folder);
  return relative.string().find('/') == std::string::npos ? "./" + relative.string()
                                                          : relative.string();
}

}  // namespace

profiles::Profile sized_base(const std::string& base, const std::string& stack,
                             const profiles::ObservationSet& set) {
  const profiles::Profile profile = profiles::load_profile(base, stack);
  const std::vector<std::string> overrides = sizes(profile, set);
  return overrides.empty() ? profile : profiles::load_profile(base, stack, overrides);
}

MeasuredProfile measured_profile(const profiles::ObservationSet& set,
                                 const MeasuredProfileOptions& options) {
  MeasuredProfile file;
  const profiles::Profile profile = sized_base(options.base, options.stack, set);
  const sim::Rows rows = sim::rows_of(set);
  if (rows.rows.empty()) {
    throw Error("nothing was observed that a cost formula describes, so no profile is written",
                ExitCode::kFailed);
  }
  file.result = sim::calibrate(profile, sim::merged(rows.rows));
  constexpr double kLevel = 0.9;
  profiles::Calibration record = sim::record_of(file.result, options.stack, kLevel);
  record.date = options.date;
  record.parent = options.base;
  for (profiles::ObservationSource source : set.sources) {
    source.step_s.clear();
    record.sources.push_back(std::move(source));
  }
  std::vector<profiles::SetEntry> fitted = sim::set_of(file.result, options.from, options.date);
  std::vector<profiles::SetEntry> entries;
  for (const std::string& size : sizes(profiles::load_profile(options.base, options.stack), set)) {
    const std::size_t equals = size.find('=');
    const std::string path = size.substr(0, equals);
    const bool moved = std::any_of(fitted.begin(), fitted.end(),
                                   [&](const auto& entry) { return entry.path == path; });
    if (moved) continue;
    const nlohmann::ordered_json value{
        {"value", nlohmann::ordered_json::parse(size.substr(equals + 1))},
        {"source", fmt::format("{} has {} cores; rates are those of {} for each core",
                               processor_of(set)->gpu, processor_of(set)->sm_count, options.base)},
        {"confidence", "medium"},
        {"date", options.date}};
    entries.push_back({path, value.dump(), "", ""});
  }
  entries.insert(entries.end(), fitted.begin(), fitted.end());
  const std::string id = fs::path(options.out).stem().string();
  const profiles::ObservationSource* machine = processor_of(set);
  const std::string description = fmt::format(
      "{}, calibrated by {}",
      machine != nullptr && !machine->gpu.empty() ? machine->gpu : options.base, options.from);
  file.text = profiles::calibrated_json(id, description, reference(options.base, options.out),
                                        entries, file.result.products, record);
  return file;
}

}  // namespace shardwright::cli
