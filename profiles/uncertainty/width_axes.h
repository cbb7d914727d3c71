// SPDX-License-Identifier: Apache-2.0
// The axes on which a run can be new, and how wide each makes the interval of its time
// (novelty_widths.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shardwright::profiles {

/// What can be new about a run, or uncertain about its step.
enum class WidthAxis : std::uint8_t {
  kSource,      // the base: whose runs were published or not
  kModelClass,  // experts
  kPrecision,   // fp8 and fewer bits
  kGpu,
  kFramework,
  kSize,     // longer sequences or wider layers than any published run had
  kHost,     // layers quicker than the quickest published ones, which the host may not keep up with
  kRouting,  // loads of experts that nobody measured
  kScale,    // what machines lose with the number of GPUs
  kOrder,    // of kernels of equal priority
  kRetries   // the allocator empties its cache within a step
};
inline constexpr std::size_t kWidthAxes = 11;
/// "source", "model_class", ..
std::string_view name_of(WidthAxis axis);

using AddedWidths = std::array<double, kWidthAxes>;
inline double& at(AddedWidths& widths, WidthAxis axis) {
  return widths[static_cast<std::size_t>(axis)];
}
inline double at(const AddedWidths& widths, WidthAxis axis) {
  return widths[static_cast<std::size_t>(axis)];
}
/// The half-width that they add up to.
double total_of(const AddedWidths& widths);

}  // namespace shardwright::profiles
