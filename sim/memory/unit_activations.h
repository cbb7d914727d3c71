// SPDX-License-Identifier: Apache-2.0
// What the units of a rank keep of a micro-batch and need while they run, from when the tensors of
// their programs live and die (sim/program).
//
// Weight gradients are left out: what becomes of them is the strategy's, which sim/memory counts
// with its buffers.
#pragma once

#include <unordered_map>

#include "sim/core/plan.h"
#include "sim/core/units.h"
#include "sim/pipeline/stages.h"
#include "sim/program/list_key.h"
#include "sim/program/program_writer.h"

namespace shardwright::sim {

/// Bytes at one moment.
struct ActivationBytes {
  Bytes activations = 0, loss = 0;
  Bytes all() const { return activations + loss; }
};

/// Of a unit or of several in a row.
struct ActivationLevels {
  ActivationBytes kept;      // from the forward pass to its backward
  ActivationBytes forward;   // most in the forward pass, beyond what was there when it began
  ActivationBytes backward;  // most in the backward pass, beyond what others keep
  // Where gradients of weights are deferred (W of PyTorch's pipelining IR):
  ActivationBytes deferred;        // what they read, from the pass of inputs' gradients to theirs
  ActivationBytes backward_input;  // most in that pass, beyond what others keep
};

/// Of one model, plan and stack; keeps the model.
class UnitActivations {
 public:
  UnitActivations(const Model& model, const Plan& plan, const Stack& stack);

  const ActivationLevels& embedding() const { return embedding_; }
  const ActivationLevels& layer(bool recomputed, bool experts = false) const {
    return layer_[experts][recomputed];
  }
  const ActivationLevels& head() const { return head_; }

  /// Of the units of a chunk; what enters and leaves it included while it is there. Of the last
  /// `offloaded` layers the host keeps the activations.
  ActivationLevels of(const ChunkContent& chunk, std::int64_t offloaded = 0) const;

 private:
  const Model& model_;
  Bytes message_ = 0;  // the hidden state between two units
  ActivationLevels embedding_, head_, prediction_;
  ActivationLevels layer_[2][2];  // by experts and recomputed
};

/// Those that were asked for before.
class ActivationCache {
 public:
  ActivationCache(const Model& model, const Stack& stack) : model_(model), stack_(stack) {}
  const UnitActivations& at(const Plan& plan);

 private:
  const Model& model_;
  const Stack& stack_;
  std::unordered_map<ListKey, UnitActivations, ListKeyHash> known_;
};

}  // namespace shardwright::sim
