// SPDX-License-Identifier: Apache-2.0
// Zero bubble (Qi et al. 2023 and 2024): backward is input gradients, for which the stage before
// waits, and weight gradients, for which nobody does; those fill the bubbles.
#include <algorithm>

#include "sim/schedules/stage_actions.h"

namespace shardwright::sim {

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
