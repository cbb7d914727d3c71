// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/calibrated_file.h"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <ctime>

#include "sim/core/base/atomic_file.h"

namespace shardwright::sim {
namespace {

namespace fs = std::filesystem;

/// A shipped name stays; a path is given from where the new file stands.
std::string base_from(const std::string& base, const fs::path& out) {
  if (base.find('/') == std::string::npos && !base.ends_with(".json")) return base;
  std::error_code failed;
  const fs::path folder = fs::absolute(out).parent_path();
  const fs::path relative = fs::relative(fs::absolute(base), folder, failed);
  if (failed || relative.empty()) return fs::absolute(base).string();
  // A bare word would be looked up among the names that ship.
  return relative.string();
}

std::string what_from(const std::vector<profiles::ObservationSource>& sources,
                      const std::vector<profiles::AnchorStep>& anchors) {
  if (!anchors.empty()) {
    return fmt::format("a step of {:.4g} s of {} on {} GPUs", anchors.front().step_s,
                       anchors.front().model, anchors.front().gpus);
  }
  if (sources.size() == 1) return sources.front().file;
  return fmt::format("{} files", sources.size());
}

}  // namespace

std::string today() {
  return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
}

void write_calibrated(const fs::path& out, const CalibratedFile& file,
                      const CalibrationResult& result) {
  profiles::Calibration record = record_of(result, file.stack, file.level);
  record.date = file.date;
  record.parent = file.base;
  record.sources = file.sources;
  record.anchors = file.anchors;
  for (profiles::ObservationSource& source : record.sources) source.step_s.clear();
  std::vector<profiles::SetEntry> set = file.facts;
  const std::string from = what_from(file.sources, file.anchors);
  for (profiles::SetEntry& entry : set_of(result, from, file.date)) {
    set.push_back(std::move(entry));
  }
  const std::string text = profiles::calibrated_json(
      out.stem().string(), fmt::format("{}, calibrated to {}", file.base, from),
      base_from(file.base, out), set, result.products, file.product_choices, record);
  const fs::path trial = fs::path(out) += ".new";
  try {
    write_file_atomically(trial, text);
    profiles::load_cluster(fs::absolute(trial).string());
  } catch (...) {
    std::error_code ignored;
    fs::remove(trial, ignored);
    throw;
  }
  fs::remove(trial);
  write_file_atomically(out, text);
}

}  // namespace shardwright::sim
