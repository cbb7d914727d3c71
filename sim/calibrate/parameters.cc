// SPDX-License-Identifier: Apache-2.0
#include "sim/calibrate/parameters.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "profiles/fields.h"

namespace shardwright::sim {
namespace {

using profiles::CostGroup;
using profiles::Field;

constexpr double kLeastValue = 1e-12, kMostValue = 1e19;

/// The set of attention parameters that the profile's stack runs.
std::string attention_kernel(const profiles::Profile& profile) {
  return profile.cost.attention.contains(profile.stack.attention_kernel)
             ? profile.stack.attention_kernel
             : "fa2";
}

/// No kernel is faster than its GPU's peak, whatever a few small products seem to say: beyond it a
/// fit extrapolates to speeds that there are not. The peak of a processor is itself an estimate.
double most_of(const Field& field, double value, const Gpu& gpu) {
  const bool share_of_peak = field.path == "cost.gemm.e" && !gpu.is_processor();
  return share_of_peak ? std::max(1.0, value) : field.accepted.max;
}

}  // namespace

EditableProfile::EditableProfile(profiles::Profile profile)
    : profile_(std::move(profile)), fields_(profiles::fields_of(profile_)) {}

double* EditableProfile::find(const std::string& path) {
  const Field* field = fields_.find(path);
  if (field == nullptr) return nullptr;
  double* const* number = std::get_if<double*>(&field->target);
  return number != nullptr ? *number : nullptr;
}

std::vector<Adjustable> adjustable_values(const profiles::Profile& profile, CostGroup group) {
  profiles::Profile copy = profile;
  const profiles::FieldList fields = profiles::fields_of(copy);
  const std::string kernel = fmt::format("cost.attention.{}.", attention_kernel(profile));
  std::vector<Adjustable> values;
  for (const Field& field : fields.fields()) {
    const profiles::Belief& belief = field.belief;
    if (belief.spread <= 0 || belief.group != group) continue;
    if (group == CostGroup::kAttention && !field.path.starts_with(kernel)) continue;
    const double value = *std::get<double*>(field.target);
    // What a step adds may well be nothing in a profile; it is found from its measurement.
    if (!(value > 0) && group != CostGroup::kHost) continue;
    values.push_back({field.path, belief.spread, belief.rank, belief.relative,
                      std::max(field.accepted.min, kLeastValue),
                      std::min(most_of(field, value, profile.cluster.gpu), kMostValue)});
  }
  std::stable_sort(values.begin(), values.end(),
                   [](const Adjustable& a, const Adjustable& b) { return a.rank < b.rank; });
  return values;
}

}  // namespace shardwright::sim
