// SPDX-License-Identifier: Apache-2.0
// What software offers beyond what its stack does unless told: profiles/data/parallel_kernels.json,
// software_settings, each with its source.
#pragma once

#include <vector>

#include "sim/core/model.h"
#include "sim/core/parallelism.h"
#include "sim/core/stack.h"

namespace shardwright::profiles {

struct SoftwareSettings {
  std::vector<TensorOverlap> tensor_overlaps;
  std::vector<Dispatcher> dispatchers;
  std::vector<PipelineKind> schedules;
};

/// Of the stack's family; nothing of one that the file does not name. Throws Error where the file
/// is wrong.
const SoftwareSettings& software_settings(const Stack& stack);

/// What the stack does unless told. Recipes of mixtures leave tensor overlap off: attention's
/// products alone are too short.
TensorOverlap usual_overlap(const Stack& stack, const Model& model);
Dispatcher usual_dispatcher(const Stack& stack);

}  // namespace shardwright::profiles
