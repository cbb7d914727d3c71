// SPDX-License-Identifier: Apache-2.0
#include "sim/program/program_writer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "profiles/ledger/ledger.h"
#include "sim/core/base/check.h"
#include "sim/core/units.h"
#include "sim/program/adapters.h"
#include "sim/program/list_pass.h"
#include "sim/program/low_precision.h"
#include "sim/program/optimizer_state.h"

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
  const auto usual_comm = from_word<ContextComm>(stack.parallel.cp_comm);
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

Op ProgramWriter::collective(CommGroup group, Collective kind, double bytes, Overlap overlap,
                             std::initializer_list<Operand> in,
                             std::initializer_list<Operand> out) const {
  Op op = make(kind == Collective::kAllReduce       ? OpKind::kAllReduce
               : kind == Collective::kReduceScatter ? OpKind::kReduceScatter
                                                    : OpKind::kAllGather,
               Phase::kForward, in, out);
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
  Op sum =
      tensor_collective(Collective::kAllReduce, f(gradient_width() * elements), {kNormGradients});
  sum.phase = Phase::kBackward;
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
  Op sum = tensor_collective(Collective::kAllReduce, f(tensors_[kKeyValueGradients].bytes),
                             {kKeyValueGradients});
  sum.phase = Phase::kBackward;
  sum.weight = Weight::kQkv;
  sum.deferrable = true;
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

UnitProgram ProgramWriter::embedding() const {
  UnitProgram unit;
  unit.tensors = tensors_;
  const RankShape& s = shape_;
  const Operand out = of_next_unit(kX);
  Op look_up = elementwise(OpKind::kEmbedding, stack_.embedding, elements(s.hidden), false, {},
                           {s.sequence_parallel ? Operand(kPartialSum) : out});
  look_up.weight = Weight::kEmbedding;
  unit.forward.push_back(look_up);
  if (s.tp > 1)
    unit.forward.push_back(
        reduction(s.sequence_parallel ? Operand(kPartialSum) : out, out, Overlap::kNone));
  if (plan_.numerics.lora > 0) return unit;  // nothing before the first layer is trained
  Operand gradient = of_next_unit(kDX);
  if (s.sequence_parallel) {
    unit.backward.push_back(
        tensor_collective(Collective::kAllGather, gathered_bytes(), {gradient}, {kDGathered}));
    gradient = kDGathered;
  }
  const std::int64_t rows =
      s.vocab + (model_.position == Position::kLearned ? model_.max_positions : 0);
  Op backward =
      elementwise(OpKind::kEmbedding, stack_.embedding, elements(s.hidden), true, {gradient});
  backward.weight = Weight::kEmbedding;
  // The dense gradient is filled with zeros first.
  backward.work.bytes += rows * s.hidden * gradient_width();
  unit.backward.push_back(backward);
  make_weight_gradient(unit, unit.backward.back(), 0, rows * s.hidden);
  return unit;
}

// Final norm, projection to the vocabulary, loss: of all tokens at once, or chunk by chunk with
// both products of backward, where the stack says so.
//
// Tensor ranks share the vocabulary. Their losses add up maximum, sum of exponents and the target's
// logit of every token; software without a vocabulary-parallel loss gathers all logits.

namespace {

constexpr double kFloat = 4;

bool gathers_logits(const ProgramWriter& w) {
  return w.shape().tp > 1 && !w.stack().parallel.vocabulary_parallel_loss;
}

Product head_product(const ProgramWriter& w) {
  return {OpKind::kHeadProjection,
          Weight::kHead,
          w.shape().vocab,
          w.model().hidden,
          w.gathered_norm(false),
          gathers_logits(w) ? kPartialSum : kLogits,
          kDLogits,
          kDNorm1,
          false};
}

double logits_of(const ProgramWriter& w) {
  return w.elements(gathers_logits(w) ? w.model().vocab : w.shape().vocab);
}

/// What tensor ranks tell each other for the loss of every token.
void share_loss(const ProgramWriter& w, Ops& list) {
  if (w.shape().tp == 1 || gathers_logits(w)) return;
  for (int i = 0; i < 3; ++i) {
    Op op = w.tensor_collective(Collective::kAllReduce, kFloat * w.elements(1), {});
    op.phase = Phase::kLoss;
    list.push_back(op);
  }
}

/// The same where a part's maximum, sum of exponents and target's logit are gathered at once and
/// put together by every rank, in their order.
void share_parts(const ProgramWriter& w, Ops& list) {
  Op op = w.tensor_collective(Collective::kAllGather,
                              f(w.plan().feature_parts() * kLossPartBytes) * w.elements(1),
                              {kLossParts}, {kLossParts});
  op.phase = Phase::kLoss;
  list.push_back(op);
}

/// Loss of all tokens at once; with an fp32 copy of the logits where the stack makes one.
void whole_loss(const ProgramWriter& w, UnitProgram& head) {
  const Stack& stack = w.stack();
  const double logits = logits_of(w);
  const Operand s0 = w.existing(kLossSaved0);
  const Operand s1 = w.existing(kLossSaved1);
  const bool upcasts = stack.loss_upcasts_logits;
  const auto cast = [&](Operand from, Operand to, Phase phase) {
    Op op = ProgramWriter::memory(OpKind::kLoss, logits * (f(w.width()) + kFloat), 1,
                                  stack.copies.cast, {from}, {to});
    op.phase = phase;
    return op;
  };
  w.column_forward(head.forward, {head_product(w)}, false, Overlap::kNone);
  if (gathers_logits(w)) {
    Op gather = w.tensor_collective(Collective::kAllGather, f(w.width()) * logits, {kPartialSum},
                                    {kLogits});
    gather.phase = Phase::kLoss;
    head.forward.push_back(gather);
    head.tensors[kPartialSum] = {static_cast<Bytes>(f(w.width()) * w.elements(w.shape().vocab)),
                                 MemoryCategory::kLoss};
  }
  if (upcasts) head.forward.push_back(cast(kLogits, kLogitsFloat, Phase::kLoss));
  Op loss = w.elementwise(OpKind::kLoss, stack.loss, logits, false,
                          {upcasts ? kLogitsFloat : kLogits}, {s0, s1});
  loss.phase = Phase::kLoss;
  loss.part = 1;
  if (w.shape().tp > 1 && upcasts) {
    // Copies that a loss over parts of the vocabulary makes.
    const double others =
        std::accumulate(stack.loss.saved_bytes.begin(), stack.loss.saved_bytes.end(), kFloat);
    loss.temporary_bytes =
        std::max(loss.temporary_bytes,
                 static_cast<Bytes>(logits * (stack.parallel.loss.separate_parts_bytes - others)));
  }
  head.forward.push_back(loss);
  share_loss(w, head.forward);
  for (const Operand& saved : {s0, s1}) {
    if (saved) head.kept.set(saved.tensor);
  }
  if (stack.keeps_logits) {
    head.held.set(upcasts ? kLogitsFloat : kLogits);
    head.kept.set(upcasts ? kLogitsFloat : kLogits);
  }
  if (stack.parallel.loss.keeps_output) {
    head.held.set(kLogits);
    head.kept.set(kLogits);
  }
  head.backward.push_back(w.elementwise(OpKind::kLoss, stack.loss, logits, true, {s0, s1},
                                        {upcasts ? kDLogitsFloat : kDLogits}));
  if (upcasts) {
    // The fp32 gradient of the logits is cast once what produced it has been freed.
    head.backward.push_back(cast(kDLogitsFloat, kDLogits, Phase::kBackward));
    head.backward.back().part = 1;
  }
  w.column_backward(head.backward, {head_product(w)}, false, 0);
}

/// As whole_loss, forward and backward of a chunk of tokens before those of the next: all but the
/// first chunk's weight gradient are added to it.
void chunked_loss(const ProgramWriter& w, UnitProgram& head, std::int64_t chunk) {
  const std::int64_t chunks = ceil_div(w.tokens(), chunk);
  UnitProgram whole;
  whole_loss(w, whole);
  const double share = f(chunk) / f(w.tokens());
  for (Ops* pass : {&whole.forward, &whole.backward}) {
    for (Op& op : *pass) {
      if (pass == &whole.forward) op.phase = Phase::kLoss;
      if (op.work.kind == WorkKind::kGemm) {
        (op.kind == OpKind::kWeightGradient ? op.work.k : op.work.m) = chunk;
      }
      op.work.kernels = static_cast<std::uint16_t>(op.work.kernels * chunks);
      op.temporary_bytes = static_cast<Bytes>(share * static_cast<double>(op.temporary_bytes));
      if (op.kind == OpKind::kWeightGradient)
        op.temporary_bytes = w.width() * w.shape().vocab * w.shape().hidden;
      head.backward.push_back(op);
    }
  }
  const double weights = f(w.shape().vocab * w.shape().hidden);
  head.backward.push_back(ProgramWriter::memory(
      OpKind::kAccumulate, 3 * f(chunks - 1) * f(w.width()) * weights, static_cast<int>(chunks - 1),
      w.stack().copies.add, {kWeightGradient0}));
}

/// Loss over chunks of tokens: logits of a chunk, their gradient in place, both products, then the
/// next chunk.
void in_place_loss(const ProgramWriter& w, UnitProgram& head, std::int64_t chunk) {
  const Stack& stack = w.stack();
  const Product product = head_product(w);
  const double logits = logits_of(w);
  const std::int64_t chunks = ceil_div(w.tokens(), chunk);
  Ops& list = head.backward;
  const auto append = [&](OpKind kind, Phase phase, Op op, std::initializer_list<Operand> in,
                          std::initializer_list<Operand> out) {
    Op written = ProgramWriter::make(kind, phase, in, out);
    written.work = op.work;
    written.weight = product.weight;
    if (kind != product.kind) written.of = product.kind;
    list.push_back(written);
  };
  if (w.shape().sequence_parallel) {
    list.push_back(w.tensor_collective(Collective::kAllGather, w.gathered_bytes(),
                                       {w.norm_output(false)}, {product.in}));
  }
  append(product.kind, Phase::kLoss, w.product(product.kind, chunk, product.n, product.k, chunks),
         {product.in}, {kLogits});
  Op loss = w.elementwise(OpKind::kLoss, stack.loss, logits, true, {kLogits});
  loss.phase = Phase::kLoss;
  const auto forward_bytes = static_cast<Bytes>(w.traffic(logits * stack.loss.forward_bytes));
  if (w.shape().tp == 1) {
    loss.work.bytes += forward_bytes;
  } else {
    Op parts = loss;
    parts.work.bytes = forward_bytes;
    add_output(parts, kLossParts);
    list.push_back(parts);
    share_parts(w, list);
    add_input(loss, kLossParts);
    loss.part = 1;
  }
  list.push_back(loss);
  append(OpKind::kInputGradient, Phase::kBackward,
         w.product(OpKind::kInputGradient, chunk, product.k, product.n, chunks), {kLogits},
         {kDNorm1});
  append(OpKind::kWeightGradient, Phase::kBackward,
         w.weight_gradient(chunk, product.n, product.k, chunks), {kLogits, product.in}, {});
  list.back().deferrable = false;  // the next chunk's logits take their place
  if (w.shape().tp == 1) return;
  add_input(list.back(), kLossParts);  // the next chunk has its parts in the same place
  list.push_back(w.reduction(kDNorm1, w.norm_gradient(false), Overlap::kNone));
}

}  // namespace

UnitProgram ProgramWriter::head() const {
  UnitProgram unit;
  unit.tensors = tensors_;
  for (const Tensor saved : {kNorm1Saved0, kNorm1Saved1, kNorm1Saved2}) {
    if (existing(saved)) unit.kept.set(saved);
  }
  unit.kept.set(keeps_gathered() ? gathered_norm(false).tensor : kNorm1Out);
  if (stack_.norm_saves_input) unit.kept.set(kX);
  unit.forward = {norm(false, Weight::kFinalNorm)};
  const std::int64_t chunk = loss_chunk_tokens(plan_, stack_, tokens());
  if (stack_.loss_chunk_tokens > 0) {
    in_place_loss(*this, unit, chunk);
  } else if (chunk < tokens()) {
    chunked_loss(*this, unit, chunk);
  } else {
    whole_loss(*this, unit);
  }
  unit.backward.push_back(norm_backward(false, Weight::kFinalNorm, norm_gradient(false)));
  if (sums_norm_gradients())
    sum_norm_gradients(unit.backward, weights_of(model_, ModelUnit::kHead));
  if (plan_.numerics.lora > 0) freeze(unit.backward);
  number_weight_gradients(unit);
  return unit;
}

UnitProgram ProgramWriter::prediction_projection() const {
  UnitProgram unit;
  unit.tensors = tensors_;
  const std::int64_t tokens = shape_.sharded_tokens, hidden = shape_.hidden;
  const double norms = 2 * sharded_elements(hidden);
  unit.forward = {elementwise(OpKind::kNorm, stack_.norm, norms, false, {kX}, {kNorm1Out}),
                  product(OpKind::kUpProjection, tokens, hidden, 2 * hidden)};
  add_input(unit.forward.back(), kNorm1Out);
  add_output(unit.forward.back(), of_next_unit(kX));
  Op gradient = product(OpKind::kInputGradient, tokens, 2 * hidden, hidden);
  add_input(gradient, of_next_unit(kDX));
  add_output(gradient, kDNorm1);
  Op of_weight = weight_gradient(tokens, hidden, 2 * hidden);
  add_input(of_weight, of_next_unit(kDX));
  add_input(of_weight, kNorm1Out);
  unit.backward = {gradient, of_weight,
                   elementwise(OpKind::kNorm, stack_.norm, norms, true, {kDNorm1}, {kDX})};
  unit.kept.set(kNorm1Out);
  number_weight_gradients(unit);
  return unit;
}

// The second half of a layer: norm, gate and up, activation, down projection, residual.

namespace {

std::vector<Product> input_products(const ProgramWriter& w) {
  const Model& m = w.model();
  const std::int64_t ffn = w.shape().ffn;
  const auto product = [&](OpKind kind, Weight weight, std::int64_t n, Tensor out) {
    return Product{kind, weight,   n,       m.hidden,  w.gathered_norm(true),
                   out,  kDGateUp, kDNorm2, m.mlp_bias};
  };
  if (w.fused_gate_up())
    return {product(OpKind::kGateUpProjection, Weight::kGateUp, 2 * ffn, kGateUp)};
  std::vector<Product> products;
  if (m.gated_mlp) products.push_back(product(OpKind::kGateProjection, Weight::kGate, ffn, kGate));
  products.push_back(product(OpKind::kUpProjection, Weight::kUp, ffn, kUp));
  return products;
}

Product down_product(const ProgramWriter& w) {
  const bool apart = w.adds_residual() || w.has_post_norms();
  return {OpKind::kDownProjection,
          Weight::kDown,
          w.model().hidden,
          w.shape().ffn,
          kActivationOut,
          apart ? Operand(kDown) : of_next_unit(kX),
          w.has_post_norms() ? w.post_norm_gradient(true) : of_next_unit(kDX),
          kDActivation,
          w.model().mlp_bias};
}

/// What the activation reads: gate and up in one, both, or up alone.
Operand activation_input(const ProgramWriter& w) {
  return w.fused_gate_up() ? kGateUp : kUp;
}
Operand separate_gate(const ProgramWriter& w) {
  return w.fused_gate_up() || !w.model().gated_mlp ? kNone : kGate;
}

}  // namespace

void mlp_forward(const ProgramWriter& w, Ops& list) {
  list.push_back(w.norm(true, Weight::kNorm2));
  w.column_forward(list, input_products(w), true, w.gathers());
  list.push_back(w.elementwise(
      OpKind::kActivation, w.activation(), w.elements(w.shape().ffn), false,
      {activation_input(w), separate_gate(w)},
      {kActivationOut, w.existing(kActivationSaved0), w.existing(kActivationSaved1)}));
  w.row_forward(list, down_product(w));
  if (w.has_post_norms()) {
    list.push_back(w.post_norm(true, false));
  } else if (w.adds_residual()) {
    list.push_back(w.elementwise(OpKind::kResidual, w.stack().residual,
                                 w.sharded_elements(w.model().hidden), false, {kXMid, kDown},
                                 {of_next_unit(kX)}));
  } else {
    add_input(list.back(), kXMid);
  }
}

void mlp_backward(const ProgramWriter& w, Ops& list) {
  if (w.has_post_norms()) list.push_back(w.post_norm(true, true));
  w.row_backward(list, down_product(w), w.gathers());
  list.push_back(w.elementwise(OpKind::kActivation, w.activation(), w.elements(w.shape().ffn), true,
                               {kDActivation, activation_input(w), separate_gate(w),
                                w.existing(kActivationSaved0), w.existing(kActivationSaved1)},
                               {kDGateUp}));
  w.column_backward(list, input_products(w), true, w.stack().parallel.userbuffers.fc1_reduce_sms);
  list.push_back(w.norm_backward(true, Weight::kNorm2, w.norm_gradient(true)));
  w.add_residual_gradient(list, of_next_unit(kDX), kDXMid);
}

// The first half of a layer: a norm, what mixes tokens (attention, a recurrence, or both beside
// each other), the residual.

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
