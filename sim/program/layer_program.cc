// SPDX-License-Identifier: Apache-2.0
#include "sim/program/layer_program.h"

#include "sim/core/error.h"
#include "sim/program/list_pass.h"
#include "sim/program/program_writer.h"
#include "sim/program/unit_lists.h"
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

/// All of forward again; what it hands to the next unit is thrown away.
Program whole_recomputation(const Program& forward, const ProgramWriter& w) {
  Program list = forward;
  for (ProgramOp& p : list) {
    p.op.phase = Phase::kRecompute;
    for (Operand& out : p.op.out) {
      if (out.offset == 0) continue;
      p.temporary_bytes += w.tensor(out.tensor).bytes;
      out = {};
    }
  }
  return list;
}

/// Operations that are done again for what they keep write what they hand on into a temporary.
Program without_handing_on(Program list, const ProgramWriter& w) {
  for (ProgramOp& p : list) {
    for (Operand& out : p.op.out) {
      if (out.offset == 0) continue;
      p.temporary_bytes += w.tensor(out.tensor).bytes;
      out = Tensor::kTemporary;
    }
  }
  return list;
}

}  // namespace

void LayerPrograms::keep_after(UnitPass& pass, Tensor tensor) {
  MemoryAction action;
  action.op = static_cast<std::uint32_t>(pass.ops.size() - 1);
  action.tensor = tensor;
  action.category = tensors_[tensor].category;
  action.bytes = tensors_[tensor].bytes;
  pass.memory.push_back(action);
}

std::vector<MemoryAction> LayerPrograms::held(const Plan& plan, std::int64_t layers) const {
  std::vector<MemoryAction> releases;
  const auto release = [&](const UnitPass& pass, Tensor tensor, std::int64_t units) {
    Bytes balance = 0;
    for (const MemoryAction& action : pass.memory) {
      if (action.tensor == tensor) balance += action.acquire ? action.bytes : -action.bytes;
    }
    if (balance <= 0 || units == 0) return;
    MemoryAction& action = releases.emplace_back();
    action.acquire = false;
    action.tensor = tensor;
    action.category = tensors_[tensor].category;
    action.offset = kAllUnits;
    action.bytes = balance * units;
  };
  std::int64_t checkpointed = 0;
  for (std::int64_t layer = 0; layer < layers; ++layer) checkpointed += plan.checkpointed(layer);
  release(layer_forward_[false][true], Tensor::kKeyValueCache, checkpointed);
  for (const Tensor logits : {Tensor::kLogits, Tensor::kLogitsFloat}) {
    UnitPass both = head_.front().forward;
    const std::vector<MemoryAction>& backward = head_.front().backward.memory;
    both.memory.insert(both.memory.end(), backward.begin(), backward.end());
    release(both, logits, 1);
  }
  return releases;
}

LayerPrograms::LayerPrograms(const Model& model, const Plan& plan, const Stack& stack,
                             const Gpu& gpu) {
  if (!stack.parallel.always && beyond_data_parallel(plan).empty() && !model.is_moe()) {
    write_programs(model, plan, stack);
  } else {
    write_lists(model, plan, stack, gpu);
  }
}

void LayerPrograms::write_lists(const Model& model, const Plan& plan, const Stack& stack,
                                const Gpu& gpu) {
  const ListWriter writer(model, plan, stack, gpu);
  const auto usual = parallel_word<CudaGraphs>(stack.parallel.cuda_graphs);
  ListPass pass(stack.parallel,
                plan.parallel.cuda_graphs.value_or(usual.value_or(CudaGraphs::kNone)));
  const auto append_backward = [&](const UnitLists& body) {
    pass.append(body.recompute, Phase::kRecompute);
    Ops list = body.backward;
    // Whether a GEMM adds to the sum of gradients is the strategy's to say.
    for (Op& op : list) {
      if (op.kind == OpKind::kWeightGradient && !stack.parallel.always) op.work.extra_bytes = 0;
    }
    pass.append(list, Phase::kBackward);
  };
  const auto write = [&](const UnitLists& body, UnitPass& forward, UnitPass& backward) {
    pass.append(body.forward, Phase::kForward);
    forward = pass.take();
    append_backward(body);
    backward = pass.take();
  };
  write(writer.embedding(), embedding_forward_, embedding_backward_);
  for (const bool experts : {false, true}) {
    if (experts && !model.is_moe()) break;
    for (const bool checkpointed : {false, true}) {
      if (checkpointed && plan.recompute == Recompute::kNone) {
        layer_forward_[experts][true] = layer_forward_[experts][false];
        layer_backward_[experts][true] = layer_backward_[experts][false];
        continue;
      }
      write(writer.layer(checkpointed, experts), layer_forward_[experts][checkpointed],
            layer_backward_[experts][checkpointed]);
    }
  }
  if (plan.parallel.ep_overlap.value_or(false)) {
    Plan waits = plan;
    waits.parallel.ep_overlap = false;
    alone_ = std::make_unique<LayerPrograms>(model, waits, stack, gpu);
  }
  // Modules of multi-token prediction go with the head.
  const UnitLists head = writer.head();
  const UnitLists prediction = model.mtp_layers > 0 ? writer.prediction() : UnitLists{};
  const auto written = [&](std::int64_t predictions, bool with_head) {
    Passes passes;
    for (std::int64_t i = 0; i < predictions; ++i) pass.append(prediction.forward, Phase::kForward);
    if (with_head) pass.append(head.forward, Phase::kForward);
    passes.forward = pass.take();
    if (with_head) append_backward(head);
    for (std::int64_t i = 0; i < predictions; ++i) append_backward(prediction);
    passes.backward = pass.take();
    return passes;
  };
  for (std::int64_t i = 0; i <= model.mtp_layers; ++i) {
    head_.push_back(written(i, true));
    predictions_.push_back(i > 0 ? written(i, false) : Passes{});
  }
}

void LayerPrograms::write_programs(const Model& model, const Plan& plan, const Stack& stack) {
  if (plan.deterministic && stack.memory != MemoryManager::kStatic) {
    throw Error(
        "deterministic is true, but only the native stack's order of sums is modelled: "
        "expected the framework native, or a plan that is not deterministic");
  }
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
    layer_forward_[false][checkpointed] = with_lifetimes(forward, tensors_, nothing, kept, false);
    const bool to_the_end =
        checkpointed && stack.recomputes_whole_layers && plan.recompute == Recompute::kFull;
    Program both = to_the_end ? whole_recomputation(forward, w)
                              : without_handing_on(recomputation(forward, needed, kept), w);
    both.insert(both.end(), backward.begin(), backward.end());
    layer_backward_[false][checkpointed] = with_lifetimes(both, tensors_, kept, nothing, true);
  }
  // Of other layers backward keeps keys and values anyway.
  if (stack.keeps_key_values) keep_after(layer_forward_[false][true], Tensor::kKeyValueCache);

  const HeadProgram head = head_program(w);
  head_.push_back({with_lifetimes(head.forward, tensors_, nothing, head.kept, false),
                   with_lifetimes(head.backward, tensors_, head.kept, head.held, true)});
}

}  // namespace shardwright::sim
