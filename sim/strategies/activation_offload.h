// SPDX-License-Identifier: Apache-2.0
// Activations that wait for their backward pass in the host's memory: copied out behind a layer's
// forward, and in again while the layer after it runs backward.
//
// One stream carries both ways, since links that do both at once reach no more in all than one way
// alone. Two layers may be on their way at a time: a third waits, so that a link that is slower
// than the layers sets their pace.
#pragma once

#include "sim/strategies/step_writer.h"

namespace shardwright::sim {

class ActivationOffload {
 public:
  /// Of a plan that offloads none, it writes nothing.
  void declare(StepWriter& w);
  void before_forward(StepWriter& w);
  void after_forward(StepWriter& w);
  void before_backward(StepWriter& w);
  void after_backward(StepWriter& w);

 private:
  bool acts_on(StepWriter& w, int offset) const;
  void copy(StepWriter& w, OpKind kind, Phase phase, int offset, EventRef after,
            std::uint8_t record) const;
  void mark(StepWriter& w, Phase phase, std::uint8_t record) const;

  std::int64_t layer_bytes_ = 0;  // the mean of the chunk's layers
  std::uint8_t stream_ = 0, kept_ = 0, left_ = 0, returned_ = 0, used_ = 0;
};

}  // namespace shardwright::sim
