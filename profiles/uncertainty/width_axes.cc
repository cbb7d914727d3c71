// SPDX-License-Identifier: Apache-2.0
#include "profiles/uncertainty/width_axes.h"

#include <cmath>

#include "sim/core/base/words.h"

namespace shardwright::profiles {
namespace {

constexpr std::array<std::string_view, kWidthAxes> kAxisNames = {
    "source", "model_class", "precision", "gpu",   "framework", "size",
    "host",   "routing",     "scale",     "order", "retries"};

}  // namespace

std::string_view name_of(WidthAxis axis) {
  return name_in(kAxisNames, axis);
}

double total_of(const AddedWidths& widths) {
  double squares = 0;
  for (const double width : widths) squares += width * width;
  return std::sqrt(squares);
}

}  // namespace shardwright::profiles
