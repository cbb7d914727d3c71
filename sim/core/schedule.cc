// SPDX-License-Identifier: Apache-2.0
#include "sim/core/schedule.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>

namespace shardwright {

namespace {

struct Kind {
  MemoryCategory category;
  std::string_view name;
};

/// By enumerator.
constexpr std::array<Kind, kPersistentKinds> kKinds = {{
    {MemoryCategory::kMaster, "master parameters"},
    {MemoryCategory::kOptimizer, "Adam moments"},
    {MemoryCategory::kParameters, "compute parameters"},
    {MemoryCategory::kParameters, "sharded compute parameters"},
    {MemoryCategory::kGradients, "gradients"},
    {MemoryCategory::kGradients, "sharded gradients"},
    {MemoryCategory::kGatherBuffers, "rotating weight buffers"},
    {MemoryCategory::kGatherBuffers, "weight buffers"},
    {MemoryCategory::kGatherBuffers, "tied embedding buffer"},
    {MemoryCategory::kGatherBuffers, "norm weight buffer"},
    {MemoryCategory::kGradientBuffers, "rotating gradient buffers"},
    {MemoryCategory::kGradientBuffers, "tied embedding gradient buffer"},
    {MemoryCategory::kGradientBuffers, "norm gradient buffer"},
    {MemoryCategory::kGradientBuffers, "reduction buffer"},
    {MemoryCategory::kGradientBuffers, "reduced shard"},
    {MemoryCategory::kGradientBuffers, "gradient buckets"},
    {MemoryCategory::kGradientBuffers, "all-reduce buckets"},
    {MemoryCategory::kWorkspace, "optimizer state on its way"},
    {MemoryCategory::kWorkspace, "workspace"},
}};

}  // namespace

std::string_view name_of(Persistent kind) {
  return kKinds[static_cast<std::size_t>(kind)].name;
}

MemoryCategory category_of(Persistent kind) {
  return kKinds[static_cast<std::size_t>(kind)].category;
}

std::string_view name_of(CommGroup group) {
  switch (group) {
    case CommGroup::kTensor:
      return "tensor";
    case CommGroup::kContext:
      return "context";
    case CommGroup::kExpert:
      return "expert";
    case CommGroup::kPipeline:
      return "pipeline";
    default:
      return "data";
  }
}

void Schedule::clear() {
  streams.clear();
  ops.clear();
  memory.clear();
  blocks.clear();
  sections.clear();
  persistent.clear();
  first_id = 0;
  groups.fill({});
  layout = {};
  sharding = {};
  unit_sizes = {};
  stage_layers.clear();
  event_names.clear();
}

std::string unit_name(const Schedule& schedule, std::int32_t unit) {
  if (unit == 0) return "embedding";
  if (unit <= schedule.layers) return fmt::format("layer{}", unit - 1);
  return unit == schedule.head_unit() ? "head" : "norms";
}

std::string describe(const Schedule& schedule, const OpInstance& instance) {
  const Op& op = schedule.ops[instance.op];
  const bool step_wide = op.phase == Phase::kOptimizer || op.phase == Phase::kPrepare;
  const bool names_unit = !step_wide || op.target == kNormUnit;
  std::string text =
      names_unit ? unit_name(schedule, schedule.target(op, instance.unit)) + "." : "";
  text += name_of(op.phase);
  text += ".";
  const bool is_gradient = op.kind == OpKind::kInputGradient || op.kind == OpKind::kWeightGradient;
  if (is_gradient && op.of != OpKind::kHostWork) {
    text += name_of(op.of);
    text += ".";
  }
  text += name_of(op.kind);
  if (op.part > 0) text += fmt::format("#{}", static_cast<int>(op.part));
  return text;
}

}  // namespace shardwright
