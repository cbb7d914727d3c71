// SPDX-License-Identifier: Apache-2.0
#include "sim/strategies/lower.h"

#include <fmt/core.h>

#include <algorithm>

#include "sim/core/base/error.h"
#include "sim/core/memory_actions.h"
#include "sim/core/placement.h"
#include "sim/core/workspace.h"
#include "sim/program/low_precision.h"
#include "sim/program/optimizer_state.h"
#include "sim/strategies/step_writer.h"
#include "sim/strategies/strategy.h"

namespace shardwright::sim {

namespace {

/// Stacks count the optimizer's traffic with a master and two moments in fp32.
constexpr double kFp32StateBytes = 3 * 4.0;

/// Tensors that a foreach kernel takes at once: PyTorch's multi_tensor_apply has room for 36 in its
/// arguments with four lists, as Adam's, and for 30 with five (depth_to_max_tensors in
/// ATen/native/cuda/MultiTensorApply.cuh).
constexpr std::int64_t kTensorsPerLaunch = 32;

/// What writes a step: the strategy around the units, and activations on their way to the host.
struct Writers {
  StepWriter& w;
  ShardingStrategy& strategy;
  ActivationOffload offload;
};

void write_forward(Writers& of) {
  StepWriter& w = of.w;
  const std::int32_t last = w.last_unit();
  for (std::int32_t unit = w.first_unit(); unit <= last; ++unit) {
    w.begin_block(unit, 1, Phase::kForward);
    of.strategy.before_forward(w);
    of.offload.before_forward(w);
    w.compute_pass(w.forward_pass());
    of.strategy.after_forward(w);
    of.offload.after_forward(w);
    w.end_block();
    while (unit < last && w.extend_to(unit + 1)) ++unit;
  }
}

/// What becomes of weight gradients waits for them: all from `done` on, and reductions of the
/// block. Where none is put off, what backward does with them is not, either.
void defer_reductions(StepWriter& w, std::size_t done) {
  std::vector<Op>& ops = w.schedule().ops;
  const auto first = static_cast<std::ptrdiff_t>(w.schedule().blocks.back().first_op);
  const bool waits =
      std::any_of(ops.begin() + first, ops.begin() + static_cast<std::ptrdiff_t>(done),
                  [](const Op& op) { return op.deferrable; });
  for (auto op = ops.begin() + first; op != ops.end(); ++op) {
    const bool follows = op - ops.begin() >= static_cast<std::ptrdiff_t>(done);
    if (op->phase == Phase::kReduce || (follows && waits)) op->deferrable = true;
  }
}

void write_backward(Writers& of) {
  StepWriter& w = of.w;
  const std::int32_t first = w.first_unit();
  const std::int32_t alone =
      w.holds() ? first + 1 : first;  // what is held ends with the first unit
  for (std::int32_t unit = w.last_unit(); unit >= first; --unit) {
    w.begin_block(unit, -1, Phase::kBackward);
    of.strategy.before_backward(w);
    of.offload.before_backward(w);
    w.compute_pass(w.backward_pass());
    const std::size_t done = w.schedule().ops.size();
    of.strategy.after_backward(w);
    of.offload.after_backward(w);
    defer_reductions(w, done);
    if (unit == first) w.release_held();
    w.end_block();
    while (unit > alone && w.extend_to(unit - 1)) --unit;
  }
  w.begin_block(first, 1, Phase::kReduce);
  const std::size_t done = w.schedule().ops.size();
  of.strategy.end_micro_step(w);
  defer_reductions(w, done);
  w.end_block();
}

void write_micro_steps(Writers& of, bool first, bool last, std::int32_t repeats) {
  of.w.set_micro_step(first, last);
  of.w.begin_section();
  write_forward(of);
  write_backward(of);
  of.w.end_section(repeats);
}

/// What a chunk hands over to another one or is handed: of the unit at `offset` from `unit`.
struct Message {
  std::int32_t unit = 0;
  Operand tensor;
  Bytes bytes = 0;
};

Op& write_message(StepWriter& w, OpKind kind, std::uint8_t stream, const Message& message) {
  Op& op = w.op(kind, stream, Phase::kPrepare);
  op.work.kind = WorkKind::kTransfer;
  op.work.group = CommGroup::kPipeline;
  op.work.bytes = message.bytes;
  return op;
}

/// A pass begins when its input is there.
void write_receive(StepWriter& w, const Message& message, std::int32_t repeats) {
  const std::uint8_t stream = w.stream("pipeline", StreamRole::kCommunication, 0);
  const std::uint8_t arrived = w.event("input_arrived");
  w.begin_section();
  w.begin_block(message.unit, 1, Phase::kPrepare);
  Op& receive = write_message(w, OpKind::kReceive, stream, message);
  receive.out[0] = message.tensor;
  receive.record = {arrived, 0};
  w.acquire(message.tensor.tensor, message.tensor.offset, message.bytes, 0,
            MemoryCategory::kActivations);
  w.wait_on_compute({arrived, 0});
  w.op(OpKind::kReceive, 0, Phase::kPrepare).work.kernels = 0;
  w.end_block();
  w.end_section(repeats);
}

/// What a pass made is gone when it has been sent.
void write_send(StepWriter& w, const Message& message) {
  const std::uint8_t stream = w.stream("pipeline-send", StreamRole::kCommunication, 0);
  const std::uint8_t made = w.event("output_made");
  w.begin_section();
  w.begin_block(message.unit, 1, Phase::kPrepare);
  Op& ready = w.op(OpKind::kSend, 0, Phase::kPrepare);
  ready.work.kernels = 0;
  ready.record = {made, 0};
  Op& send = write_message(w, OpKind::kSend, stream, message);
  send.in[0] = message.tensor;
  send.waits[0] = {made, 0};
  w.release_made(message.tensor.tensor, message.tensor.offset, message.bytes, stream);
  w.end_block();
  w.end_section(1);
}

/// The passes of a pipeline's chunk, in the order of ChunkSection; with `handed_on_bytes` of what
/// goes from chunk to chunk as they are walked.
void write_passes(Writers& of, std::int32_t micro_steps, Bytes handed_on_bytes) {
  StepWriter& w = of.w;
  const auto pass = [&](void (*write)(Writers&), bool first, bool last, std::int32_t repeats) {
    w.set_micro_step(first, last);
    w.begin_section();
    write(of);
    w.end_section(repeats);
  };
  write_receive(w, {w.first_unit(), Tensor::kX, handed_on_bytes}, micro_steps);
  pass(write_forward, true, false, 1);
  pass(write_forward, false, false, micro_steps - 1);
  if (handed_on_bytes > 0) {
    pass(write_backward, true, false, 1);
  } else {
    w.begin_section();
    w.end_section(0);
  }
  pass(write_backward, false, false, micro_steps - 1);
  pass(write_backward, micro_steps == 1, true, 1);
  w.begin_section();
  write_tied_sum(w);
  w.end_section(1);
}

/// The messages of a chunk that is walked: hidden states and their gradients, `bytes` each.
void write_messages(StepWriter& w, Bytes bytes) {
  write_receive(w, {w.last_unit(), of_next_unit(Tensor::kDX), bytes}, 1);
  write_send(w, {w.last_unit(), of_next_unit(Tensor::kX), bytes});
  write_send(w, {w.first_unit(), Tensor::kDX, bytes});
}

/// GEMMs of an optimizer that makes matrices orthogonal, as many flops in squares.
void write_orthogonal_update(StepWriter& w, const Model& model, std::int64_t owned) {
  const double flops = static_cast<double>(owned) * update_flops(model, w.plan());
  if (flops <= 0) return;
  constexpr std::int64_t kSide = 4096;
  Op& op = w.op(OpKind::kOptimizer, 0, Phase::kOptimizer);
  op.work.kind = WorkKind::kGemm;
  op.work.m = op.work.n = kSide;
  op.work.k = static_cast<std::int64_t>(flops / (2.0 * kSide * kSide));
  op.work.efficiency = w.stack().gemm_efficiency;
}

/// Weights are cast to fewer bits before the first micro-batch of the next step.
void write_weight_cast(StepWriter& w, const Gpu& gpu) {
  if (casts_for_each_product(w.stack(), w.plan())) return;
  const double bytes = weight_cast_bytes(w.plan(), transposes_fp8(w.stack(), gpu));
  if (bytes <= 0) return;
  Op& cast =
      w.memory_op(OpKind::kQuantize, 0, Phase::kOptimizer, MemoryClass::kStream,
                  static_cast<std::int64_t>(bytes * static_cast<double>(w.total_elements())), 0);
  cast.work.efficiency = w.stack().parallel.cast_efficiency;
}

/// Gradient norm, clip and update of the owned shard.
void write_optimizer(StepWriter& w, ShardingStrategy& strategy, const Model& model,
                     const Gpu& gpu) {
  const Plan& plan = w.plan();
  const Stack& stack = w.stack();
  const std::int64_t owned = w.total_trained_owned();
  const std::int64_t master = bytes_of(plan.master_dtype);
  const std::int64_t tensors = w.schedule().sharding.update_tensors;
  w.begin_section();
  w.begin_block(w.first_unit(), 1, Phase::kOptimizer);
  Op& norm = w.memory_op(OpKind::kGradientNorm, 0, Phase::kOptimizer, MemoryClass::kStream,
                         static_cast<std::int64_t>(stack.gradient_norm_bytes_per_parameter / 4.0 *
                                                   static_cast<double>(master * owned)),
                         0);
  norm.work.kernels = static_cast<std::uint16_t>(std::min<std::int64_t>(tensors, 0xffff));
  for (int i = 1; i < stack.host.step_synchronizations; ++i) w.synchronize(Phase::kOptimizer);
  // The native update multiplies by the clipping factor as it reads the gradient.
  const bool native = stack.memory == MemoryManager::kStatic;
  w.memory_op(OpKind::kClip, 0, Phase::kOptimizer, MemoryClass::kScale,
              native || stack.optimizer.bucketed ? 0 : 2 * master * owned, 0);
  const double state_width = (moment_bytes(plan) + static_cast<double>(master)) / kFp32StateBytes;
  const double optimizer_bytes =
      stack.optimizer.bytes_per_parameter * state_width * static_cast<double>(owned);
  Op& update = w.memory_op(OpKind::kOptimizer, 0, Phase::kOptimizer, MemoryClass::kStream,
                           static_cast<std::int64_t>(optimizer_bytes), 0);
  update.work.efficiency = stack.optimizer.efficiency;
  update.work.kernels = static_cast<std::uint16_t>(std::min<std::int64_t>(
      stack.optimizer.foreach ? std::max<std::int64_t>(1, stack.optimizer.kernels_per_tensor *
                                                              tensors / kTensorsPerLaunch)
                              : stack.optimizer.kernels_per_tensor * tensors,
      0xffff));
  const auto temporary = static_cast<std::int64_t>(stack.optimizer.temporary_master_copies *
                                                   static_cast<double>(master * owned));
  write_orthogonal_update(w, model, owned);
  write_weight_cast(w, gpu);
  w.acquire(Tensor::kOptimizerTemporary, 0, temporary, 0, MemoryCategory::kOptimizer);
  w.release(Tensor::kOptimizerTemporary, 0);
  strategy.after_optimizer(w);
  if (stack.host.step_synchronizations > 0) w.synchronize(Phase::kOptimizer);
  w.end_block();
  w.end_section(1);
}

}  // namespace

void lower(const Model& model, const Plan& plan, const Stack& stack, const Cluster& cluster,
           const LayerPrograms& programs, Schedule& out) {
  lower_chunk(model, plan, stack, cluster, programs, whole_model(model, plan), out);
}

void lower_chunk(const Model& model, const Plan& asked, const Stack& stack, const Cluster& cluster,
                 const LayerPrograms& programs, const ChunkContent& content, Schedule& out,
                 ChunkUse use) {
  if (model.is_moe() && !stack.parallel.features().has(Feature::kExpert)) {
    throw InvalidPlan(
        fmt::format("model '{}' has {} experts a layer, which framework {} does not run, "
                    "expected a stack such as megatron-core",
                    model.name, model.experts.count, stack.id));
  }
  Plan plan = asked;
  plan.ckpt_layers = content.recomputed;
  // Under autocast what is gathered and reduced is what the optimizer updates.
  if (stack.autocast) plan.param_dtype = plan.master_dtype;
  const std::unique_ptr<ShardingStrategy> strategy = make_strategy(plan, stack);
  if (stack.no_sync && plan.grad_accum > 1 && !strategy->can_skip_reductions()) {
    // DeepSpeed's engine.no_sync() asserts it.
    const bool divides = plan.strategy == Strategy::kZero2 || plan.strategy == Strategy::kZero3;
    const char* why = divides ? "cannot do, because it keeps its part of the gradients only"
                              : "is not modelled with";
    throw InvalidPlan(fmt::format(
        "the framework {} reduces gradients after the last micro-batch only (no_sync), which the "
        "strategy {} {}, expected ddp, zero1, fsdp1, fsdp2, fsdp2-noreshard, hsdp or grad_accum 1",
        stack.id, name_of(plan.strategy), why));
  }
  StepWriter w(model, plan, stack, cluster, &programs, content, out);
  if (use == ChunkUse::kMemory) w.follow_memory_alone();
  strategy->declare(w);
  Writers writers{w, *strategy, {}};
  writers.offload.declare(w);
  if (stack.memory == MemoryManager::kStatic)
    out.sharding.workspace_bytes = plan_workspace(model, plan).size_bytes;
  w.begin_section();
  w.begin_block(w.first_unit(), 1, Phase::kPrepare);
  w.host_work(stack.host.step_s, Phase::kPrepare);
  strategy->begin_step(w);
  w.end_block();
  w.end_section(1);
  const auto micro_steps = static_cast<std::int32_t>(plan.grad_accum);
  const Bytes handed_on_bytes = use == ChunkUse::kTimed ? Bytes{0} : programs.bytes_of(Tensor::kX);
  if (!content.whole) {
    write_passes(writers, micro_steps, handed_on_bytes);
  } else if (micro_steps == 1) {
    write_micro_steps(writers, true, true, 1);
  } else {
    write_micro_steps(writers, true, false, 1);
    if (micro_steps > 2) write_micro_steps(writers, false, false, micro_steps - 2);
    write_micro_steps(writers, false, true, 1);
  }
  if (content.whole && w.tied_sum() != StepWriter::TiedSum::kNone) {
    w.begin_section();
    write_tied_sum(w);
    w.end_section(1);
  }
  write_optimizer(w, *strategy, model, cluster.gpu);
  if (handed_on_bytes > 0) write_messages(w, handed_on_bytes);
  list_persistent(out);
}

Bytes held_bytes(const Model& model, const Plan& asked, const Stack& stack, const Cluster& cluster,
                 const ChunkContent& content, Schedule& scratch) {
  Plan plan = asked;
  if (stack.autocast) plan.param_dtype = plan.master_dtype;
  StepWriter w(model, plan, stack, cluster, nullptr, content, scratch);
  make_strategy(plan, stack)->declare(w);
  list_persistent(scratch);
  Bytes held = 0;
  for (const PersistentTensor& tensor : scratch.persistent) {
    const MemoryCategory category = tensor.category();
    const bool is_state =
        category == MemoryCategory::kParameters || category == MemoryCategory::kMaster ||
        category == MemoryCategory::kGradients || category == MemoryCategory::kOptimizer;
    if (is_state) held += tensor.bytes;
  }
  return held;
}

namespace {

/// What a delayed operation keeps of a tensor that it touches.
Bytes bytes_read(const Op& op, const MemoryAction& action) {
  const bool is_gradient = op.kind == OpKind::kWeightGradient && op.in[0].tensor == action.tensor &&
                           op.in[0].offset == action.offset;
  if (!is_gradient || op.work.kind != WorkKind::kGemm || op.keeps_high_precision)
    return action.bytes;
  const double element =
      op.narrow_input ? narrow_bytes(op.work.precision) : static_cast<double>(op.work.dtype_bytes);
  return static_cast<Bytes>(element * static_cast<double>(op.work.m * op.work.k * op.work.groups));
}

}  // namespace

PassPart part_of(PassKind kind) {
  if (kind == PassKind::kBackwardInput) return PassPart::kPrompt;
  return kind == PassKind::kBackwardWeight ? PassPart::kDelayed : PassPart::kAll;
}

bool is_in(const Op& op, PassPart part) {
  return part == PassPart::kAll || (part == PassPart::kDelayed) == op.deferrable;
}

ChunkSection section_of(const Action& action, std::int32_t passes) {
  const bool first = action.micro_batch == 0;
  if (action.kind == PassKind::kForward)
    return first ? ChunkSection::kFirstForward : ChunkSection::kForward;
  if (action.micro_batch + 1 == passes) return ChunkSection::kLastBackward;
  return first ? ChunkSection::kFirstBackward : ChunkSection::kBackward;
}

PassEnds ends_of(const PipelineShape& shape, ChunkPlace at, PassKind kind) {
  if (kind == PassKind::kBackwardWeight) return {};
  const auto elsewhere = [&](std::optional<ChunkPlace> place) {
    return place && place->stage != at.stage ? place : std::nullopt;
  };
  const auto before = elsewhere(previous_chunk(shape, at));
  const auto behind = elsewhere(next_chunk(shape, at));
  if (kind == PassKind::kForward) return {before, behind};
  return {behind, before, ChunkSection::kReceiveGradient, ChunkSection::kSendGradient};
}

bool BlockPart::has(std::uint32_t index) const {
  return is_in(op(index), part_);
}

BlockPart::Release BlockPart::release_of(const MemoryAction& action) const {
  Release release;
  Bytes read = 0;
  for (std::uint32_t i = 0; i < block_.op_count; ++i) {
    if (!op(i).deferrable || (i != action.op && !touches(op(i), action))) continue;
    release.delayed = i;
    read += bytes_read(op(i), action);
  }
  release.kept = std::min(read, action.bytes);
  release.prompt = action.op;
  const auto is_prompt = [&] {
    return !op(release.prompt).deferrable && touches(op(release.prompt), action);
  };
  if (release.kept == action.bytes || !op(action.op).deferrable) return release;
  while (release.prompt > 0 && !is_prompt()) --release.prompt;
  return release;
}

void BlockPart::add_to(std::vector<MemoryAction>& actions, const MemoryAction& action) const {
  const auto add = [&](std::uint32_t at, Bytes bytes) {
    if (!has(at)) return;
    actions.push_back(action);
    actions.back().op = at;
    actions.back().bytes = bytes;
  };
  if (part_ == PassPart::kAll || action.acquire || action.offset == kAllUnits)
    return add(action.op, action.bytes);
  const Release release = release_of(action);
  if (release.kept < action.bytes) add(release.prompt, action.bytes - release.kept);
  if (release.kept > 0) add(release.delayed, release.kept);
}

}  // namespace shardwright::sim
