// SPDX-License-Identifier: Apache-2.0
// Proves that every place in a rank's memory is free when an operation takes it: no two operations
// of which one writes touch the same bytes unless one of them has ended before the other begins,
// whatever they last.
//
// A walk of the step in host order with a vector clock for each stream. An operation comes after
// those before it on its stream and what the events that it waits for had seen, as last recorded;
// the host's waits hold up all that it issues afterwards, and a message also comes after the last
// user of its slot. Messages have streams of their own by peer and direction, as over NCCL. Places
// are those of activations (sim/core/arena.h) and of parameters and gradients
// (sim/core/placement.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/core/schedule.h"
#include "sim/pipeline/step_program.h"

namespace shardwright::sim {

/// The first two operations that touch one place in no order, in words. `stage` is the number of a
/// pipeline's.
std::optional<std::string> find_taken_place(const Schedule& schedule, std::int32_t stage = 0);

/// Throws Error with that sentence. `stages` are those of one step.
void check_places_free(const std::vector<Schedule>& stages);

/// executed_step() on this project's framework, of a plan that check_plan() and check_run() pass,
/// with its places proved free: what `run` walks. Throws Error with what it says otherwise.
StepProgram proven_step(const Model& model, const Plan& plan, const Stack& native,
                        std::int64_t gpus_per_node);

}  // namespace shardwright::sim
