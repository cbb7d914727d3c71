// SPDX-License-Identifier: Apache-2.0
// The group `parallel` of a stack's file: what its framework does in model-parallel plans.
#pragma once

#include "profiles/fields.h"
#include "sim/core/parallel_software.h"

namespace shardwright::profiles {

/// Into the group that is open. Each may be left out of a file: then it is as in the struct.
void describe(FieldList& fields, ParallelSoftware& parallel);

}  // namespace shardwright::profiles
