// SPDX-License-Identifier: Apache-2.0
#include "profiles/divided_doubt.h"

#include <algorithm>
#include <filesystem>

#include "profiles/data_dir.h"
#include "sim/core/json_file.h"

namespace shardwright::profiles {
namespace {

constexpr double kUnknownGpu = 1.25;  // as kBeyond of sim/doubt/conformal.h

DividedDoubt load() {
  DividedDoubt doubt;
  const std::filesystem::path path = data_dir() / "fitted" / "divided_residuals.json";
  if (!std::filesystem::exists(path)) return doubt;
  const JsonFile file = JsonFile::load(path);
  doubt.level = file.root().require<double>("level", between(0.01, 0.999));
  for (const JsonReader& entry : file.root().require_array("widths")) {
    DividedWidth& width = doubt.widths.emplace_back();
    width.mixture = entry.require<bool>("mixture");
    width.narrow = entry.require<bool>("narrow");
    width.half_width = entry.require<double>("half_width", between(0.0, 10.0));
    width.cells = entry.require<std::int64_t>("cells", at_least<std::int64_t>(1));
  }
  for (const JsonReader& gpu : file.root().require_array("gpus")) {
    doubt.gpus.push_back(gpu.value<std::string>());
  }
  return doubt;
}

}  // namespace

double DividedDoubt::half_width(bool mixture, bool narrow, const std::string& gpu) const {
  const auto at = std::find_if(widths.begin(), widths.end(), [&](const DividedWidth& width) {
    return width.mixture == mixture && width.narrow == narrow;
  });
  if (at == widths.end()) return 0;
  const bool known = std::find(gpus.begin(), gpus.end(), gpu) != gpus.end();
  return at->half_width * (known ? 1 : kUnknownGpu);
}

const DividedDoubt& divided_doubt() {
  static const DividedDoubt doubt = load();
  return doubt;
}

}  // namespace shardwright::profiles
