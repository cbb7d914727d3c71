// SPDX-License-Identifier: Apache-2.0
// Final norm, projection to the vocabulary, loss.
#include <algorithm>

#include "sim/program/loss_chunk.h"
#include "sim/program/unit_programs.h"

namespace shardwright::sim {

using enum Tensor;

namespace {

Product head_product(const ProgramWriter& w) {
  return {OpKind::kHeadProjection,
          Weight::kHead,
          w.model().vocab,
          w.model().hidden,
          kNorm1Out,
          kLogits,
          kDLogits,
          kDNorm1,
          false};
}

double logits_of(const ProgramWriter& w) {
  return static_cast<double>(w.tokens()) * static_cast<double>(w.model().vocab);
}

/// Loss of all tokens at once; with an fp32 copy of the logits where the stack makes one.
void whole_loss(ProgramWriter& w, HeadProgram& head) {
  const Stack& stack = w.stack();
  const double logits = logits_of(w);
  const Operand s0 = w.existing(kLossSaved0);
  const Operand s1 = w.existing(kLossSaved1);
  const Work cast =
      ProgramWriter::memory_work(logits * static_cast<double>(w.width() + 4), 1, stack.copies.cast);
  head.forward.push_back(w.product_forward(head_product(w)));
  if (stack.loss_upcasts_logits) {
    head.forward.push_back(
        ProgramWriter::make(OpKind::kLoss, Phase::kLoss, {kLogits}, {kLogitsFloat}));
    head.forward.back().op.work = cast;
  }
  head.forward.push_back(w.elementwise(OpKind::kLoss, Phase::kLoss, stack.loss, logits, false,
                                       {stack.loss_upcasts_logits ? kLogitsFloat : kLogits},
                                       {s0, s1}));
  head.forward.back().op.part = 1;
  for (const Operand& saved : {s0, s1}) {
    if (saved) head.kept.set(saved.tensor);
  }
  if (stack.keeps_logits) {
    head.held.set(stack.loss_upcasts_logits ? kLogitsFloat : kLogits);
    head.kept.set(stack.loss_upcasts_logits ? kLogitsFloat : kLogits);
  }
  head.backward.push_back(w.elementwise(OpKind::kLoss, Phase::kBackward, stack.loss, logits, true,
                                        {s0, s1},
                                        {stack.loss_upcasts_logits ? kDLogitsFloat : kDLogits}));
  if (stack.loss_upcasts_logits) {
    // The fp32 gradient of the logits is cast once what produced it has been freed.
    head.backward.push_back(
        ProgramWriter::make(OpKind::kLoss, Phase::kBackward, {kDLogitsFloat}, {kDLogits}));
    head.backward.back().op.part = 1;
    head.backward.back().op.work = cast;
  }
  w.product_backward(head.backward, head_product(w), false);
}

/// As whole_loss, forward and backward of a chunk of tokens before those of the next: tensors of
/// the vocabulary's width have the size of a chunk, and all but the first chunk's weight gradient
/// are added to it.
void chunked_loss(ProgramWriter& w, HeadProgram& head, std::int64_t chunk) {
  const std::int64_t chunks = ceil_div(w.tokens(), chunk);
  HeadProgram whole;
  whole_loss(w, whole);
  const double share = static_cast<double>(chunk) / static_cast<double>(w.tokens());
  for (const Tensor t : {kLogits, kLogitsFloat, kLossSaved0, kLossSaved1, kDLogits, kDLogitsFloat})
    w.size(t, share * static_cast<double>(w.tensor(t).bytes), MemoryCategory::kLoss);
  for (Program* pass : {&whole.forward, &whole.backward}) {
    for (ProgramOp& p : *pass) {
      Work& work = p.op.work;
      if (pass == &whole.forward) p.op.phase = Phase::kLoss;
      if (work.kind == WorkKind::kGemm) {
        (p.op.kind == OpKind::kWeightGradient ? work.k : work.m) = chunk;
      }
      work.kernels = static_cast<std::uint16_t>(work.kernels * chunks);
      p.temporary_bytes = static_cast<Bytes>(share * static_cast<double>(p.temporary_bytes));
      head.backward.push_back(p);
    }
  }
  ProgramOp& weight_gradient = head.backward.back();
  const Product product = head_product(w);
  weight_gradient.temporary_bytes = w.width() * product.n * product.k;
  ProgramOp add =
      ProgramWriter::make(OpKind::kAccumulate, Phase::kBackward, {kWeightGradient0}, {});
  add.op.work = ProgramWriter::memory_work(
      static_cast<double>(3 * (chunks - 1) * w.width() * product.n * product.k),
      static_cast<int>(chunks - 1), w.stack().copies.add);
  head.backward.push_back(add);
}

/// Loss over chunks of tokens: logits of a chunk, their gradient in place, both products, then the
/// next chunk.
void in_place_loss(ProgramWriter& w, Program& list, std::int64_t chunk) {
  const Stack& stack = w.stack();
  const Product head = head_product(w);
  const double logits = logits_of(w);
  const std::int64_t chunks = ceil_div(w.tokens(), chunk);
  // Room for one row in fp32: a device that keeps logits so takes smaller chunks.
  w.size(kLogits, static_cast<double>(std::max<std::int64_t>(w.width() * chunk, 4) * head.n),
         MemoryCategory::kLoss);
  const auto append = [&](ProgramOp p, const Work& work) {
    p.op.weight = head.weight;
    p.op.work = work;
    list.push_back(p);
  };
  append(ProgramWriter::make(head.kind, Phase::kLoss, {kNorm1Out}, {kLogits}),
         w.gemm_work(chunk, head.n, head.k, chunks));
  list.push_back(
      w.elementwise(OpKind::kLoss, Phase::kLoss, stack.loss, logits, true, {kLogits}, {}));
  list.back().op.work.bytes += static_cast<Bytes>(w.traffic(logits * stack.loss.forward_bytes));
  append(ProgramWriter::make(OpKind::kInputGradient, Phase::kBackward, {kLogits}, {kDNorm1}),
         w.gemm_work(chunk, head.k, head.n, chunks));
  list.back().op.of = head.kind;
  w.size_weight_gradient(kWeightGradient0, head.n * head.k);
  append(ProgramWriter::make(OpKind::kWeightGradient, Phase::kBackward, {kLogits, kNorm1Out},
                             {kWeightGradient0}),
         w.weight_gradient_work(head.n, head.k, chunk, chunks));
  list.back().op.of = head.kind;
}

}  // namespace

HeadProgram head_program(ProgramWriter& w) {
  HeadProgram head;
  w.begin_weight_gradients();
  for (const Tensor saved : {kNorm1Saved0, kNorm1Saved1, kNorm1Saved2}) {
    if (w.existing(saved)) head.kept.set(saved);
  }
  head.kept.set(kNorm1Out);
  if (w.stack().norm_saves_input) head.kept.set(kX);
  head.forward = {w.norm(Phase::kForward, false, false, Weight::kFinalNorm)};
  const std::int64_t chunk = loss_chunk_tokens(w.plan(), w.stack(), w.tokens());
  if (w.stack().loss_chunk_tokens > 0) {
    in_place_loss(w, head.backward, chunk);
  } else if (chunk < w.tokens()) {
    chunked_loss(w, head, chunk);
  } else {
    whole_loss(w, head);
  }
  head.backward.push_back(w.norm(Phase::kBackward, false, true, Weight::kFinalNorm));
  return head;
}

}  // namespace shardwright::sim
