// SPDX-License-Identifier: Apache-2.0
#include "profiles/uncertainty/anchored_uncertainty.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "profiles/data_dir.h"
#include "sim/core/base/json_file.h"

namespace shardwright::profiles {
namespace {

/// (w/h)^2; 1 where a measured step tells nothing.
double own_part(const AnchoredUncertainty& uncertainty, bool model_parallel, double half_width) {
  const auto& widths = uncertainty.widths;
  const auto at = std::find_if(widths.begin(), widths.end(), [&](const AnchoredWidth& width) {
    return width.model_parallel == model_parallel;
  });
  if (at == widths.end() || !(half_width > at->own)) return 1;
  return at->own * at->own / (half_width * half_width);
}

AnchoredUncertainty load_anchored_uncertainty() {
  AnchoredUncertainty uncertainty;
  const std::filesystem::path path = data_dir() / "fitted" / "anchored_residuals.json";
  if (!std::filesystem::exists(path)) return uncertainty;
  const JsonFile file = JsonFile::load(path);
  uncertainty.level = file.root().require<double>("level", between(0.01, 0.999));
  for (const JsonReader& entry : file.root().require_array("widths")) {
    AnchoredWidth& width = uncertainty.widths.emplace_back();
    width.model_parallel = entry.require<bool>("model_parallel");
    width.own = entry.require<double>("own", between(0.0, 10.0));
    width.runs = entry.require<std::int64_t>("runs", at_least<std::int64_t>(1));
    width.cells = entry.require<std::int64_t>("cells", at_least<std::int64_t>(1));
  }
  return uncertainty;
}

}  // namespace

double AnchoredUncertainty::carried_share(bool model_parallel, double half_width) const {
  return 1 - own_part(*this, model_parallel, half_width);
}

double AnchoredUncertainty::half_width(bool model_parallel, double half_width) const {
  const double own = own_part(*this, model_parallel, half_width);
  return half_width * std::sqrt(own * (2 - own));
}

const AnchoredUncertainty& anchored_uncertainty() {
  static const AnchoredUncertainty uncertainty = load_anchored_uncertainty();
  return uncertainty;
}

}  // namespace shardwright::profiles
