// SPDX-License-Identifier: Apache-2.0
// DualPipe (deepseek-ai/DualPipe, dualpipe.py): two copies of the model, through which half of the
// micro-batches go each way, so that one direction computes while the exchanges of experts of the
// other one travel.
#include <algorithm>

#include "sim/schedules/stage_actions.h"

namespace shardwright::sim {
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

}  // namespace shardwright::sim
