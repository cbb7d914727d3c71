// SPDX-License-Identifier: Apache-2.0
#include "sim/program/adapters.h"

#include <algorithm>

#include "sim/program/low_precision.h"

namespace shardwright::sim {
namespace {

Adapted adapted_by(const Stack& stack) {
  return from_word<Adapted>(stack.parallel.adapted).value_or(Adapted::kAll);
}

/// The fewest matrices among which that one is.
Adapted among(Weight weight) {
  switch (weight) {
    case Weight::kQkv:
    case Weight::kQuery:
    case Weight::kKey:
    case Weight::kValue:
    case Weight::kQueryDown:
    case Weight::kQueryUp:
    case Weight::kKeyValueDown:
    case Weight::kKeyValueUp:
      return Adapted::kQkv;
    case Weight::kOutput:
      return Adapted::kAttention;
    default:
      return Adapted::kAll;
  }
}

Adapted among(OpKind product) {
  switch (product) {
    case OpKind::kQkvProjection:
    case OpKind::kQProjection:
    case OpKind::kKProjection:
    case OpKind::kVProjection:
      return Adapted::kQkv;
    case OpKind::kOutputProjection:
      return Adapted::kAttention;
    default:
      return Adapted::kAll;
  }
}

bool has_adapter(Weight weight, Adapted adapted) {
  if (among(weight) < adapted) return false;
  switch (weight) {
    case Weight::kRouter:
    case Weight::kHeadGate:
    case Weight::kSharedExpertsGate:
    case Weight::kExpertLatentDown:
    case Weight::kExpertLatentUp:
    case Weight::kConvolution:
    case Weight::kRecurrentHeads:
      return false;
    default:
      return true;
  }
}

bool is_frozen_whole(OpKind kind) {
  return kind == OpKind::kRouter || kind == OpKind::kGate;
}

/// A product of a matrix, forward or backward.
bool is_matrix(const Op& op) {
  return op.work.kind == WorkKind::kGemm && op.kind != OpKind::kScan;
}

bool has_adapter(const Op& op, Adapted adapted) {
  const bool gradient = op.kind == OpKind::kInputGradient || op.kind == OpKind::kWeightGradient;
  return is_matrix(op) && !is_frozen_whole(op.kind) && !is_frozen_whole(op.of) &&
         among(gradient ? op.of : op.kind) >= adapted;
}

/// Beside `product`, in bf16: of as many experts.
Op narrow(Op op, const Op& product) {
  op.keeps_high_precision = true;
  op.work.groups = product.work.groups;
  op.work.extra_bytes *= f(op.work.groups);
  op.work.kernels = product.work.groups > 1 ? product.work.kernels : std::uint16_t{1};
  op.dynamic = product.dynamic;
  op.joins = product.joins;
  return op;
}

/// Sum of two results of that product, in the first.
Op sum_of(const ProgramWriter& w, const Op& product, Operand result) {
  const Work& work = product.work;
  Op op = w.memory(OpKind::kAccumulate, 3 * f(w.width()) * f(work.m) * f(work.n) * f(work.groups),
                   1, w.stack().copies.add, {result});
  op.dynamic = product.dynamic;
  op.joins = product.joins;
  return op;
}

/// The adapter beside the product [m, n] = [m, k] [k, n]; its sum goes to where that one's is.
void push_adapter(const ProgramWriter& w, const Op& op, Ops& list) {
  const std::int64_t rank = w.plan().numerics.lora;
  const Operand result = op.out[0] ? op.out[0] : op.in[0];
  for (Op product : {w.product(op.kind, op.work.m, rank, op.work.k),
                     w.product(op.kind, op.work.m, op.work.n, rank)}) {
    add_input(product, result);
    list.push_back(narrow(product, op));
  }
  list.push_back(sum_of(w, op, result));
}

/// Rows and columns of every product on this rank that has an adapter, times the experts that do.
std::int64_t sides_of(const std::vector<WeightShape>& weights, const Model& model,
                      const Stack& stack, const Parallelism& parallel) {
  const bool fused_qkv = model.fused_qkv || stack.fused_qkv;
  const bool fused_gate_up = model.fused_gate_up || stack.fused_gate_up;
  std::int64_t sides = 0;
  for (const WeightShape& weight : weights) {
    if (!weight.is_matrix() || !has_adapter(weight.weight, adapted_by(stack))) continue;
    const WeightSlices slices = slices_of(weight, parallel);
    const Slice& slice = slices.each;
    const std::int64_t experts = slices.experts.of(weight.experts).size();
    sides +=
        experts * (slice.along == SliceAlong::kRows ? slice.of(weight.rows).size() : weight.rows);
    // Products that are one read their input once.
    const bool joined =
        (fused_qkv && (weight.weight == Weight::kKey || weight.weight == Weight::kValue)) ||
        (fused_gate_up && weight.weight == Weight::kGate) || weight.weight == Weight::kExpertGate ||
        weight.weight == Weight::kSharedGate;
    if (joined) continue;
    // The gates of Kimi's delta rule and of its output are two products up.
    const bool twice = weight.weight == Weight::kRecurrentUp &&
                       model.recurrence.kind == RecurrenceKind::kKimiDelta;
    sides +=
        experts * (twice ? 2 : 1) *
        (slice.along == SliceAlong::kColumns ? slice.of(weight.columns).size() : weight.columns);
  }
  return sides;
}

}  // namespace

AdapterElements adapter_elements(const Model& model, const Plan& plan, const Stack& stack,
                                 LayerKind kind) {
  const std::int64_t rank = plan.numerics.lora;
  if (rank == 0) return {};
  const auto of = [&](const std::vector<WeightShape>& weights) {
    return rank * sides_of(weights, model, stack, plan.parallel);
  };
  const bool routed = kind.channels == Channels::kExperts;
  return {of(weights_of(model, kind)), routed ? of(weights_of(model, ModelUnit::kExperts)) : 0};
}

void add_adapters(const ProgramWriter& writer, Ops& forward) {
  if (writer.plan().numerics.lora == 0) return;
  const Adapted adapted = adapted_by(writer.stack());
  Ops list;
  for (const Op& op : forward) {
    // What leaves in pieces while it is multiplied has its adapter's part added before.
    const bool leaves = op.collective.bytes > 0 && op.collective.kind != Collective::kAllGather;
    if (has_adapter(op, adapted) && leaves) push_adapter(writer, op, list);
    list.push_back(op);
    if (has_adapter(op, adapted) && !leaves) push_adapter(writer, op, list);
  }
  forward = std::move(list);
}

void train_adapters(const ProgramWriter& writer, Ops& backward) {
  if (writer.plan().numerics.lora == 0) return;
  const std::int64_t rank = writer.plan().numerics.lora;
  const Adapted adapted = adapted_by(writer.stack());
  Ops list;
  for (const Op& op : backward) {
    if (is_matrix(op) && op.kind == OpKind::kWeightGradient) {
      if (!has_adapter(op, adapted)) continue;
      // [n, k] of m tokens: of B [n, rank] and of A [rank, k].
      Op of_b = writer.weight_gradient(op.work.k, op.work.m, rank);
      Op of_a = writer.weight_gradient(op.work.k, rank, op.work.n);
      add_input(of_b, op.in[0]);
      for (const Operand& in : op.in) add_input(of_a, in);
      list.push_back(narrow(of_b, op));
      list.push_back(narrow(of_a, op));
      continue;
    }
    list.push_back(op);
    if (has_adapter(op, adapted)) push_adapter(writer, op, list);
  }
  backward = std::move(list);
}

double quantized_weight_bytes(Quantize quantize) {
  switch (quantize) {
    case Quantize::kNf4:
      // A scale of 8 bits for 64 weights, and one of 32 bits for 256 of these.
      return (4 + 8.0 / 64 + 32.0 / (64 * 256)) / 8;
    case Quantize::kInt8:
    case Quantize::kFp8:
      return 1 + 4.0 / 128;  // a scale in fp32 for 128 weights
    case Quantize::kNone:
      break;
  }
  return 2;
}

void dequantize(const ProgramWriter& writer, Ops& list) {
  const Quantize quantize = writer.plan().numerics.quantize;
  if (quantize == Quantize::kNone) return;
  constexpr double kWritten = 2;
  Ops result;
  for (const Op& op : list) {
    if (is_matrix(op) && !op.keeps_high_precision && op.kind != OpKind::kWeightGradient) {
      const double weights = f(op.work.n) * f(op.work.k) * f(op.work.groups);
      result.push_back(writer.memory(OpKind::kQuantize,
                                     (quantized_weight_bytes(quantize) + kWritten) * weights, 1,
                                     writer.stack().parallel.cast_efficiency));
      result.push_back(op);
      // The weights in bf16.
      result.back().temporary_bytes += static_cast<Bytes>(kWritten * weights);
      continue;
    }
    result.push_back(op);
  }
  list = std::move(result);
}

void freeze(Ops& backward) {
  std::erase_if(backward, [](const Op& op) { return op.kind == OpKind::kWeightGradient; });
}

}  // namespace shardwright::sim
