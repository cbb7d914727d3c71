// SPDX-License-Identifier: Apache-2.0
#include "sim/program/unit_lists.h"

#include <algorithm>
#include <cmath>

#include "profiles/software_settings.h"
#include "sim/memory/optimizer_state.h"
#include "sim/program/adapters.h"
#include "sim/program/expert_lists.h"
#include "sim/program/low_precision.h"
#include "sim/program/real.h"

namespace shardwright::sim {
namespace {

bool only(const Plan& plan, RecomputePiece piece) {
  return plan.recompute == Recompute::kPieces && (plan.pieces & piece) != 0;
}

/// Models with sinks turn by YaRN.
const KernelGroup& rope_kernels(const Model& model, const Stack& stack) {
  const ScaledRope& scaled = stack.parallel.scaled_rope;
  const bool scales = model.rope.scaling == RopeScaling::kYarn || model.attention_sinks;
  return scales && scaled.unfused ? scaled.kernels : stack.rope;
}

}  // namespace

ListWriter::ListWriter(const Model& model, const Plan& plan, const Stack& stack, const Gpu& gpu)
    : model_(model),
      plan_(plan),
      stack_(stack),
      shape_(rank_shape(model, plan)),
      mxfp8_gemm_share_(gpu.mxfp8_gemm_share > 0 ? gpu.mxfp8_gemm_share : 1),
      transposes_fp8_(sim::transposes_fp8(stack, gpu)) {
  overlap_ = plan.parallel.tp_overlap.value_or(profiles::usual_overlap(stack, model));
  if (!shape_.sequence_parallel) overlap_ = TensorOverlap::kNone;
  const auto usual_comm = parallel_word<ContextComm>(stack.parallel.cp_comm);
  context_ = plan.parallel.cp_comm.value_or(usual_comm.value_or(ContextComm::kRing));
  const TensorSoftware& tensor = stack.parallel.tensor;
  copies_parts_ = shape_.sequence_parallel && plan.micro_batch > 1 && tensor.concatenates_sequences;
  matches_async_ = overlap_ == TensorOverlap::kAsync && tensor.async_by_pattern;
}

Overlap ListWriter::gathers() const {
  const bool scales_of_rows = fp8_scaled(plan_, Fp8Recipe::kRowwise);
  const bool fused = overlap_ != TensorOverlap::kNone && !(matches_async_ && scales_of_rows);
  return fused ? Overlap::kInside : Overlap::kNone;
}

void ListWriter::copy_parts(Ops& list, OpKind kind) const {
  if (copies_parts_) list.push_back(memory(kind, 2 * gathered_bytes(), 1, stack_.copies.copy));
}

double ListWriter::gathered_bytes() const {
  return width() * f(shape_.tokens) * f(shape_.hidden);
}

Op ListWriter::product(OpKind kind, std::int64_t m, std::int64_t n, std::int64_t k) const {
  Op op;
  op.kind = kind;
  op.work.kind = WorkKind::kGemm;
  op.work.m = m;
  op.work.n = n;
  op.work.k = k;
  op.work.efficiency = stack_.gemm_efficiency;
  return op;
}

Op ListWriter::weight_gradient(std::int64_t m, std::int64_t n, std::int64_t k) const {
  Op op = product(OpKind::kWeightGradient, n, k, m);
  op.deferrable = true;
  if (stack_.parallel.accumulates_in_product) {
    // The kernel's epilogue reads and writes the accumulated gradient where a product that does not
    // accumulate writes its result.
    op.work.extra_bytes = (2 * gradient_bytes(plan_, stack_) - width()) * f(n) * f(k);
  }
  return op;
}

Op ListWriter::elementwise(OpKind kind, const KernelGroup& group, double elements,
                           bool backward) const {
  return memory(kind, elements * (backward ? group.backward_bytes : group.forward_bytes),
                backward ? group.backward_kernels : group.forward_kernels,
                backward ? group.backward_efficiency : group.forward_efficiency);
}

Op ListWriter::layer_norm(bool backward) const {
  const double elements = f(shape_.sharded_tokens) * f(shape_.hidden);
  Op op = elementwise(OpKind::kNorm, stack_.norm, elements, backward);
  const ParallelSoftware& parallel = stack_.parallel;
  const double instead = backward ? parallel.checkpointed_norm_backward_bytes
                                  : parallel.checkpointed_norm_forward_bytes;
  if (instead > 0 && plan_.recompute == Recompute::kFull && plan_.ckpt_layers > 0) {
    op.work.bytes = static_cast<Bytes>(std::llround(elements * instead));
  }
  return op;
}

Op ListWriter::memory(OpKind kind, double bytes, int kernels, double efficiency) const {
  Op op;
  op.kind = kind;
  op.work.kind = WorkKind::kMemory;
  op.work.bytes = static_cast<Bytes>(std::llround(bytes));
  op.work.kernels = static_cast<std::uint16_t>(std::max(kernels, 1));
  op.work.efficiency = efficiency;
  return op;
}

Op ListWriter::collective(CommGroup group, Collective kind, double bytes, Overlap overlap) const {
  Op op;
  op.kind = kind == Collective::kAllReduce       ? OpKind::kAllReduce
            : kind == Collective::kReduceScatter ? OpKind::kReduceScatter
                                                 : OpKind::kAllGather;
  op.collective = {group, kind, Pattern::kCollective, overlap, bytes};
  return op;
}

void ListWriter::gather_before(Ops& list, Op product_op, Overlap overlap) const {
  if (shape_.sequence_parallel) {
    Op gather = collective(CommGroup::kTensor, Collective::kAllGather, gathered_bytes(), overlap);
    if (overlap == Overlap::kInside) {
      product_op.collective = gather.collective;
    } else {
      list.push_back(gather);
      copy_parts(list, OpKind::kCopyOut);
    }
  }
  list.push_back(product_op);
}

void ListWriter::reduce_after(Ops& list, Op product_op) const {
  if (shape_.tp == 1) {
    list.push_back(product_op);
    return;
  }
  Op reduce =
      collective(CommGroup::kTensor,
                 shape_.sequence_parallel ? Collective::kReduceScatter : Collective::kAllReduce,
                 gathered_bytes());
  if (overlap_ != TensorOverlap::kNone) {
    product_op.collective = reduce.collective;
    product_op.collective.overlap = Overlap::kInside;
    // What came from every rank is read, its sum written.
    if (matches_async_) product_op.work.extra_bytes = gathered_bytes() * (1 + 1 / f(shape_.tp));
    list.push_back(product_op);
    return;
  }
  list.push_back(product_op);
  copy_parts(list, OpKind::kCopyIn);
  list.push_back(reduce);
}

/// Column-parallel products of one input: the input, where it is not kept, is gathered again beside
/// the gradient of the input, whose sum runs beside the gradient of the weight; with userbuffers by
/// `sum_sms` SMs, unless 0.
void ListWriter::column_backward(Ops& list, const std::vector<std::int64_t>& columns,
                                 int sum_sms) const {
  const bool parallel = shape_.tp > 1;
  const bool beside = stack_.parallel.async_tensor_backward ||
                      (overlap_ != TensorOverlap::kNone && !matches_async_);
  const Overlap overlap = beside ? Overlap::kFollowing : Overlap::kNone;
  const bool bulk = sum_sms > 0 && overlap_ == TensorOverlap::kUserbuffers;
  if (shape_.sequence_parallel && !keeps_gathered()) {
    list.push_back(
        collective(CommGroup::kTensor, Collective::kAllGather, gathered_bytes(), overlap));
    if (bulk) list.back().collective.sms = stack_.parallel.userbuffers.gather_sms;
  }
  const bool at_once = stack_.parallel.tensor.sums_gradients_at_once;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    list.push_back(product(OpKind::kInputGradient, shape_.tokens, shape_.hidden, columns[i]));
    if (i > 0 && !at_once) {  // sums of the inputs' gradients
      list.push_back(memory(OpKind::kAccumulate, 3 * gathered_bytes(), 1, stack_.copies.add));
    }
  }
  if (at_once && columns.size() > 1) {
    const double streams = f(static_cast<std::int64_t>(columns.size()) + 1);
    list.push_back(memory(OpKind::kAccumulate, streams * gathered_bytes(), 1, stack_.copies.add));
  }
  if (parallel) {
    copy_parts(list, OpKind::kCopyIn);
    Op reduce =
        collective(CommGroup::kTensor,
                   shape_.sequence_parallel ? Collective::kReduceScatter : Collective::kAllReduce,
                   gathered_bytes(), overlap);
    reduce.joins = true;  // what was gathered is there before the gradient of the weight
    if (bulk) reduce.collective.sms = sum_sms;
    list.push_back(reduce);
  }
  for (const std::int64_t n : columns) {
    list.push_back(weight_gradient(shape_.tokens, n, shape_.hidden));
  }
}

/// A row-parallel product: the gradient of its output is gathered first and serves both.
void ListWriter::row_backward(Ops& list, std::int64_t rows) const {
  const Op gradient = product(OpKind::kInputGradient, shape_.tokens, rows, shape_.hidden);
  gather_before(list, gradient, gathers());
  list.push_back(weight_gradient(shape_.tokens, shape_.hidden, rows));
}

void ListWriter::attention_forward(Ops& list) const {
  const RankShape& s = shape_;
  const double t = f(s.tokens);
  list.push_back(layer_norm(false));
  const Overlap overlap = gathers();
  const bool latent = model_.latent.kv_rank > 0;
  if (latent) {
    latent_forward(*this, list);
  } else if (model_.fused_qkv || stack_.fused_qkv) {
    gather_before(list,
                  product(OpKind::kQkvProjection, s.tokens, s.q_dim() + 2 * s.kv_dim(), s.hidden),
                  overlap);
  } else {
    gather_before(list, product(OpKind::kQProjection, s.tokens, s.q_dim(), s.hidden), overlap);
    list.push_back(product(OpKind::kKProjection, s.tokens, s.kv_dim(), s.hidden));
    list.push_back(product(OpKind::kVProjection, s.tokens, s.kv_dim(), s.hidden));
  }
  const double heads = t * f(s.q_dim() + s.kv_dim());
  if (model_.qk_norm || model_.qk_norm_whole)
    list.push_back(elementwise(OpKind::kQkNorm, stack_.norm, heads, false));
  if (model_.position == Position::kRope && !latent)
    list.push_back(elementwise(OpKind::kRope, rope_kernels(model_, stack_), heads, false));
  attention_core(list, false);
  reduce_after(list, product(OpKind::kOutputProjection, s.tokens, s.hidden, s.attention_out_dim()));
  if (stack_.residual.forward_kernels > 0) {
    list.push_back(
        elementwise(OpKind::kResidual, stack_.residual, f(s.sharded_tokens) * f(s.hidden), false));
  }
}

void ListWriter::attention_backward(Ops& list) const {
  const RankShape& s = shape_;
  const bool latent = model_.latent.kv_rank > 0;
  const int reduce_sms = stack_.parallel.userbuffers.qkv_reduce_sms;
  row_backward(list, s.attention_out_dim());
  attention_core(list, true);
  const double heads = f(s.tokens) * f(s.q_dim() + s.kv_dim());
  if (model_.position == Position::kRope && !latent)
    list.push_back(elementwise(OpKind::kRope, rope_kernels(model_, stack_), heads, true));
  if (model_.qk_norm || model_.qk_norm_whole)
    list.push_back(elementwise(OpKind::kQkNorm, stack_.norm, heads, true));
  if (latent) {
    latent_backward(*this, list);
  } else if (model_.fused_qkv || stack_.fused_qkv) {
    column_backward(list, {s.q_dim() + 2 * s.kv_dim()}, reduce_sms);
  } else {
    column_backward(list, {s.q_dim(), s.kv_dim(), s.kv_dim()}, reduce_sms);
  }
  Op norm = layer_norm(true);
  norm.joins = true;
  list.push_back(norm);
  if (stack_.residual.backward_kernels > 0) {
    list.push_back(
        elementwise(OpKind::kResidual, stack_.residual, f(s.sharded_tokens) * f(s.hidden), true));
  }
}

void ListWriter::mlp_forward(Ops& list) const {
  const RankShape& s = shape_;
  list.push_back(layer_norm(false));
  const Overlap overlap = gathers();
  const bool gated = model_.gated_mlp;
  if (gated && (model_.fused_gate_up || stack_.fused_gate_up)) {
    gather_before(list, product(OpKind::kGateUpProjection, s.tokens, 2 * s.ffn, s.hidden), overlap);
  } else {
    gather_before(list, product(OpKind::kUpProjection, s.tokens, s.ffn, s.hidden), overlap);
    if (gated) list.push_back(product(OpKind::kGateProjection, s.tokens, s.ffn, s.hidden));
  }
  list.push_back(elementwise(OpKind::kActivation,
                             gated ? stack_.gated_activation : stack_.plain_activation,
                             f(s.tokens) * f(s.ffn), false));
  reduce_after(list, product(OpKind::kDownProjection, s.tokens, s.hidden, s.ffn));
  if (stack_.residual.forward_kernels > 0) {
    list.push_back(
        elementwise(OpKind::kResidual, stack_.residual, f(s.sharded_tokens) * f(s.hidden), false));
  }
}

void ListWriter::mlp_backward(Ops& list) const {
  const RankShape& s = shape_;
  const bool gated = model_.gated_mlp;
  const int sms = stack_.parallel.userbuffers.fc1_reduce_sms;
  row_backward(list, s.ffn);
  list.push_back(elementwise(OpKind::kActivation,
                             gated ? stack_.gated_activation : stack_.plain_activation,
                             f(s.tokens) * f(s.ffn), true));
  if (!gated) {
    column_backward(list, {s.ffn}, sms);
  } else if (model_.fused_gate_up || stack_.fused_gate_up) {
    column_backward(list, {2 * s.ffn}, sms);
  } else {
    column_backward(list, {s.ffn, s.ffn}, sms);
  }
  Op norm = layer_norm(true);
  norm.joins = true;
  list.push_back(norm);
  if (stack_.residual.backward_kernels > 0) {
    list.push_back(
        elementwise(OpKind::kResidual, stack_.residual, f(s.sharded_tokens) * f(s.hidden), true));
  }
}

/// Of the last product of a layer that runs again backward needs only what goes in, be it cast.
static void leave_out_last_product(const ListWriter& w, Ops& list) {
  const auto last = std::find_if(list.rbegin(), list.rend(),
                                 [](const Op& op) { return op.work.kind == WorkKind::kGemm; });
  // The outputs of experts are weighed, for which backward reads them.
  if (last != list.rend() && last->kind == OpKind::kDownProjection && !w.model().is_moe())
    list.erase(last.base() - 1, list.end());
}

/// What of a layer runs again before its backward.
static Ops recomputation(const ListWriter& w, const Ops& forward) {
  const Plan& plan = w.plan();
  if (plan.recompute == Recompute::kFull) return forward;
  Ops list;
  const auto again = [&](const Op& op) {
    list.push_back(op);
    list.back().joins = false;
  };
  const bool compiled = w.stack().parallel.tensor.async_by_pattern;
  CollectiveWork gathered_by_q;
  bool second_half = false;
  int norms = 0;
  const LatentAttention& latent = w.model().latent;
  const int norms_of_attention = latent.kv_rank == 0 ? 1 : latent.q_rank > 0 ? 3 : 2;
  const bool experts = std::any_of(forward.begin(), forward.end(),
                                   [](const Op& op) { return op.kind == OpKind::kRouter; });
  for (const Op& op : forward) {
    if (op.kind == OpKind::kNorm && ++norms == norms_of_attention + 1) second_half = true;
    const bool core = op.kind == OpKind::kAttention;
    // Latent attention: what is made of the latent vectors. Experts: all but their residual.
    const bool up_projection = only(plan, kPieceMlaUpProjection) && !second_half &&
                               (op.kind == OpKind::kCopyOut || op.kind == OpKind::kRope ||
                                (op.work.kind == WorkKind::kGemm && latent.kv_rank > 0 &&
                                 (op.work.k == latent.kv_rank || op.work.k == latent.q_rank)));
    const bool moe =
        only(plan, kPieceMoe) && second_half && experts && op.kind != OpKind::kResidual;
    if (plan.recompute == Recompute::kSelectiveOp) {
      // torchtitan keeps attention, every second product and what is reduced; elementwise kernels
      // and gathers run again, but not what a compiler sees to serve a kept sum alone.
      const bool before_sum = op.kind == OpKind::kOutputProjection || op.kind == OpKind::kCopyIn;
      if (before_sum && compiled && w.shape().sequence_parallel) continue;
      const bool gather = op.kind == OpKind::kAllGather && op.work.kind == WorkKind::kNone &&
                          op.collective.group == CommGroup::kTensor;
      if (op.kind == OpKind::kQProjection) gathered_by_q = op.collective;
      if (op.work.kind == WorkKind::kMemory || gather || op.kind == OpKind::kKProjection ||
          op.kind == OpKind::kUpProjection || op.kind == OpKind::kOutputProjection) {
        again(op);
        if (op.kind == OpKind::kKProjection) list.back().collective = gathered_by_q;
        if (op.kind == OpKind::kOutputProjection) {
          list.back().collective = {};
          list.back().work.extra_bytes = 0;
        }
      }
      continue;
    }
    const bool norm = op.kind == OpKind::kNorm && only(plan, kPieceNorm);
    const bool activation = op.kind == OpKind::kActivation &&
                            (only(plan, kPieceSwiglu) || only(plan, kPieceMoeActivation));
    const bool mlp = second_half &&
                     ((only(plan, kPieceFfn) && !experts) || only(plan, kPieceBlock)) &&
                     op.kind != OpKind::kResidual;
    const bool attention = !second_half && (only(plan, kPieceAttention) || only(plan, kPieceBlock));
    const bool core_only = core && only(plan, kPieceCoreAttention);
    if (norm || activation || mlp || attention || core_only || up_projection || moe) again(op);
  }
  return list;
}

UnitLists ListWriter::layer(bool recomputed, bool experts) const {
  UnitLists body;
  attention_forward(body.forward);
  if (experts) {
    expert_forward(*this, body.forward);
    expert_backward(*this, body.backward);
  } else {
    mlp_forward(body.forward);
    mlp_backward(body.backward);
  }
  add_adapters(*this, body.forward);
  if (recomputed) body.recompute = recomputation(*this, body.forward);
  attention_backward(body.backward);
  train_adapters(*this, body.backward);
  for (Ops* list : {&body.forward, &body.recompute, &body.backward}) {
    lower_precision(*this, *list);
    dequantize(*this, *list);
  }
  if (plan_.recompute == Recompute::kFull && !stack_.recomputes_whole_layers &&
      plan_.numerics.lora == 0) {
    leave_out_last_product(*this, body.recompute);
  }
  return body;
}

UnitLists ListWriter::prediction() const {
  const RankShape& s = shape_;
  UnitLists body = layer(false, model_.is_moe());
  const UnitLists last = head();
  const std::int64_t tokens = s.sharded_tokens;
  const double norms = 2 * f(tokens) * f(s.hidden);
  Ops forward = {elementwise(OpKind::kNorm, stack_.norm, norms, false),
                 product(OpKind::kUpProjection, tokens, s.hidden, 2 * s.hidden)};
  forward.insert(forward.end(), body.forward.begin(), body.forward.end());
  forward.insert(forward.end(), last.forward.begin(), last.forward.end());
  Ops backward = last.backward;
  backward.insert(backward.end(), body.backward.begin(), body.backward.end());
  backward.push_back(product(OpKind::kInputGradient, tokens, 2 * s.hidden, s.hidden));
  backward.push_back(weight_gradient(tokens, s.hidden, 2 * s.hidden));
  backward.push_back(elementwise(OpKind::kNorm, stack_.norm, norms, true));
  body.forward = std::move(forward);
  body.backward = std::move(backward);
  return body;
}

UnitLists ListWriter::embedding() const {
  const RankShape& s = shape_;
  UnitLists body;
  const double elements = f(s.tokens) * f(s.hidden);
  body.forward.push_back(elementwise(OpKind::kEmbedding, stack_.embedding, elements, false));
  if (s.tp > 1) {
    body.forward.push_back(
        collective(CommGroup::kTensor,
                   s.sequence_parallel ? Collective::kReduceScatter : Collective::kAllReduce,
                   gathered_bytes()));
  }
  if (s.sequence_parallel) {
    body.backward.push_back(
        collective(CommGroup::kTensor, Collective::kAllGather, gathered_bytes()));
  }
  Op backward = elementwise(OpKind::kEmbedding, stack_.embedding, elements, true);
  // The dense gradient of the rows is added to the accumulated one.
  backward.work.bytes += static_cast<Bytes>(f(s.vocab) * f(s.hidden) *
                                            (width() + stack_.gradient_accumulate_bytes / 2));
  body.backward.push_back(backward);
  if (plan_.numerics.lora > 0) body.backward.clear();  // nothing before the first layer is trained
  return body;
}

UnitLists ListWriter::head() const {
  const RankShape& s = shape_;
  UnitLists body;
  const bool gathers = s.tp > 1 && !stack_.parallel.vocabulary_parallel_loss;
  const double logits = f(s.tokens) * f(gathers ? model_.vocab : s.vocab);
  body.forward.push_back(layer_norm(false));
  gather_before(body.forward, product(OpKind::kHeadProjection, s.tokens, s.vocab, s.hidden),
                Overlap::kNone);
  if (gathers) {
    body.forward.push_back(
        collective(CommGroup::kTensor, Collective::kAllGather, width() * logits));
  }
  if (stack_.loss_upcasts_logits) {
    body.forward.push_back(memory(OpKind::kLoss, logits * 6, 1, stack_.copies.cast));
  }
  body.forward.push_back(elementwise(OpKind::kLoss, stack_.loss, logits, false));
  if (s.tp > 1 && !gathers) {
    // Maximum, sum of exponents and the target's logit of every token.
    for (int i = 0; i < 3; ++i) {
      body.forward.push_back(
          collective(CommGroup::kTensor, Collective::kAllReduce, 4 * f(s.tokens)));
    }
  }
  body.backward.push_back(elementwise(OpKind::kLoss, stack_.loss, logits, true));
  if (stack_.loss_upcasts_logits) {
    body.backward.push_back(memory(OpKind::kLoss, logits * 6, 1, stack_.copies.cast));
  }
  column_backward(body.backward, {s.vocab}, 0);
  Op norm = layer_norm(true);
  norm.joins = true;
  body.backward.push_back(norm);
  if (plan_.numerics.lora > 0) freeze(body.backward);
  return body;
}

}  // namespace shardwright::sim
