// SPDX-License-Identifier: Apache-2.0
// What software does unless told, and what it offers beyond that: fields of its stack
// (sim/core/parallel_software.h) as settings of plans.
#pragma once

#include <vector>

#include "sim/core/model.h"
#include "sim/core/parallelism.h"
#include "sim/core/plan.h"
#include "sim/core/stack.h"

namespace shardwright::profiles {

struct SoftwareSettings {
  std::vector<TensorOverlap> tensor_overlaps;
  std::vector<Dispatcher> dispatchers;
  std::vector<PipelineKind> schedules;
  std::vector<bool> expert_overlaps;
};

SoftwareSettings software_settings(const Stack& stack);

/// What the stack does unless told. Recipes of MoE models leave tensor overlap off: attention's
/// products alone are too short; userbuffers take no operands in nvfp4 (NVIDIA's recipes and
/// MLPerf's config_common_fp4.sh turn them off).
TensorOverlap usual_overlap(const Stack& stack, const Model& model,
                            Precision precision = Precision::kBf16);
Dispatcher usual_dispatcher(const Stack& stack);

/// The same plan with nothing said that holds without it: a knob at its default, or one of what the
/// plan does not divide.
Plan without_defaults(Plan plan, const Model& model, const Stack& stack);

}  // namespace shardwright::profiles
