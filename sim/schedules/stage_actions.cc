// SPDX-License-Identifier: Apache-2.0
#include "sim/schedules/stage_actions.h"

#include <algorithm>
#include <array>

namespace shardwright::sim {

namespace {

using Write = void (*)(const PipelineShape&, std::int32_t, ActionWriter&);

constexpr std::array<Write, kPipelineKinds> kWriters = {
#define PIPELINE_SCHEDULE(id, name, writer, ...) &writer,
#include "sim/core/pipeline_schedules.def"
#undef PIPELINE_SCHEDULE
};

}  // namespace

Actions stage_actions(const PipelineShape& shape, std::int32_t stage) {
  Actions actions;
  actions.reserve(static_cast<std::size_t>(3 * shape.chunks) *
                  static_cast<std::size_t>(shape.micro_batches));
  ActionWriter writer(actions);
  kWriters[static_cast<std::size_t>(shape.kind)](shape, stage, writer);
  return actions;
}

// DualPipe (deepseek-ai/DualPipe, dualpipe.py): two copies of the model, through which half of the
// micro-batches go each way, so that one direction computes while the exchanges of experts of the
// other one travel.

namespace {

/// The steps of dualpipe.py. Micro-batches of chunk 0 enter at stage 0, those of chunk 1 at the
/// last stage; a stage of the second half sees them the other way round.
class DualpipeWriter {
 public:
  DualpipeWriter(const PipelineShape& shape, std::int32_t stage, ActionWriter& w)
      : w_(w),
        half_(shape.stages / 2),
        each_way_(shape.passes()),
        stages_(shape.stages),
        second_half_(stage >= half_),
        half_rank_(std::min(stage, shape.stages - 1 - stage)) {}

  void write() {
    const std::int32_t outer = half_ - half_rank_ - 1;  // how far from the middle
    const bool middle = outer == 0;
    for (std::int32_t i = 0; i < 2 * outer; ++i) forward(0);
    for (std::int32_t i = 0; i <= half_rank_; ++i) {
      forward(0);
      forward(1);
    }
    for (std::int32_t i = 0; i < outer; ++i) {
      backward(1, true);
      weight();
      forward(1);
    }
    const std::int32_t main = each_way_ - stages_ + half_rank_ + 1;
    for (std::int32_t i = 0; i < main; ++i) {
      forward_backward(0, 1, !(middle && i == 0));
      forward_backward(1, 0, true);
    }
    for (std::int32_t i = 0; i < outer; ++i) {
      backward(1, false);
      forward_backward(1, 0, true);
    }
    bool delays = false;
    for (std::int32_t i = 0; i <= half_rank_; ++i) {
      const bool turn = i == (half_rank_ + 1) / 2;
      if (turn && half_rank_ % 2 == 1) delays = true;
      backward(1, delays);
      if (turn && half_rank_ % 2 == 0) delays = true;
      backward(0, delays);
    }
    for (std::int32_t i = 0; i < outer; ++i) {
      weight();
      backward(0, true);
    }
    while (next_weight_ < delayed_.size()) weight();
  }

 private:
  std::int32_t chunk_of(std::int32_t phase) const { return phase ^ (second_half_ ? 1 : 0); }
  void forward(std::int32_t phase) { w_.forward(chunk_of(phase), forwards_[phase]++); }
  void backward(std::int32_t phase, bool delays_weights) {
    const std::int32_t micro = backwards_[phase]++;
    if (!delays_weights) return w_.backward(chunk_of(phase), micro);
    w_.backward_input(chunk_of(phase), micro);
    delayed_.push_back(
        {PassKind::kBackwardWeight, false, static_cast<std::int16_t>(chunk_of(phase)), micro});
  }
  void weight() {
    const Action& action = delayed_[next_weight_++];
    w_.backward_weight(action.chunk, action.micro_batch);
  }
  void forward_backward(std::int32_t forward_phase, std::int32_t backward_phase, bool overlaps) {
    forward(forward_phase);
    if (overlaps) w_.overlap_last();
    backward(backward_phase, false);
  }

  ActionWriter& w_;
  std::int32_t half_, each_way_, stages_;
  bool second_half_;
  std::int32_t half_rank_;
  std::int32_t forwards_[2] = {0, 0}, backwards_[2] = {0, 0};
  Actions delayed_;
  std::size_t next_weight_ = 0;
};

}  // namespace

void write_dualpipe(const PipelineShape& shape, std::int32_t stage, ActionWriter& w) {
  DualpipeWriter(shape, stage, w).write();
}

// GPipe (Huang et al. 2019): all micro-batches forward, then all backward.
//
// Both ways in ascending order, as PyTorch's ScheduleGPipe runs them: with equal stages the
// makespan is that of the descending order, and gradients add up in the order of one rank that
// accumulates the same micro-batches. A stage keeps the activations of all of them.

void write_gpipe(const PipelineShape& shape, std::int32_t, ActionWriter& w) {
  for (std::int32_t i = 0; i < shape.micro_batches; ++i) w.forward(0, i);
  for (std::int32_t i = 0; i < shape.micro_batches; ++i) w.backward(0, i);
}

// Interleaved 1F1B (Narayanan et al. 2021; Megatron-LM core/pipeline_parallel/schedules.py,
// forward_backward_pipelining_with_interleaving): a stage holds several chunks from all over the
// model, which divides the bubble by their number.
//
// Groups of micro-batches run chunk after chunk, backward with the chunks reversed
// (get_schedule_table); a pass of one chunk is a virtual micro-batch.

namespace {

struct VirtualMicroBatch {
  std::int32_t chunk = 0, micro_batch = 0;
};

/// The k-th one forward.
VirtualMicroBatch virtual_micro_batch(const PipelineShape& shape, std::int32_t k) {
  const std::int32_t group = shape.group_size();
  const std::int32_t round = k / (group * shape.chunks);
  const std::int32_t first = round * group;
  const std::int32_t size = std::min(group, shape.micro_batches - first);
  const std::int32_t inside = k - round * group * shape.chunks;
  return {inside / size, first + inside % size};
}

}  // namespace

void write_interleaved(const PipelineShape& shape, std::int32_t stage, ActionWriter& w) {
  const auto forward = [&](std::int32_t k) {
    const VirtualMicroBatch at = virtual_micro_batch(shape, k);
    w.forward(at.chunk, at.micro_batch);
  };
  const auto backward = [&](std::int32_t k) {
    const VirtualMicroBatch at = virtual_micro_batch(shape, k);
    w.backward(shape.chunks - 1 - at.chunk, at.micro_batch);
  };
  const std::int32_t total = shape.micro_batches * shape.chunks;
  const std::int32_t warm_up =
      std::min(2 * (shape.stages - stage - 1) + (shape.chunks - 1) * shape.group_size(), total);
  for (std::int32_t k = 0; k < warm_up; ++k) forward(k);
  for (std::int32_t k = warm_up; k < total; ++k) {
    forward(k);
    backward(k - warm_up);
  }
  for (std::int32_t k = total - warm_up; k < total; ++k) backward(k);
}

// 1F1B (PipeDream-flush; Megatron-LM core/pipeline_parallel/schedules.py,
// forward_backward_pipelining_without_interleaving): as GPipe, but a stage runs the backward pass
// of a micro-batch as soon as it comes back, so stage s of p keeps at most p - s of them.

void write_1f1b(const PipelineShape& shape, std::int32_t stage, ActionWriter& w) {
  const std::int32_t m = shape.micro_batches;
  const std::int32_t warm_up = std::min(shape.stages - stage - 1, m);
  for (std::int32_t i = 0; i < warm_up; ++i) w.forward(0, i);
  for (std::int32_t i = warm_up; i < m; ++i) {
    w.forward(0, i);
    w.backward(0, i - warm_up);
  }
  for (std::int32_t i = m - warm_up; i < m; ++i) w.backward(0, i);
}

// Zero bubble (Qi et al. 2023 and 2024): backward is input gradients, for which the stage before
// waits, and weight gradients, for which nobody does; those fill the bubbles.

/// ZB-H1: as 1F1B, but stage i computes weight gradients i micro-batches late, which fills the
/// bubbles of the drain and keeps as many activations as 1F1B does on its first stage.
void write_zb1p(const PipelineShape& shape, std::int32_t stage, ActionWriter& w) {
  const std::int32_t m = shape.micro_batches;
  std::int32_t forwards = std::min(shape.stages - stage, m);
  for (std::int32_t i = 0; i < forwards; ++i) w.forward(0, i);
  std::int32_t weights = 0;
  for (std::int32_t i = 0; i < m; ++i) {
    w.backward_input(0, i);
    if (i >= stage) w.backward_weight(0, weights++);
    if (forwards < m) w.forward(0, forwards++);
  }
  while (weights < m) w.backward_weight(0, weights++);
}

namespace {

/// ZBV as PyTorch's ScheduleZBVZeroBubble writes it, two chunks in a V. The schedule is made for at
/// least 2p - 1 micro-batches; those beyond the step's own are left out.
class ZbvWriter {
 public:
  ZbvWriter(const PipelineShape& shape, std::int32_t stage, ActionWriter& w)
      : own_(shape.micro_batches), stages_(shape.stages), stage_(stage), w_(w) {}

  void write() {
    const std::int32_t after = stages_ - stage_;
    const std::int32_t m = std::max(2 * stages_ - 1, own_);
    for (std::int32_t i = 0; i < 2 * after - 1; ++i) forward(0);
    for (std::int32_t i = 0; i < stage_; ++i) {
      forward(1);
      forward(0);
    }
    for (std::int32_t i = 0; i < after; ++i) {
      forward(1);
      backward(1);
    }
    while (forwards_[1] < forwards_[0] || forwards_[0] < m) {
      if (forwards_[0] < m) forward(0);
      backward(0);
      forward(1);
      backward(1);
    }
    for (std::int32_t i = 0; i < stage_; ++i) {
      input(0);
      input(1);
    }
    for (std::int32_t i = 0; i < after; ++i) {
      input(0);
      weight(0);
    }
    while (weights_[1] < inputs_[1]) weight(1);
    while (weights_[0] < inputs_[0]) weight(0);
  }

 private:
  void forward(std::int32_t chunk) {
    const std::int32_t micro = forwards_[chunk]++;
    if (micro < own_) w_.forward(chunk, micro);
  }
  void input(std::int32_t chunk) {
    const std::int32_t micro = inputs_[chunk]++;
    if (micro < own_) w_.backward_input(chunk, micro);
  }
  void weight(std::int32_t chunk) {
    const std::int32_t micro = weights_[chunk]++;
    if (micro < own_) w_.backward_weight(chunk, micro);
  }
  void backward(std::int32_t chunk) {
    input(chunk);
    weight(chunk);
  }

  std::int32_t own_, stages_, stage_;
  ActionWriter& w_;
  std::int32_t forwards_[2] = {0, 0}, inputs_[2] = {0, 0}, weights_[2] = {0, 0};
};

}  // namespace

void write_zbv(const PipelineShape& shape, std::int32_t stage, ActionWriter& w) {
  ZbvWriter(shape, stage, w).write();
}

}  // namespace shardwright::sim
