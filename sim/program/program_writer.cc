// SPDX-License-Identifier: Apache-2.0
#include "sim/program/program_writer.h"

#include <algorithm>
#include <cmath>

#include "profiles/ledger/software_settings.h"
#include "sim/core/base/check.h"
#include "sim/program/gradient_type.h"
#include "sim/program/low_precision.h"
#include "sim/program/optimizer_state.h"
#include "sim/program/real.h"

namespace shardwright::sim {

using enum Tensor;

namespace {

template <std::size_t N>
void add_operand(Operand (&operands)[N], const Operand& operand) {
  if (!operand) return;
  const auto free = std::find(std::begin(operands), std::end(operands), Operand());
  SHARDWRIGHT_CHECK(free != std::end(operands), "more than {} operands", N);
  *free = operand;
}

}  // namespace

void add_input(Op& op, const Operand& operand) {
  add_operand(op.in, operand);
}
void add_output(Op& op, const Operand& operand) {
  add_operand(op.out, operand);
}

ProgramWriter::ProgramWriter(const Model& model, const Plan& plan, const Stack& stack,
                             const Gpu& gpu)
    : model_(model),
      plan_(plan),
      stack_(stack),
      shape_(rank_shape(model, plan)),
      width_(bytes_of(plan.param_dtype)),
      mxfp8_gemm_share_(gpu.mxfp8_gemm_share > 0 ? gpu.mxfp8_gemm_share : 1),
      transposes_fp8_(sim::transposes_fp8(stack, gpu)) {
  overlap_ = plan.parallel.tp_overlap.value_or(
      profiles::usual_overlap(stack, model, plan.numerics.precision));
  if (!shape_.sequence_parallel) overlap_ = TensorOverlap::kNone;
  const auto usual_comm = parallel_word<ContextComm>(stack.parallel.cp_comm);
  context_ = plan.parallel.cp_comm.value_or(usual_comm.value_or(ContextComm::kRing));
  const TensorSoftware& tensor = stack.parallel.tensor;
  copies_parts_ = shape_.sequence_parallel && plan.micro_batch > 1 && tensor.concatenates_sequences;
  matches_async_ = overlap_ == TensorOverlap::kAsync && tensor.async_by_pattern;
  size_layer();
  size_saved();
  size_loss();
  size_parallel();
}

std::int64_t ProgramWriter::gradient_width() const {
  return bytes_of(gradient_dtype(plan_, stack_));
}

double ProgramWriter::elements(std::int64_t columns) const {
  return f(shape_.tokens * columns);
}
double ProgramWriter::sharded_elements(std::int64_t columns) const {
  return f(shape_.sharded_tokens * columns);
}
double ProgramWriter::gathered_bytes() const {
  return f(width_) * elements(shape_.hidden);
}

bool ProgramWriter::repeats_heads() const {
  return stack_.repeats_kv_heads && shape_.kv_heads < shape_.heads && !is_latent();
}

const KernelGroup& ProgramWriter::rope() const {
  const ScaledRope& scaled = stack_.parallel.scaled_rope;
  const bool scales = model_.rope.scaling == RopeScaling::kYarn || model_.attention_sinks;
  return scales && scaled.unfused ? scaled.kernels : stack_.rope;
}

int ProgramWriter::statistics_kept() const {
  if (stack_.memory != MemoryManager::kStatic) return 1;  // fitted
  return (model_.norm == Normalization::kLayerNorm ? 2 : 1) * (has_post_norms() ? 2 : 1);
}

bool ProgramWriter::narrows_inputs() const {
  return saved_input_bytes(plan_) < 2 && !casts_for_each_product(stack_, plan_);
}

Operand ProgramWriter::existing(Tensor tensor) const {
  return tensors_[tensor].bytes > 0 ? Operand(tensor) : Operand();
}
Operand ProgramWriter::norm_output(bool second) const {
  return second ? kNorm2Out : kNorm1Out;
}
Operand ProgramWriter::gathered_norm(bool second) const {
  if (!shape_.sequence_parallel) return norm_output(second);
  return second ? kNorm2Gathered : kNorm1Gathered;
}
Operand ProgramWriter::norm_gradient(bool second) const {
  if (shape_.sequence_parallel) return kDNormSum;
  return second ? kDNorm2 : kDNorm1;
}

Op ProgramWriter::make(OpKind kind, Phase phase, std::initializer_list<Operand> in,
                       std::initializer_list<Operand> out) {
  Op op;
  op.kind = kind;
  op.phase = phase;
  for (const Operand& operand : in) add_input(op, operand);
  for (const Operand& operand : out) add_output(op, operand);
  return op;
}

Op ProgramWriter::memory(OpKind kind, double bytes, int kernels, double efficiency,
                         std::initializer_list<Operand> in, std::initializer_list<Operand> out) {
  Op op = make(kind, Phase::kForward, in, out);
  op.work.kind = WorkKind::kMemory;
  op.work.bytes = static_cast<Bytes>(bytes);
  op.work.kernels = static_cast<std::uint16_t>(std::max(kernels, 1));
  op.work.efficiency = efficiency;
  return op;
}

Op ProgramWriter::product(OpKind kind, std::int64_t m, std::int64_t n, std::int64_t k,
                          std::int64_t times) const {
  Op op;
  op.kind = kind;
  op.work.kind = WorkKind::kGemm;
  op.work.layout = layout_of(kind);
  op.work.m = m;
  op.work.n = n;
  op.work.k = k;
  op.work.kernels = static_cast<std::uint16_t>(times);
  op.work.dtype_bytes = static_cast<std::uint8_t>(width_);
  op.work.efficiency = stack_.gemm_efficiency;
  return op;
}

Op ProgramWriter::weight_gradient(std::int64_t m, std::int64_t n, std::int64_t k,
                                  std::int64_t times) const {
  Op op = product(OpKind::kWeightGradient, n, k, m, times);
  op.phase = Phase::kBackward;
  op.deferrable = true;
  if (adds_in_product(stack_)) {
    // The kernel's epilogue reads and writes the accumulated gradient where a product that does not
    // accumulate writes its result.
    op.work.extra_bytes = (2 * gradient_bytes(plan_, stack_) - f(width_)) * f(n) * f(k);
  } else if (gradient_width() != width_) {
    const double result = f(gradient_width() * n * k);
    op.work.bytes =
        static_cast<Bytes>(f(width_ * m * (n + k)) + result * f(2 * times - 1) / f(times));
  }
  return op;
}

Op ProgramWriter::elementwise(OpKind kind, const KernelGroup& group, double elements, bool backward,
                              std::initializer_list<Operand> in,
                              std::initializer_list<Operand> out) const {
  Op op = memory(kind, traffic(elements * (backward ? group.backward_bytes : group.forward_bytes)),
                 backward ? group.backward_kernels : group.forward_kernels,
                 backward ? group.backward_efficiency : group.forward_efficiency, in, out);
  op.phase = backward ? Phase::kBackward : Phase::kForward;
  op.temporary_bytes = static_cast<Bytes>(
      elements * (backward ? group.backward_temporary_bytes : group.forward_temporary_bytes));
  op.work.dtype_bytes = static_cast<std::uint8_t>(width_);
  return op;
}

Op ProgramWriter::collective(CommGroup group, Collective kind, double bytes,
                             Overlap overlap) const {
  Op op;
  op.kind = kind == Collective::kAllReduce       ? OpKind::kAllReduce
            : kind == Collective::kReduceScatter ? OpKind::kReduceScatter
                                                 : OpKind::kAllGather;
  op.collective = {group, kind, Pattern::kCollective, overlap, bytes};
  return op;
}

namespace {

/// Where layers are checkpointed whole a framework may have another kernel.
void set_norm_traffic(const ProgramWriter& w, Op& norm, double bytes_per_element) {
  if (bytes_per_element <= 0 || w.plan().recompute != Recompute::kFull || w.plan().ckpt_layers == 0)
    return;
  norm.work.bytes = static_cast<Bytes>(w.sharded_elements(w.shape().hidden) * bytes_per_element);
}

std::array<Operand, 3> kept_by_norm(const ProgramWriter& w, bool second) {
  return {w.existing(second ? kNorm2Saved0 : kNorm1Saved0),
          w.existing(second ? kNorm2Saved1 : kNorm1Saved1),
          w.existing(second ? kNorm2Saved2 : kNorm1Saved2)};
}

}  // namespace

Op ProgramWriter::norm(bool second, Weight weight) const {
  const std::array kept = kept_by_norm(*this, second);
  Op op = elementwise(OpKind::kNorm, stack_.norm, sharded_elements(shape_.hidden), false,
                      {second && !model_.parallel_residual ? kXMid : kX},
                      {norm_output(second), kept[0], kept[1], kept[2]});
  set_norm_traffic(*this, op, stack_.parallel.checkpointed_norm_forward_bytes);
  op.part = second ? 1 : 0;
  op.weight = weight;
  return op;
}

Op ProgramWriter::norm_backward(bool second, Weight weight, Operand gradient) const {
  const std::array kept = kept_by_norm(*this, second);
  const Operand in = second && !model_.parallel_residual ? kXMid : kX;
  Op op =
      elementwise(OpKind::kNorm, stack_.norm, sharded_elements(shape_.hidden), true,
                  {gradient, kept[0], kept[1], kept[2], stack_.norm_saves_input ? in : Operand()},
                  {second ? kDXMid : kDX});
  set_norm_traffic(*this, op, stack_.parallel.checkpointed_norm_backward_bytes);
  op.part = second ? 1 : 0;
  op.weight = weight;
  op.joins = true;
  return op;
}

Op ProgramWriter::post_norm(bool second, bool backward) const {
  const Operand in = second ? kDown : kProjected;
  const Operand saved = second ? kNorm2Saved2 : kNorm1Saved2;
  const double count = sharded_elements(shape_.hidden);
  Op op = backward
              ? elementwise(OpKind::kNorm, stack_.norm, count, true,
                            {second ? of_next_unit(kDX) : Operand(kDXMid), saved, in},
                            {post_norm_gradient(second)})
              : elementwise(OpKind::kNorm, stack_.norm, count, false, {in, second ? kXMid : kX},
                            {second ? of_next_unit(kX) : Operand(kXMid), saved});
  // The sum with the residual is read, read and written once more.
  if (!backward) op.work.bytes += static_cast<Bytes>(3 * count * f(width_));
  op.part = second ? 3 : 2;
  op.weight = second ? Weight::kNorm2 : Weight::kNorm1;
  return op;
}

Operand ProgramWriter::post_norm_gradient(bool second) const {
  if (shape_.sequence_parallel) return second ? kDNorm2 : kDNorm1;  // and is gathered
  return second ? kDGathered : kDGatheredMid;
}

Op ProgramWriter::product_forward(const Product& of) const {
  Op op = product(of.kind, tokens(), of.n, of.k);
  op.weight = of.weight;
  add_input(op, of.in);
  add_output(op, of.out);
  return op;
}

Op ProgramWriter::input_gradient(const Product& of) const {
  Op op = product(OpKind::kInputGradient, tokens(), of.k, of.n);
  op.phase = Phase::kBackward;
  op.of = of.kind;
  op.weight = of.weight;
  add_input(op, of.d_out);
  add_output(op, of.d_in);
  return op;
}

Op ProgramWriter::weight_gradient_of(const Product& of) const {
  Op op = weight_gradient(tokens(), of.n, of.k);
  op.of = of.kind;
  op.weight = of.weight;
  add_input(op, of.d_out);
  add_input(op, of.in);
  return op;
}

void ProgramWriter::add_bias_gradient(Ops& list, const Product& product) const {
  if (!product.bias || !stack_.parallel.separate_bias_gradients) return;
  // TransformerEngine's cast of an output's gradient adds it up in passing (cast_transpose_bgrad).
  if (narrows_inputs()) return;
  Op bias = memory(OpKind::kAccumulate, f(width_) * elements(product.n), 1, 1.0, {product.d_out});
  bias.of = product.kind;
  bias.weight = product.weight;
  list.push_back(bias);
}

void ProgramWriter::product_backward(Ops& list, const Product& product,
                                     bool adds_to_input_gradient) const {
  Op gradient = input_gradient(product);
  if (adds_to_input_gradient) {
    gradient.out[0] = {};
    gradient.temporary_bytes = tensors_[product.d_in.tensor].bytes;
  }
  list.push_back(gradient);
  list.push_back(weight_gradient_of(product));
  add_bias_gradient(list, product);
}

void ProgramWriter::make_weight_gradient(UnitProgram& unit, Op& op, int slot,
                                         std::int64_t elements) const {
  const auto tensor = static_cast<Tensor>(static_cast<int>(kWeightGradient0) + slot);
  SHARDWRIGHT_CHECK(is_weight_gradient(tensor), "more weight gradients than slots");
  add_output(op, tensor);
  // Static memory and GEMMs that add to the sum write where gradients are kept.
  const bool in_place = stack_.memory == MemoryManager::kStatic || adds_in_product(stack_);
  const std::int64_t width = stack_.autocast ? bytes_of(plan_.master_dtype) : width_;
  unit.tensors[tensor] = {in_place ? 0 : elements * width, MemoryCategory::kGradientBuffers};
}

void ProgramWriter::number_weight_gradients(UnitProgram& unit) const {
  int slot = 0;
  for (Op& op : unit.backward) {
    if (op.kind == OpKind::kWeightGradient)
      make_weight_gradient(unit, op, slot++, op.work.m * op.work.n * op.work.groups);
  }
}

bool ProgramWriter::sums_norm_gradients() const {
  return stack_.memory == MemoryManager::kStatic && shape_.tp > 1;
}

void ProgramWriter::sum_norm_gradients(Ops& list, const std::vector<WeightShape>& weights) const {
  const auto is_partial = [&](Weight weight) {
    return shape_.sequence_parallel || weight == Weight::kQkNorm;
  };
  std::int64_t elements = 0;
  for (const WeightShape& weight : weights) {
    if (weight.is_norm && is_partial(weight.weight)) elements += weight.elements();
  }
  if (elements == 0) return;
  for (Op& op : list) {
    const bool is_norm = op.kind == OpKind::kNorm || op.kind == OpKind::kQkNorm;
    if (is_norm && is_partial(op.weight)) add_output(op, kNormGradients);
  }
  Op sum = collective(CommGroup::kTensor, Collective::kAllReduce, f(gradient_width() * elements));
  sum.phase = Phase::kBackward;
  add_input(sum, kNormGradients);
  list.push_back(sum);
}

void ProgramWriter::sum_key_value_gradients(Ops& list) const {
  if (stack_.memory != MemoryManager::kStatic || shape_.tp <= model_.kv_heads) return;
  for (Op& op : list) {
    const bool makes = op.kind == OpKind::kWeightGradient || op.kind == OpKind::kAccumulate;
    if (!makes || op.weight != Weight::kQkv) continue;
    add_output(op, kKeyValueGradients);
    op.deferrable = true;  // together
  }
  Op sum =
      collective(CommGroup::kTensor, Collective::kAllReduce, f(tensors_[kKeyValueGradients].bytes));
  sum.phase = Phase::kBackward;
  sum.weight = Weight::kQkv;
  sum.deferrable = true;
  add_input(sum, kKeyValueGradients);
  list.push_back(sum);
}

void ProgramWriter::add_residual_gradient(Ops& list, Operand from, Operand into) const {
  if (stack_.residual.backward_kernels == 0 || stack_.residual.backward_bytes <= 0) {
    add_input(list.back(), from);
    return;
  }
  list.push_back(elementwise(OpKind::kResidual, stack_.residual, sharded_elements(shape_.hidden),
                             true, {from, into}));
}

}  // namespace shardwright::sim
