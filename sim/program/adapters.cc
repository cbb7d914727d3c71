// SPDX-License-Identifier: Apache-2.0
#include "sim/program/adapters.h"

#include <algorithm>

#include "sim/program/real.h"

namespace shardwright::sim {
namespace {

bool is_matrix(const Op& op) {
  return op.work.kind == WorkKind::kGemm && op.work.groups == 1;
}

Op narrow(Op op) {
  op.keeps_high_precision = true;
  return op;
}

/// Sum of two results of [m, n], in the first.
Op sum_of(const ProgramWriter& w, std::int64_t m, std::int64_t n, Operand result) {
  return w.memory(OpKind::kAccumulate, 3 * f(w.width()) * f(m) * f(n), 1, w.stack().copies.add,
                  {result});
}

/// The adapter beside the product [m, n] = [m, k] [k, n]; its sum goes to where that one's is.
void push_adapter(const ProgramWriter& w, const Op& op, Ops& list) {
  const std::int64_t rank = w.plan().numerics.lora;
  const Operand result = op.out[0] ? op.out[0] : op.in[0];
  for (Op product : {w.product(op.kind, op.work.m, rank, op.work.k),
                     w.product(op.kind, op.work.m, op.work.n, rank)}) {
    add_input(product, result);
    list.push_back(narrow(product));
  }
  list.push_back(sum_of(w, op.work.m, op.work.n, result));
}

}  // namespace

double adapter_parameters(const Model& model, const Plan& plan, const Stack& stack,
                          std::int64_t layers) {
  if (plan.numerics.lora == 0) return 0;
  const bool fused_qkv = model.fused_qkv || stack.fused_qkv;
  const bool fused_gate_up = model.fused_gate_up || stack.fused_gate_up;
  std::int64_t sides = 0;  // rows and columns of every product on this rank
  for (const WeightShape& weight : weights_of(model, ModelUnit::kDenseLayer)) {
    if (!weight.is_matrix()) continue;
    const Slice slice = slices_of(weight, plan.parallel).each;
    sides += slice.along == SliceAlong::kRows ? slice.of(weight.rows).size() : weight.rows;
    // Products that are one read their input once.
    const bool joined =
        (fused_qkv && (weight.weight == Weight::kKey || weight.weight == Weight::kValue)) ||
        (fused_gate_up && weight.weight == Weight::kGate);
    if (joined) continue;
    sides += slice.along == SliceAlong::kColumns ? slice.of(weight.columns).size() : weight.columns;
  }
  return f(layers) * f(plan.numerics.lora) * f(sides);
}

void add_adapters(const ProgramWriter& writer, Ops& forward) {
  if (writer.plan().numerics.lora == 0) return;
  Ops list;
  for (const Op& op : forward) {
    // What leaves in pieces while it is multiplied has its adapter's part added before.
    const bool leaves = op.collective.bytes > 0 && op.collective.kind != Collective::kAllGather;
    if (is_matrix(op) && leaves) push_adapter(writer, op, list);
    list.push_back(op);
    if (is_matrix(op) && !leaves) push_adapter(writer, op, list);
  }
  forward = std::move(list);
}

void train_adapters(const ProgramWriter& writer, Ops& backward) {
  if (writer.plan().numerics.lora == 0) return;
  const std::int64_t rank = writer.plan().numerics.lora;
  Ops list;
  for (const Op& op : backward) {
    if (is_matrix(op) && op.kind == OpKind::kWeightGradient) {
      // [n, k] of m tokens: of B [n, rank] and of A [rank, k].
      Op of_b = writer.weight_gradient(op.work.k, op.work.m, rank);
      Op of_a = writer.weight_gradient(op.work.k, rank, op.work.n);
      add_input(of_b, op.in[0]);
      for (const Operand& in : op.in) add_input(of_a, in);
      list.push_back(narrow(of_b));
      list.push_back(narrow(of_a));
      continue;
    }
    list.push_back(op);
    if (is_matrix(op)) push_adapter(writer, op, list);
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

double largest_matrix(const Model& model, const Plan& plan) {
  double largest = 0;
  for (const WeightShape& weight : weights_of(model, ModelUnit::kDenseLayer)) {
    if (!weight.is_matrix()) continue;
    const Slice slice = slices_of(weight, plan.parallel).each;
    const double rows =
        f(slice.along == SliceAlong::kRows ? slice.of(weight.rows).size() : weight.rows);
    const double columns =
        f(slice.along == SliceAlong::kColumns ? slice.of(weight.columns).size() : weight.columns);
    largest = std::max(largest, rows * columns);
  }
  return largest;
}

void dequantize(const ProgramWriter& writer, Ops& list) {
  const Quantize quantize = writer.plan().numerics.quantize;
  if (quantize == Quantize::kNone) return;
  constexpr double kWritten = 2;
  Ops result;
  for (const Op& op : list) {
    if (is_matrix(op) && !op.keeps_high_precision && op.kind != OpKind::kWeightGradient) {
      const double bytes = quantized_weight_bytes(quantize) + kWritten;
      Op made = writer.memory(OpKind::kQuantize, bytes * f(op.work.n) * f(op.work.k), 1,
                              writer.stack().parallel.cast_efficiency);
      result.push_back(made);
      result.push_back(op);
      // The weights in bf16.
      result.back().temporary_bytes += static_cast<Bytes>(kWritten * f(op.work.n) * f(op.work.k));
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
