// SPDX-License-Identifier: Apache-2.0
// When every chunk of every stage runs: programs and durations put together.
//
// Stages are the only actors of a step that differ, so a step is a max-plus recurrence over (stage,
// chunk, micro-batch): an action starts when its stage is free and its input has arrived. Durations
// are those of whole chunks, which the event engine finds once per distinct chunk. Integer
// nanoseconds, so equal inputs give equal answers and repetition can be tested for equality.
//
// Point-to-point transfers come in two kinds. Overlapped: an output leaves when it is ready, and
// only whoever needs it waits. Blocking (Megatron's 1F1B without interleaving: batch_isend_irecv, a
// wait on the compute stream and, by default, a device synchronisation): both neighbours stand
// still from the moment when the later one arrives until the transfer is over, and then restart
// with an empty queue.
//
// Steps with many micro-batches repeat. With `shorten`, a step of many micro-batches is run with
// fewer, and the rest is added as whole periods once two periods were equal in every time; where no
// repetition is found the whole step is run. Both give the same answer (recurrence_test.cc).
#pragma once

#include <vector>

#include "sim/core/pipeline.h"
#include "sim/core/units.h"

namespace shardwright::sim {

/// Durations of one chunk of one stage. Backward as one action takes the sum of both gradients.
struct ChunkTimes {
  Nanoseconds forward = 0;
  Nanoseconds input_gradient = 0;
  Nanoseconds weight_gradient = 0;
  /// A forward and a backward that run as one block (DualPipe); 0: their sum.
  Nanoseconds paired = 0;
  /// How long before the end of a pass its output is ready to leave.
  Nanoseconds forward_tail = 0;
  Nanoseconds backward_tail = 0;
};

struct PipelineTimes {
  std::vector<ChunkTimes> chunks;  // of (stage, chunk) at stage * shape.chunks + chunk
  /// Where passes of one chunk differ: at (stage * shape.chunks + chunk) * shape.passes() +
  /// micro-batch. Such a step is walked whole.
  std::vector<ChunkTimes> by_micro_batch;
  std::vector<Nanoseconds> transfer;  // from stage s to s + 1 and back; the last one wraps around
  Nanoseconds inside = 0;             // of a pass that waits for its own exchange
  bool blocking = false;              // with schedules that can (PipelineInfo::blocking)
  Nanoseconds restart = 0;            // blocking: from the end of a transfer to the next kernel
};

struct ActionSpan {
  std::int32_t stage = 0;
  Action action;
  Nanoseconds start = 0, end = 0;
};

/// A transfer for which both neighbours stand still.
struct TransferSpan {
  std::int32_t stage = 0;  // between this one and the next
  Nanoseconds start = 0, end = 0;
};

struct StageTimes {
  Nanoseconds busy = 0;       // computing
  Nanoseconds transfers = 0;  // in blocking transfers, without the wait for the neighbour
  Nanoseconds first_start = 0;
  Nanoseconds end = 0;
  std::vector<Nanoseconds> first_forward;  // by chunk: when its first pass begins
  std::vector<Nanoseconds> last_backward;  // by chunk: when its last gradients are complete
};

struct PipelineResult {
  Nanoseconds makespan = 0;
  std::vector<StageTimes> stages;
  std::int32_t simulated_micro_batches = 0;  // fewer than asked for when the step was shortened
  // Only where they were asked for; transfers that overlap are not listed.
  std::vector<ActionSpan> spans;
  std::vector<TransferSpan> transfers;
  /// Share of the stages' time in which they compute nothing: 1 - busy / (stages * makespan).
  double bubble() const;
};

enum class StepLength : std::uint8_t { kWhole, kShortened };

/// Runs the step. A program whose actions wait for one another for ever is a broken invariant.
PipelineResult run_pipeline(const PipelineShape& shape, const PipelineTimes& times,
                            StepLength length = StepLength::kShortened, bool keep_spans = false);

}  // namespace shardwright::sim
