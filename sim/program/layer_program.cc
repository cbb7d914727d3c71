// SPDX-License-Identifier: Apache-2.0
#include "sim/program/layer_program.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "sim/core/base/error.h"
#include "sim/program/adapters.h"
#include "sim/program/expert_program.h"
#include "sim/program/list_pass.h"
#include "sim/program/low_precision.h"
#include "sim/program/program_writer.h"

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

/// A cast is of the half of the layer that its product is of.
void cast_with_what_reads(Ops& list) {
  for (std::size_t i = list.size(); i-- > 1;) {
    if (list[i - 1].kind == OpKind::kQuantize) list[i - 1].in_attention = list[i].in_attention;
  }
}

void rename(Ops& list, Operand from, Operand to) {
  for (Op& op : list) {
    std::replace(std::begin(op.in), std::end(op.in), from, to);
    std::replace(std::begin(op.out), std::end(op.out), from, to);
  }
}

/// Between its halves a layer has a residual stream of its own; one that lacks a half hands on what
/// the other one makes, or takes what enters.
void join_halves(LayerKind kind, UnitProgram& unit) {
  if (kind.channels == Channels::kNone) {
    rename(unit.forward, Tensor::kXMid, of_next_unit(Tensor::kX));
    rename(unit.backward, Tensor::kDXMid, of_next_unit(Tensor::kDX));
  } else if (kind.mixer == Mixer::kNone) {
    rename(unit.forward, Tensor::kXMid, Tensor::kX);
    rename(unit.backward, Tensor::kXMid, Tensor::kX);
    rename(unit.backward, Tensor::kDXMid, Tensor::kDX);
  }
}

void in_phase(Ops& list, Phase phase) {
  for (Op& op : list) {
    if (op.phase != Phase::kLoss) op.phase = phase;
  }
}

}  // namespace

UnitProgram ProgramWriter::layer(bool recomputed, LayerKind kind) const {
  UnitProgram unit;
  unit.tensors = tensors_;
  constexpr std::size_t kMostOps = 64;  // of nearly all layers
  unit.forward.reserve(kMostOps);
  unit.backward.reserve(kMostOps);
  mixer_forward(*this, unit.forward, kind.mixer);
  for (Op& op : unit.forward) op.in_attention = true;
  if (kind.channels == Channels::kExperts) {
    expert_forward(*this, unit.forward);
    expert_backward(*this, unit.backward);
    // The router's and the experts' gradients of a norm's output are of the rank's own tokens.
    unit.tensors[Tensor::kDNorm2] = tensors_[Tensor::kDX];
  } else if (kind.channels == Channels::kMlp) {
    mlp_forward(*this, unit.forward);
    mlp_backward(*this, unit.backward);
  }
  const auto other_half = static_cast<std::ptrdiff_t>(unit.backward.size());
  mixer_backward(*this, unit.backward, kind.mixer);
  std::for_each(unit.backward.begin() + other_half, unit.backward.end(),
                [](Op& op) { op.in_attention = true; });
  join_halves(kind, unit);
  if (kind.attends()) sum_key_value_gradients(unit.backward);
  if (sums_norm_gradients()) sum_norm_gradients(unit.backward, weights_of(model_, kind));
  if (existing(Tensor::kLayerSaved)) {
    add_output(unit.forward.front(), Tensor::kLayerSaved);
    add_input(unit.backward.front(), Tensor::kLayerSaved);
  }
  add_adapters(*this, unit.forward);
  train_adapters(*this, unit.backward);
  number_weight_gradients(unit);
  for (Ops* list : {&unit.forward, &unit.backward}) {
    lower_precision(*this, *list);
    cast_with_what_reads(*list);
  }
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

void LayerPrograms::keep_after(UnitPass& pass, Tensor tensor) const {
  const ProgramTensor& kept = plain_->tensors[tensor];
  MemoryAction action;
  action.op = static_cast<std::uint32_t>(pass.ops.size() - 1);
  action.tensor = tensor;
  action.category = kept.category;
  action.bytes = kept.bytes;
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
    action.category = plain_->tensors[tensor].category;
    action.offset = kAllUnits;
    action.bytes = balance * units;
  };
  release(layer_forward(true), Tensor::kKeyValueCache, checkpointed_layers);
  if (!with_head) return releases;
  for (const Tensor logits : {Tensor::kLogits, Tensor::kLogitsFloat}) {
    UnitPass both = head_forward();
    const std::vector<MemoryAction>& backward = head_backward().memory;
    both.memory.insert(both.memory.end(), backward.begin(), backward.end());
    release(both, logits, 1);
  }
  return releases;
}

namespace {

/// Writers of layers whose heads are not the model's.
class FormWriters {
 public:
  FormWriters(const Model& model, const Plan& plan, const Stack& stack, const Gpu& gpu) {
    models_.reserve(model.forms.size());  // writers keep references
    for (std::size_t i = 0; i < model.forms.size(); ++i) {
      const LayerKind kind = {.form = static_cast<std::uint8_t>(i + 1)};
      models_.push_back(model_of_layer(model, kind));
      writers_.emplace_back(models_.back(), plan, stack, gpu);
    }
  }
  const ProgramWriter& of(LayerKind kind, const ProgramWriter& usual) const {
    return kind.form == 0 ? usual : writers_[kind.form - std::size_t{1}];
  }

 private:
  std::vector<Model> models_;
  std::vector<ProgramWriter> writers_;
};

}  // namespace

/// Writes units one after the other into passes.
class LayerPrograms::Writer {
 public:
  Writer(const Model& model, const Plan& plan, const Stack& stack, const Gpu& gpu, ProgramUse use)
      : model_(model),
        use_(use),
        units_(model, plan, stack, gpu),
        forms_(model, plan, stack, gpu),
        pass_(stack.parallel,
              plan.parallel.cuda_graphs.value_or(
                  from_word<CudaGraphs>(stack.parallel.cuda_graphs).value_or(CudaGraphs::kNone)),
              stack.memory) {}

  Plain plain() {
    Plain plain;
    plain.tensors = units_.tensors();
    plain.embedding = passes(units_.embedding());
    for (const LayerKind kind : kinds_of(model_)) plain.layer[kind.index()] = layer(false, kind);
    write_heads(plain);
    return plain;
  }
  Passes layer(bool recomputed, LayerKind kind) {
    return passes(forms_.of(kind, units_).layer(recomputed, kind));
  }

 private:
  Passes passes(const UnitProgram& unit) {
    Passes passes;
    append_forward(unit);
    passes.forward = take();
    append_backward(unit);
    passes.backward = take();
    if (unit.backward.empty()) drop_gradient(unit, passes.backward);
    return passes;
  }

  /// What the first layer hands to a frozen embedding.
  static void drop_gradient(const UnitProgram& unit, UnitPass& backward) {
    const ProgramTensor& gradient = unit.tensors[Tensor::kDX];
    MemoryAction& action = backward.memory.emplace_back();
    action.acquire = false;
    action.tensor = Tensor::kDX;
    action.offset = of_next_unit(Tensor::kDX).offset;
    action.category = gradient.category;
    action.bytes = gradient.bytes;
  }

  /// Modules of multi-token prediction go with the head, whose matrix each of them uses once more.
  void write_heads(Plain& plain) {
    const UnitProgram head = units_.head();
    UnitProgram projection, layer;
    const std::array<const UnitProgram*, 3> module = {&projection, &layer, &head};
    if (model_.mtp_layers > 0) {
      projection = units_.prediction_projection();
      layer = units_.layer(false, model_.mtp_kind());
    }
    const auto written = [&](std::int64_t predictions, bool with_head) {
      Passes passes;
      for (std::int64_t i = 0; i < predictions; ++i) {
        for (const UnitProgram* unit : module) append_forward(*unit);
      }
      if (with_head) append_forward(head);
      passes.forward = take();
      if (with_head) append_backward(head);
      for (std::int64_t i = 0; i < predictions; ++i) {
        for (auto unit = module.rbegin(); unit != module.rend(); ++unit) append_backward(**unit);
      }
      passes.backward = take();
      return passes;
    };
    for (std::int64_t i = 0; i <= model_.mtp_layers; ++i) {
      plain.head.push_back(written(i, true));
      plain.predictions.push_back(i > 0 ? written(i, false) : Passes{});
    }
  }

  void append_forward(const UnitProgram& unit) {
    append(unit.forward, lifetimes(unit.forward, unit.tensors, {}, unit.kept, false));
  }
  void append_backward(const UnitProgram& unit) {
    if (unit.recompute.empty()) {
      append(unit.backward, lifetimes(unit.backward, unit.tensors, unit.kept, unit.held, true));
      return;
    }
    Ops both;
    both.reserve(unit.recompute.size() + unit.backward.size());
    both = unit.recompute;
    both.insert(both.end(), unit.backward.begin(), unit.backward.end());
    append(both, lifetimes(both, unit.tensors, unit.kept, unit.held, true));
  }
  void append(const Ops& list, const std::vector<MemoryAction>& lifetimes) {
    if (use_ == ProgramUse::kMemory) {
      memory_.insert(memory_.end(), lifetimes.begin(), lifetimes.end());
    } else {
      pass_.append(list, lifetimes);
    }
  }
  UnitPass take() {
    return use_ == ProgramUse::kMemory ? UnitPass{{}, std::exchange(memory_, {})} : pass_.take();
  }

  const Model& model_;
  ProgramUse use_;
  ProgramWriter units_;
  FormWriters forms_;
  ListPass pass_;
  std::vector<MemoryAction> memory_;
};

LayerPrograms::LayerPrograms(const Model& model, const Plan& plan, const Stack& stack,
                             const Gpu& gpu, ProgramUse use) {
  if (plan.deterministic && stack.memory != MemoryManager::kStatic) {
    throw InvalidPlan(
        "deterministic is true, but only the native stack's order of sums is modelled: "
        "expected the framework native, or a plan that is not deterministic");
  }
  plain_ = std::make_shared<const Plain>(Writer(model, plan, stack, gpu, use).plain());
  add_recomputed(nullptr, model, plan, stack, gpu, use);
}

LayerPrograms::LayerPrograms(const LayerPrograms& nothing_recomputed, const Model& model,
                             const Plan& plan, const Stack& stack, const Gpu& gpu, ProgramUse use)
    : plain_(nothing_recomputed.plain_) {
  add_recomputed(nothing_recomputed.alone_.get(), model, plan, stack, gpu, use);
}

LayerPrograms LayerPrograms::recomputed_layers(const Model& model, const Plan& plan,
                                               const Stack& stack, const Gpu& gpu) {
  Plain plain;
  plain.tensors = ProgramWriter(model, plan, stack, gpu).tensors();
  LayerPrograms programs;
  programs.plain_ = std::make_shared<const Plain>(std::move(plain));
  programs.add_recomputed(&programs, model, plan, stack, gpu, ProgramUse::kOperations);
  return programs;
}

void LayerPrograms::add_recomputed(const LayerPrograms* alone, const Model& model, const Plan& plan,
                                   const Stack& stack, const Gpu& gpu, ProgramUse use) {
  recomputes_ = plan.recompute != Recompute::kNone;
  if (recomputes_) {
    Writer writer(model, plan, stack, gpu, use);
    for (const LayerKind kind : kinds_of(model))
      recomputed_[kind.index()] = writer.layer(true, kind);
    // Of other layers backward keeps keys and values anyway.
    if (stack.keeps_key_values && model.is_plain())
      keep_after(recomputed_[LayerKind{}.index()].forward, Tensor::kKeyValueCache);
  }
  if (!plan.parallel.ep_overlap.value_or(false) || use != ProgramUse::kOperations) return;
  Plan waits = plan;
  waits.parallel.ep_overlap = false;
  alone_ = alone != nullptr ? std::make_unique<LayerPrograms>(*alone, model, waits, stack, gpu)
                            : std::make_unique<LayerPrograms>(model, waits, stack, gpu);
}

Plan without_recomputation(Plan plan) {
  plan.recompute = Recompute::kNone;
  plan.pieces = 0;
  plan.ckpt_layers = 0;
  plan.ckpt_stride = 1;
  return plan;
}

std::optional<Plan> nothing_recomputed(const Plan& plan, const Stack& stack) {
  const bool other_norms = stack.parallel.checkpointed_norm_forward_bytes > 0 ||
                           stack.parallel.checkpointed_norm_backward_bytes > 0;
  if (other_norms && plan.recompute == Recompute::kFull) return std::nullopt;
  return without_recomputation(plan);
}

struct ProgramCache::Table {
  std::unordered_map<ListKey, LayerPrograms, ListKeyHash> programs;
};

ProgramCache::ProgramCache(const Model& model, const Stack& stack, const Gpu& gpu)
    : model_(model),
      stack_(stack),
      gpu_(gpu),
      operations_(std::make_unique<Table>()),
      memory_(std::make_unique<Table>()) {}
ProgramCache::~ProgramCache() = default;

const LayerPrograms& ProgramCache::at(const Plan& plan) {
  return find(*operations_, ListKey(plan), plan, ProgramUse::kOperations);
}

const LayerPrograms& ProgramCache::memory_at(const Plan& plan) {
  ListKey key(plan);
  // Nothing of it changes what lives.
  Parallelism& p = key.plan.parallel;
  p.ep_overlap.reset();
  p.overlap_grad_reduce.reset();
  p.overlap_param_gather.reset();
  p.cuda_graphs.reset();
  return find(*memory_, key, plan, ProgramUse::kMemory);
}

const LayerPrograms& ProgramCache::find(Table& table, const ListKey& key, const Plan& plan,
                                        ProgramUse use) {
  if (const auto known = table.programs.find(key); known != table.programs.end())
    return known->second;
  const auto write = [&] {
    if (plan.recompute != Recompute::kNone) {
      if (const auto plain = nothing_recomputed(plan, stack_)) {
        const ListKey plain_key(*nothing_recomputed(key.plan, stack_));
        return LayerPrograms(find(table, plain_key, *plain, use), model_, plan, stack_, gpu_, use);
      }
    }
    return LayerPrograms(model_, plan, stack_, gpu_, use);
  };
  return table.programs.emplace(key, write()).first->second;
}

}  // namespace shardwright::sim
