// SPDX-License-Identifier: Apache-2.0
// The stack behind a trace of somebody's training: how many kernels each operation runs, what they
// move, how fast they are beside the GPU's streaming bandwidth, and what the host costs.
//
// A profile that was calibrated with the trace says what the machine does; this says what the
// software on it does, so that a prediction for another plan (YaFSDP, another number of
// checkpointed layers, more GPUs) keeps both. Element-wise kernels are told apart by the model's
// sizes (profiles/import/observe.h). A value moves only where the trace shows enough of the
// operation; the rest stays as in the stack that one starts from, and is named.
//
// Efficiencies are of kernels that ran beside no collective:
//     efficiency = (time of the bytes at streaming bandwidth) / (measured time - launches t1)
// Left out: what tensors are kept for backward (a trace does not show memory), and the hooks of the
// sharding (they are not told from the rest of Python).
#pragma once

#include <string>
#include <vector>

#include "profiles/observation.h"
#include "profiles/profile.h"
#include "profiles/stack_file.h"
#include "sim/calibrate/fit_group.h"
#include "sim/core/model.h"

namespace shardwright::sim {

/// What is known of a traced job from its observations.
struct TracedJob {
  std::int64_t seq_len = 0;
  std::int64_t micro_batch = 0;
  std::int64_t micro_steps = 0;  // forward passes, of all steps and ranks
  std::int64_t world_size = 0;
};

/// Throws Error when the trace shows no attention of this model, from which batch and length
/// follow.
TracedJob traced_job(const profiles::ObservationSet& set, const Model& model);

struct StackChange {
  std::string path;  // "norm.forward_efficiency"
  double before = 0, after = 0;
  std::int64_t kernels = 0;  // that it was told from
};

struct StackFromTrace {
  profiles::StackFile stack;
  TracedJob job;
  std::vector<StackChange> changes;
  std::vector<std::string> not_determined;  // sentences
};

/// `profile` is what the trace was calibrated into: its streaming bandwidth is the measure of
/// efficiencies. `start` is the stack to change; the result is called `id`. Origins name the files
/// of `set`. Throws Error as traced_job.
StackFromTrace stack_from_trace(const profiles::ObservationSet& set, const Model& model,
                                const profiles::Profile& profile, const profiles::StackFile& start,
                                const std::string& id);

// What the host costs: launches forward and backward, and what a step adds to its operations.
//
// These are sums of many small times, so their mean matters, and each is measured by itself: no
// curve is fitted. A value is determined by five timings.

/// Sets stack.host.* of `profile` where `rows` measure them. `rows` may be of any group.
GroupFit fit_host(EditableProfile& profile, const std::vector<profiles::MeasuredRow>& rows);

}  // namespace shardwright::sim
