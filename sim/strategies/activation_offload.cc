// SPDX-License-Identifier: Apache-2.0
#include "sim/strategies/activation_offload.h"

#include <algorithm>

namespace shardwright::sim {

bool ActivationOffload::acts_on(StepWriter& w, int offset) const {
  return layer_bytes_ > 0 && is_layer(w.kind(offset));
}

void ActivationOffload::declare(StepWriter& w) {
  const auto layers = static_cast<std::int32_t>(w.layers());
  if (w.plan().offload != Offload::kActivations || layers == 0) return;
  const auto offloaded = std::min(layers, static_cast<std::int32_t>(w.plan().offload_layers));
  Bytes bytes = 0;
  for (std::int32_t unit = layers - offloaded + 1; unit <= layers; ++unit)
    bytes += w.kept_bytes(unit);
  layer_bytes_ = bytes / layers;
  if (layer_bytes_ == 0) return;
  stream_ = w.stream("offload", StreamRole::kSide, 0);
  kept_ = w.event("kept");
  left_ = w.event("left");
  returned_ = w.event("returned");
  used_ = w.event("used");
}

/// Of a place in the compute stream that takes no time.
void ActivationOffload::mark(StepWriter& w, Phase phase, std::uint8_t record) const {
  Op& marker = w.op(OpKind::kHostWork, 0, phase);
  marker.work.kernels = 0;
  marker.record = {record, 0};
}

void ActivationOffload::copy(StepWriter& w, OpKind kind, Phase phase, int offset, EventRef after,
                             std::uint8_t record) const {
  Op& op = w.op(kind, stream_, phase);
  op.target = static_cast<std::int8_t>(offset);
  op.work.kind = WorkKind::kTransfer;
  op.work.bytes = layer_bytes_;
  op.waits[0] = after;
  op.record = {record, static_cast<std::int16_t>(offset)};
  if (kind == OpKind::kCopyIn)
    w.acquire(Tensor::kOffloaded, offset, layer_bytes_, stream_, MemoryCategory::kActivations);
}

void ActivationOffload::before_forward(StepWriter& w) {
  if (acts_on(w, 0) && acts_on(w, -2)) w.wait_on_compute({left_, -2});
}

void ActivationOffload::after_forward(StepWriter& w) {
  if (!acts_on(w, 0)) return;
  mark(w, Phase::kForward, kept_);
  copy(w, OpKind::kCopyOut, Phase::kForward, 0, {kept_, 0}, left_);
  w.release_made(Tensor::kOffloaded, 0, layer_bytes_, stream_);
}

void ActivationOffload::before_backward(StepWriter& w) {
  if (!acts_on(w, 0)) return;
  if (!acts_on(w, 1)) copy(w, OpKind::kCopyIn, Phase::kBackward, 0, {}, returned_);
  w.wait_on_compute({returned_, 0});
  if (acts_on(w, -1)) copy(w, OpKind::kCopyIn, Phase::kBackward, -1, {used_, 1}, returned_);
}

void ActivationOffload::after_backward(StepWriter& w) {
  if (acts_on(w, 0)) mark(w, Phase::kBackward, used_);
}

}  // namespace shardwright::sim
