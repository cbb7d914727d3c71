// SPDX-License-Identifier: Apache-2.0
// The least time of a pipeline's step, without its walk.
//
// What the recurrence (sim/pipeline) adds up is known before it runs: a stage computes all of its
// passes one after another, starts no sooner than the first micro-batch has come through the first
// chunks of the stages before it, and its last backward has yet to go back through them. So for
// every stage s
//
//   end >= sum_{q < s} F_q + m sum_c (F_sc + B_sc) + sum_{q < s} B_q
//
// with F_q and B_q the passes of the first chunk of stage q. With equal stages and no transfers
// that is the closed form of 1F1B and of interleaving, so there the bound is off by transfers and
// by waits of uneven stages only. Where weight gradients are passes of their own, they may be the
// last that a stage does: either they count or the way back through the stages before it. Schedules
// in the shape of a V have no such order; their bound is the busiest stage. What follows the passes
// (reductions, the update) counts nothing; passes count what their units take at least
// (unit_bounds.h).
#pragma once

#include "sim/bounds/unit_bounds.h"

namespace shardwright::sim {

/// `passes` are those of the same model and profile.
double pipeline_bound_s(const Model& model, const profiles::Profile& profile, const Plan& plan,
                        UnitBounds& passes);

}  // namespace shardwright::sim
