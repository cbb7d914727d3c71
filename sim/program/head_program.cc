// SPDX-License-Identifier: Apache-2.0
// Final norm, projection to the vocabulary, loss: of all tokens at once, or chunk by chunk with
// both products of backward, where the stack says so.
//
// Tensor ranks share the vocabulary. Their losses add up maximum, sum of exponents and the target's
// logit of every token; software without a vocabulary-parallel loss gathers all logits.
#include <algorithm>
#include <numeric>

#include "sim/core/units.h"
#include "sim/program/adapters.h"
#include "sim/program/loss_chunk.h"
#include "sim/program/program_writer.h"
#include "sim/program/real.h"

namespace shardwright::sim {

using enum Tensor;

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
    Op op = w.collective(CommGroup::kTensor, Collective::kAllReduce, kFloat * w.elements(1));
    op.phase = Phase::kLoss;
    list.push_back(op);
  }
}

/// The same where a part's maximum, sum of exponents and target's logit are gathered at once and
/// put together by every rank, in their order.
void share_parts(const ProgramWriter& w, Ops& list) {
  Op op = w.collective(CommGroup::kTensor, Collective::kAllGather,
                       f(w.plan().feature_parts() * kLossPartBytes) * w.elements(1));
  op.phase = Phase::kLoss;
  add_input(op, kLossParts);
  add_output(op, kLossParts);
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
    Op gather = w.collective(CommGroup::kTensor, Collective::kAllGather, f(w.width()) * logits);
    add_input(gather, kPartialSum);
    add_output(gather, kLogits);
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
    Op gather = w.collective(CommGroup::kTensor, Collective::kAllGather, w.gathered_bytes());
    add_input(gather, w.norm_output(false));
    add_output(gather, product.in);
    list.push_back(gather);
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
  Op reduce = w.collective(
      CommGroup::kTensor,
      w.shape().sequence_parallel ? Collective::kReduceScatter : Collective::kAllReduce,
      w.gathered_bytes());
  add_input(reduce, kDNorm1);
  if (w.norm_gradient(false) != Operand(kDNorm1)) add_output(reduce, w.norm_gradient(false));
  list.push_back(reduce);
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

}  // namespace shardwright::sim
