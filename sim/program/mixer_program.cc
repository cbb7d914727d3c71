// SPDX-License-Identifier: Apache-2.0
// The first half of a layer: a norm, what mixes tokens (attention, a recurrence, or both beside
// each other), the residual.
#include "sim/program/real.h"
#include "sim/program/unit_programs.h"

namespace shardwright::sim {

using enum Tensor;

namespace {

/// `into` += `from`, between the matrices.
Op sum_of_branches(const ProgramWriter& w, Operand into, Operand from) {
  return ProgramWriter::memory(OpKind::kAccumulate,
                               3 * f(w.width()) * w.sharded_elements(w.model().hidden), 1,
                               w.stack().copies.add, {into, from});
}

/// Latent attention makes the gradient of its own tokens alone.
Operand gradient_of_norm(const ProgramWriter& w, Mixer mixer) {
  return w.is_latent() && mixer == Mixer::kAttention ? Operand(kDNorm1) : w.norm_gradient(false);
}

}  // namespace

void mixer_forward(const ProgramWriter& w, Ops& list, Mixer mixer) {
  if (mixer == Mixer::kNone) return;
  const bool both = mixer == Mixer::kParallel;
  list.push_back(w.norm(false, Weight::kNorm1));
  if (mixer != Mixer::kAttention) recurrence_forward(w, list, both);
  if (mixer != Mixer::kRecurrence) attention_forward(w, list);
  if (both) list.push_back(sum_of_branches(w, kXMid, kRecurrentProjected));
}

void mixer_backward(const ProgramWriter& w, Ops& list, Mixer mixer) {
  if (mixer == Mixer::kNone) return;
  if (mixer != Mixer::kRecurrence) attention_backward(w, list);
  if (mixer != Mixer::kAttention) recurrence_backward(w, list);
  const Operand gradient = gradient_of_norm(w, mixer);
  if (mixer == Mixer::kParallel) list.push_back(sum_of_branches(w, gradient, {}));
  list.push_back(w.norm_backward(false, Weight::kNorm1, gradient));
  w.add_residual_gradient(list, kDXMid, kDX);
}

}  // namespace shardwright::sim
