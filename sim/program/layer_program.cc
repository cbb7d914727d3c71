// SPDX-License-Identifier: Apache-2.0
#include "sim/program/layer_program.h"

#include "sim/program/program_writer.h"
#include "sim/program/unit_programs.h"

namespace shardwright::sim {

namespace {

/// What backward reads of what forward makes (or was given).
TensorSet needed_tensors(const Program& forward, const Program& backward) {
  TensorSet produced;
  produced.set(Tensor::kX);
  for (const ProgramOp& p : forward) {
    for (const Operand& out : p.op.out) {
      if (out && out.offset == 0) produced.set(out.tensor);
    }
  }
  TensorSet needed;
  for (const ProgramOp& p : backward) {
    for (const Operand& in : p.op.in) {
      if (in && in.offset == 0 && produced.test(in.tensor)) needed.set(in.tensor);
    }
  }
  return needed;
}

}  // namespace

LayerPrograms::LayerPrograms(const Model& model, const Plan& plan, const Stack& stack) {
  ProgramWriter w(model, plan, stack, tensors_);
  const TensorSet nothing;
  embedding_forward_ = with_lifetimes(sim::embedding_forward(w), tensors_, nothing, nothing, false);
  embedding_backward_ =
      with_lifetimes(sim::embedding_backward(w), tensors_, nothing, nothing, true);

  Program forward, backward;
  attention_forward(w, forward);
  mlp_forward(w, forward);
  w.begin_weight_gradients();
  mlp_backward(w, backward);
  attention_backward(w, backward);
  const TensorSet needed = needed_tensors(forward, backward);
  for (const bool checkpointed : {false, true}) {
    const TensorSet kept =
        checkpointed ? kept_tensors(model, plan, forward, needed, tensors_) : needed;
    layer_forward_[checkpointed] = with_lifetimes(forward, tensors_, nothing, kept, false);
    Program both = recomputation(forward, needed, kept);
    both.insert(both.end(), backward.begin(), backward.end());
    layer_backward_[checkpointed] = with_lifetimes(both, tensors_, kept, nothing, true);
  }

  const HeadProgram head = head_program(w);
  head_forward_ = with_lifetimes(head.forward, tensors_, nothing, head.kept, false);
  head_backward_ = with_lifetimes(head.backward, tensors_, head.kept, nothing, true);
}

}  // namespace shardwright::sim
