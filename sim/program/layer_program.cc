// SPDX-License-Identifier: Apache-2.0
#include "sim/program/layer_program.h"

#include <functional>
#include <utility>

#include "sim/core/base/error.h"
#include "sim/program/adapters.h"
#include "sim/program/expert_program.h"
#include "sim/program/list_pass.h"
#include "sim/program/low_precision.h"
#include "sim/program/program_writer.h"
#include "sim/program/unit_programs.h"

namespace shardwright::sim {

namespace {

/// What they hand on to the next unit is thrown away.
void keep_from_handing_on(Ops& list, const ProgramTensors& tensors, Operand instead) {
  for (Op& op : list) {
    for (Operand& out : op.out) {
      if (out.offset == 0) continue;
      op.temporary_bytes += tensors[out.tensor].bytes;
      out = instead;
    }
  }
}

/// All of forward again.
Ops whole_recomputation(const Ops& forward, const ProgramTensors& tensors) {
  Ops list = forward;
  for (Op& op : list) op.phase = Phase::kRecompute;
  keep_from_handing_on(list, tensors, {});
  return list;
}

/// Software that runs checkpointed functions to their end makes again what a piece puts out, too.
TensorSet made_to_the_end(const Plan& plan, TensorSet needed) {
  if (plan.pieces & kPieceMoe) needed.set(Tensor::kExpertsOut);
  if (plan.pieces & kPieceFfn) needed.set(Tensor::kDown);
  if (plan.pieces & kPieceAttention) needed.set(Tensor::kProjected);
  return needed;
}

void in_phase(Ops& list, Phase phase) {
  for (Op& op : list) {
    if (op.phase != Phase::kLoss) op.phase = phase;
  }
}

}  // namespace

UnitProgram ProgramWriter::layer(bool recomputed, bool experts) const {
  UnitProgram unit;
  unit.tensors = tensors_;
  constexpr std::size_t kMostOps = 64;  // of nearly all layers
  unit.forward.reserve(kMostOps);
  unit.backward.reserve(kMostOps);
  attention_forward(*this, unit.forward);
  if (experts) {
    expert_forward(*this, unit.forward);
    expert_backward(*this, unit.backward);
    // The router's and the experts' gradients of a norm's output are of the rank's own tokens.
    unit.tensors[Tensor::kDNorm2] = tensors_[Tensor::kDX];
  } else {
    mlp_forward(*this, unit.forward);
    mlp_backward(*this, unit.backward);
  }
  attention_backward(*this, unit.backward);
  if (existing(Tensor::kLayerSaved)) {
    add_output(unit.forward.front(), Tensor::kLayerSaved);
    add_input(unit.backward.front(), Tensor::kLayerSaved);
  }
  add_adapters(*this, unit.forward);
  train_adapters(*this, unit.backward);
  number_weight_gradients(unit);
  lower_precision(*this, unit.forward);
  lower_precision(*this, unit.backward);
  const TensorSet needed = needed_tensors(unit.forward, unit.backward);
  unit.kept = needed;
  if (recomputed) {
    unit.kept = kept_tensors(model_, plan_, unit.forward, needed, tensors_);
    const bool whole = stack_.recomputes_whole_layers;
    if (whole && plan_.recompute == Recompute::kFull) {
      unit.recompute = whole_recomputation(unit.forward, tensors_);
    } else {
      const bool to_the_end = whole && plan_.recompute == Recompute::kPieces;
      unit.recompute = recomputation(
          unit.forward, to_the_end ? made_to_the_end(plan_, needed) : needed, unit.kept);
      keep_from_handing_on(unit.recompute, tensors_, Tensor::kTemporary);
    }
  }
  for (Ops* list : {&unit.forward, &unit.recompute, &unit.backward}) dequantize(*this, *list);
  in_phase(unit.recompute, Phase::kRecompute);
  in_phase(unit.backward, Phase::kBackward);
  return unit;
}

void LayerPrograms::keep_after(UnitPass& pass, Tensor tensor) {
  MemoryAction action;
  action.op = static_cast<std::uint32_t>(pass.ops.size() - 1);
  action.tensor = tensor;
  action.category = tensors_[tensor].category;
  action.bytes = tensors_[tensor].bytes;
  pass.memory.push_back(action);
}

std::vector<MemoryAction> LayerPrograms::held(std::int64_t checkpointed_layers,
                                              bool with_head) const {
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
  release(layer_forward_[false][true], Tensor::kKeyValueCache, checkpointed_layers);
  if (!with_head) return releases;
  for (const Tensor logits : {Tensor::kLogits, Tensor::kLogitsFloat}) {
    UnitPass both = head_.front().forward;
    const std::vector<MemoryAction>& backward = head_.front().backward.memory;
    both.memory.insert(both.memory.end(), backward.begin(), backward.end());
    release(both, logits, 1);
  }
  return releases;
}

LayerPrograms::LayerPrograms(const Model& model, const Plan& plan, const Stack& stack,
                             const Gpu& gpu, ProgramUse use) {
  if (plan.deterministic && stack.memory != MemoryManager::kStatic) {
    throw Error(
        "deterministic is true, but only the native stack's order of sums is modelled: "
        "expected the framework native, or a plan that is not deterministic");
  }
  const ProgramWriter writer(model, plan, stack, gpu);
  const TensorSet nothing;
  const auto usual = parallel_word<CudaGraphs>(stack.parallel.cuda_graphs);
  ListPass pass(stack.parallel,
                plan.parallel.cuda_graphs.value_or(usual.value_or(CudaGraphs::kNone)));
  std::vector<MemoryAction> memory;
  const auto append = [&](const Ops& list, const std::vector<MemoryAction>& lifetimes) {
    if (use == ProgramUse::kMemory) {
      memory.insert(memory.end(), lifetimes.begin(), lifetimes.end());
    } else {
      pass.append(list, lifetimes);
    }
  };
  const auto take = [&] {
    return use == ProgramUse::kMemory ? UnitPass{{}, std::exchange(memory, {})} : pass.take();
  };
  const auto append_forward = [&](const UnitProgram& unit) {
    append(unit.forward, lifetimes(unit.forward, unit.tensors, nothing, unit.kept, false));
  };
  const auto append_backward = [&](const UnitProgram& unit) {
    Ops both = unit.recompute;
    both.insert(both.end(), unit.backward.begin(), unit.backward.end());
    append(both, lifetimes(both, unit.tensors, unit.kept, unit.held, true));
  };
  const auto write = [&](const UnitProgram& unit, UnitPass& forward, UnitPass& backward) {
    append_forward(unit);
    forward = take();
    append_backward(unit);
    backward = take();
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
  tensors_ = writer.tensors();
  // Of other layers backward keeps keys and values anyway.
  if (stack.keeps_key_values) keep_after(layer_forward_[false][true], Tensor::kKeyValueCache);
  if (plan.parallel.ep_overlap.value_or(false) && use == ProgramUse::kOperations) {
    Plan waits = plan;
    waits.parallel.ep_overlap = false;
    alone_ = std::make_unique<LayerPrograms>(model, waits, stack, gpu);
  }
  // Modules of multi-token prediction go with the head, whose matrix each of them uses once more.
  const UnitProgram head = writer.head();
  UnitProgram projection, layer;
  if (model.mtp_layers > 0) {
    projection = writer.prediction_projection();
    layer = writer.layer(false, model.is_moe());
  }
  const auto written = [&](std::int64_t predictions, bool with_head) {
    Passes passes;
    for (std::int64_t i = 0; i < predictions; ++i) {
      for (const auto& unit : {std::cref(projection), std::cref(layer), std::cref(head)})
        append_forward(unit);
    }
    if (with_head) append_forward(head);
    passes.forward = take();
    if (with_head) append_backward(head);
    for (std::int64_t i = 0; i < predictions; ++i) {
      for (const auto& unit : {std::cref(head), std::cref(layer), std::cref(projection)})
        append_backward(unit);
    }
    passes.backward = take();
    return passes;
  };
  for (std::int64_t i = 0; i <= model.mtp_layers; ++i) {
    head_.push_back(written(i, true));
    predictions_.push_back(i > 0 ? written(i, false) : Passes{});
  }
}

}  // namespace shardwright::sim
