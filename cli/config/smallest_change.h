// SPDX-License-Identifier: Apache-2.0
// The smallest change of a plan that makes it fit: what a trainer's file can say, one knob if one
// is enough, two if not, and of those the change that costs the least time a token.
//
// This is no search for the best plan (tune is): it keeps sequences, GPUs, the global batch and the
// division of the model, and moves single knobs the way that saves memory, each no further than it
// must: more checkpointed layers, a smaller micro-batch with more micro-batches, a loss in pieces,
// expandable segments, resharding; where none of these is enough, the optimizer in the host's
// memory or in 8 bits; and as the last resort adapters, over quantized weights if need be.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/config/imported.h"
#include "sim/job.h"
#include "sim/predict.h"

namespace shardwright::cli {

struct KnobChange {
  std::string knob;  // as in a plan file: "micro_batch"
  std::string from, to;
};

struct SmallestChange {
  std::vector<KnobChange> changes;
  sim::Prediction prediction;
};

/// None where no change of one or two knobs makes it fit, or `worst` at worst.
std::optional<SmallestChange> smallest_change(const sim::Job& job, const Plan& plan,
                                              ConfigFormat::Layers layers,
                                              sim::MemoryVerdict worst = sim::MemoryVerdict::kFits);

/// Knobs that differ, in the order of a plan file.
std::vector<KnobChange> changes_between(const Plan& from, const Plan& to);

}  // namespace shardwright::cli
