// From flags to what a search holds fixed: shared by the verbs that search plans, tune and size.
#pragma once

#include "cli/flags/plan_flags.h"
#include "tuner/space.h"

namespace shardwright::cli {

/// Every knob that was given, fixed; the rest is searched. Sequences of 2048 tokens, or what the
/// model takes, unless given. The number of GPUs and the global batch are left to the verb. Throws
/// Error when a value makes no sense.
tuner::Request request_from(const PlanFlags& flags, const Model& model);

}  // namespace shardwright::cli
