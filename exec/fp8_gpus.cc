// SPDX-License-Identifier: Apache-2.0
#include "exec/fp8_gpus.h"

#include <fmt/core.h>

namespace shardwright::exec {

std::string why_no_fp8(std::string_view gpu, int compute_major, int compute_minor,
                       Fp8Recipe recipe) {
  const int capability = 10 * compute_major + compute_minor;
  const std::string has =
      fmt::format("{} has compute capability {}.{}", gpu, compute_major, compute_minor);
  if (capability < 89) {
    return fmt::format(
        "precision is fp8, but {} and no tensor cores for it, expected 8.9 or newer or precision "
        "bf16",
        has);
  }
  if (recipe == Fp8Recipe::kRowwise && capability != 90) {
    return fmt::format(
        "fp8_recipe is rowwise, but {} and cuBLASLt scales rows on 9.0 (H100, H200) only, expected "
        "tensorwise{}",
        has, capability >= 100 ? " or mxfp8" : "");
  }
  if (recipe == Fp8Recipe::kMxfp8 && capability < 100) {
    return fmt::format("fp8_recipe is mxfp8, but {}, expected 10.0 or newer or tensorwise{}", has,
                       capability == 90 ? " or rowwise" : "");
  }
  return "";
}

}  // namespace shardwright::exec
