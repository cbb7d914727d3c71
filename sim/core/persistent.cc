// SPDX-License-Identifier: Apache-2.0
#include "sim/core/persistent.h"

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

constexpr std::array<std::string_view, kMemoryCategories> kCategories = {
    "parameters",       "master",      "gradients", "optimizer", "gather_buffers",
    "gradient_buffers", "activations", "loss",      "workspace"};

}  // namespace

std::string_view name_of(MemoryCategory category) {
  return kCategories[static_cast<std::size_t>(category)];
}

std::string_view name_of(Persistent kind) {
  return kKinds[static_cast<std::size_t>(kind)].name;
}

MemoryCategory category_of(Persistent kind) {
  return kKinds[static_cast<std::size_t>(kind)].category;
}

}  // namespace shardwright
