// SPDX-License-Identifier: Apache-2.0
#include "sim/program/program_writer.h"

#include <algorithm>
#include <array>

#include "sim/core/check.h"

namespace shardwright::sim {

using enum Tensor;

namespace {

Bytes to_bytes(double value) {
  return static_cast<Bytes>(value);
}

constexpr Tensor following(Tensor first, int n) {
  return static_cast<Tensor>(static_cast<int>(first) + n);
}

}  // namespace

ProgramWriter::ProgramWriter(const Model& model, const Plan& plan, const Stack& stack,
                             ProgramTensors& tensors)
    : model_(model),
      plan_(plan),
      stack_(stack),
      tensors_(tensors),
      tokens_(plan.micro_batch * plan.seq_len),
      width_(bytes_of(plan.param_dtype)) {
  size_layer();
  size_saved();
}

void ProgramWriter::size(Tensor tensor, double bytes, MemoryCategory category) {
  tensors_[tensor] = {to_bytes(bytes), category};
}

Operand ProgramWriter::existing(Tensor tensor) const {
  return tensors_[tensor].bytes > 0 ? Operand(tensor) : Operand();
}

/// What is a matrix of tokens in the compute type, and what a type of its own makes wider.
void ProgramWriter::size_layer() {
  const double t = static_cast<double>(tokens_);
  const double w = static_cast<double>(width_);
  for (int i = 1; i < kTensorCount; ++i) {
    const auto tensor = static_cast<Tensor>(i);
    const bool of_loss = tensor == kLogits || tensor == kDLogits;
    size(tensor, w * t * static_cast<double>(columns_of(tensor, model_)),
         of_loss ? MemoryCategory::kLoss : MemoryCategory::kActivations);
  }
  size(kTokens, 8 * t);
  if (stack_.autocast) {
    constexpr double kFloat = 4;
    for (const Tensor residual : {kX, kXMid, kNorm1Out, kNorm2Out, kDX, kDXMid, kDNorm1, kDNorm2})
      size(residual, kFloat * t * static_cast<double>(columns_of(residual, model_)));
    // Positions are fp32 and make keys so.
    size(kKeyValueCache, (kFloat + w) * t * static_cast<double>(model_.kv_dim()));
  }
  const double scores = static_cast<double>(plan_.micro_batch * model_.heads * plan_.seq_len) *
                        static_cast<double>(plan_.seq_len);
  size(kProbabilities, (4 + w) * scores);
  size(kAttentionStats, 4 * t * static_cast<double>(model_.heads));
  const double logits = t * static_cast<double>(model_.vocab);
  size(kLogitsFloat, 4 * logits, MemoryCategory::kLoss);
  size(kDLogitsFloat, 4 * logits, MemoryCategory::kLoss);
}

/// What kernels of this stack keep for their own backward.
void ProgramWriter::size_saved() {
  const double t = static_cast<double>(tokens_);
  const double c = static_cast<double>(model_.hidden);
  const double f = static_cast<double>(model_.ffn);
  const double logits = t * static_cast<double>(model_.vocab);
  const auto saved = [](const KernelGroup& group, int i) {
    const auto index = static_cast<std::size_t>(i);
    return index < group.saved_bytes.size() ? group.saved_bytes[index] : 0;
  };
  for (int i = 0; i < 3; ++i) {
    const double statistics =
        i == 2 ? statistics_kept() * stack_.norm.saved_bytes_per_token * t : 0;
    size(following(kNorm1Saved0, i), saved(stack_.norm, i) * t * c + statistics);
    size(following(kNorm2Saved0, i), saved(stack_.norm, i) * t * c + statistics);
  }
  size(kQkNormSaved,
       stack_.norm.saved_bytes_per_token * t * static_cast<double>(model_.heads + model_.kv_heads));
  for (int i = 0; i < 2; ++i) {
    size(following(kActivationSaved0, i), saved(activation(), i) * t * f);
    size(following(kLossSaved0, i), saved(stack_.loss, i) * logits, MemoryCategory::kLoss);
  }
}

int ProgramWriter::statistics_kept() const {
  if (stack_.memory != MemoryManager::kStatic) return 1;  // fitted
  return (model_.norm == Normalization::kLayerNorm ? 2 : 1) * (has_post_norms() ? 2 : 1);
}

ProgramOp ProgramWriter::make(OpKind kind, Phase phase, std::initializer_list<Operand> in,
                              std::initializer_list<Operand> out) {
  ProgramOp p;
  p.op.kind = kind;
  p.op.phase = phase;
  std::size_t i = 0;
  for (const Operand& operand : in) {
    if (operand) p.op.in[i++] = operand;
  }
  i = 0;
  for (const Operand& operand : out) {
    if (operand) p.op.out[i++] = operand;
  }
  return p;
}

Work ProgramWriter::memory_work(double bytes, int kernels, double efficiency) {
  Work work;
  work.kind = WorkKind::kMemory;
  work.bytes = to_bytes(bytes);
  work.kernels = static_cast<std::uint16_t>(std::max(kernels, 1));
  work.efficiency = efficiency;
  return work;
}

Work ProgramWriter::gemm_work(std::int64_t m, std::int64_t n, std::int64_t k,
                              std::int64_t times) const {
  Work work;
  work.kind = WorkKind::kGemm;
  work.m = m;
  work.n = n;
  work.k = k;
  work.kernels = static_cast<std::uint16_t>(times);
  work.dtype_bytes = static_cast<std::uint8_t>(width_);
  work.efficiency = stack_.gemm_efficiency;
  return work;
}

Work ProgramWriter::weight_gradient_work(std::int64_t n, std::int64_t k, std::int64_t tokens,
                                         std::int64_t times) const {
  Work work = gemm_work(n, k, tokens, times);
  if (gradient_width() == width_) return work;
  const double result = static_cast<double>(gradient_width() * n * k);
  const double operands = static_cast<double>(width_ * tokens * (n + k));
  work.bytes =
      to_bytes(operands + result * static_cast<double>(2 * times - 1) / static_cast<double>(times));
  return work;
}

ProgramOp ProgramWriter::elementwise(OpKind kind, Phase phase, const KernelGroup& group,
                                     double elements, bool backward,
                                     std::initializer_list<Operand> in,
                                     std::initializer_list<Operand> out) const {
  ProgramOp p = make(kind, phase, in, out);
  if (backward) {
    p.op.work = memory_work(traffic(elements * group.backward_bytes), group.backward_kernels,
                            group.backward_efficiency);
    p.temporary_bytes = to_bytes(elements * group.backward_temporary_bytes);
  } else {
    p.op.work = memory_work(traffic(elements * group.forward_bytes), group.forward_kernels,
                            group.forward_efficiency);
    p.temporary_bytes = to_bytes(elements * group.forward_temporary_bytes);
  }
  p.op.work.dtype_bytes = static_cast<std::uint8_t>(width_);
  return p;
}

ProgramOp ProgramWriter::norm(Phase phase, bool second, bool backward, Weight weight) const {
  const Tensor saved = second ? kNorm2Saved0 : kNorm1Saved0;
  const Operand in = second && !model_.parallel_residual ? kXMid : kX;
  const std::array kept = {existing(saved), existing(following(saved, 1)),
                           existing(following(saved, 2))};
  const Operand input = stack_.norm_saves_input ? in : Operand();
  ProgramOp p =
      backward ? elementwise(OpKind::kNorm, phase, stack_.norm, elements(model_.hidden), true,
                             {second ? kDNorm2 : kDNorm1, kept[0], kept[1], kept[2], input},
                             {second ? kDXMid : kDX})
               : elementwise(OpKind::kNorm, phase, stack_.norm, elements(model_.hidden), false,
                             {in}, {second ? kNorm2Out : kNorm1Out, kept[0], kept[1], kept[2]});
  p.op.part = second ? 1 : 0;
  p.op.weight = weight;
  return p;
}

ProgramOp ProgramWriter::post_norm(bool second, bool backward) const {
  const Operand in = second ? kDown : kProjected;
  const Operand saved = second ? kNorm2Saved2 : kNorm1Saved2;
  const double count = elements(model_.hidden);
  ProgramOp p = backward ? elementwise(OpKind::kNorm, Phase::kBackward, stack_.norm, count, true,
                                       {second ? of_next_unit(kDX) : Operand(kDXMid), saved, in},
                                       {second ? kDNorm2 : kDNorm1})
                         : elementwise(OpKind::kNorm, Phase::kForward, stack_.norm, count, false,
                                       {in, second ? kXMid : kX},
                                       {second ? of_next_unit(kX) : Operand(kXMid), saved});
  // The sum with the residual is read, read and written once more.
  if (!backward) p.op.work.bytes += static_cast<Bytes>(3 * count * static_cast<double>(width_));
  p.op.part = second ? 3 : 2;
  p.op.weight = second ? Weight::kNorm2 : Weight::kNorm1;
  return p;
}

ProgramOp ProgramWriter::product_forward(const Product& product) const {
  ProgramOp p = make(product.kind, Phase::kForward, {product.in}, {product.out});
  p.op.weight = product.weight;
  p.op.work = gemm_work(tokens_, product.n, product.k);
  return p;
}

void ProgramWriter::product_backward(std::vector<ProgramOp>& list, const Product& product,
                                     bool adds_to_input_gradient) {
  const auto append = [&](ProgramOp p) {
    p.op.of = product.kind;
    p.op.weight = product.weight;
    list.push_back(p);
  };
  ProgramOp dgrad = make(OpKind::kInputGradient, Phase::kBackward, {product.d_out},
                         {adds_to_input_gradient ? Operand() : product.d_in});
  dgrad.op.work = gemm_work(tokens_, product.k, product.n);
  if (adds_to_input_gradient) dgrad.temporary_bytes = tensors_[product.d_in.tensor].bytes;
  append(dgrad);
  const Tensor slot = following(kWeightGradient0, weight_gradients_++);
  SHARDWRIGHT_CHECK(is_weight_gradient(slot), "more weight gradients than slots");
  size_weight_gradient(slot, product.n * product.k);
  ProgramOp wgrad =
      make(OpKind::kWeightGradient, Phase::kBackward, {product.d_out, product.in}, {slot});
  wgrad.op.work = weight_gradient_work(product.n, product.k, tokens_);
  append(wgrad);
  const double features = static_cast<double>(tokens_ * width_);
  if (product.bias) {
    ProgramOp bias = make(OpKind::kAccumulate, Phase::kBackward, {product.d_out}, {});
    bias.op.work = memory_work(features * static_cast<double>(product.n), 1, 1.0);
    append(bias);
  }
  if (adds_to_input_gradient) {
    ProgramOp add = make(OpKind::kAccumulate, Phase::kBackward, {product.d_in}, {});
    add.op.work = memory_work(3 * features * static_cast<double>(product.k), 1, 1.0);
    list.push_back(add);
  }
}

void ProgramWriter::add_residual_gradient(std::vector<ProgramOp>& list, Operand from,
                                          Operand into) const {
  if (stack_.residual.backward_kernels == 0 || stack_.residual.backward_bytes <= 0) {
    for (Operand& in : list.back().op.in) {
      if (!in) {
        in = from;
        break;
      }
    }
    return;
  }
  list.push_back(elementwise(OpKind::kResidual, Phase::kBackward, stack_.residual,
                             elements(model_.hidden), true, {from, into}, {}));
}

void ProgramWriter::size_weight_gradient(Tensor slot, std::int64_t elements) {
  const bool in_place = stack_.memory == MemoryManager::kStatic;
  const std::int64_t width = stack_.autocast ? bytes_of(plan_.master_dtype) : width_;
  tensors_[slot] = {in_place ? 0 : elements * width, MemoryCategory::kGradientBuffers};
}

}  // namespace shardwright::sim
