// SPDX-License-Identifier: Apache-2.0
#include "cli/render/text/bar.h"

#include <algorithm>
#include <cmath>

namespace shardwright::cli {

std::string bar(double share, int columns, const Terminal& out) {
  if (!(share > 0)) return "";
  const double length = std::min(share, 1.0) * columns;
  if (!out.utf8) {
    return std::string(static_cast<std::size_t>(std::max(1.0, std::round(length))), '#');
  }
  constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<std::size_t>(std::max(1.0, std::round(length * 8)));
  std::string text;
  for (std::size_t i = 0; i < eighths / 8; ++i) text += "█";
  return text + kEighths[eighths % 8];
}

}  // namespace shardwright::cli
