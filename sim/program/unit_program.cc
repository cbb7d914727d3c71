// SPDX-License-Identifier: Apache-2.0
#include "sim/program/unit_program.h"

#include <algorithm>
#include <iterator>

#include "sim/program/expert_program.h"
#include "sim/program/list_pass.h"
#include "sim/program/low_precision.h"
#include "sim/program/program_writer.h"

namespace shardwright::sim {

using enum Tensor;

TensorSet needed_tensors(const Ops& forward, const Ops& backward) {
  TensorSet produced;
  produced.set(kX);
  for (const Op& op : forward) {
    for (const Operand& out : op.out) {
      if (out && out.offset == 0) produced.set(out.tensor);
    }
  }
  TensorSet needed;
  for (const Op& op : backward) {
    for (const Operand& in : op.in) {
      if (in && in.offset == 0 && produced.test(in.tensor)) needed.set(in.tensor);
    }
    // What backward makes itself it does not need of forward.
    for (const Operand& out : op.out) {
      if (out && out.offset == 0 && !needed.test(out.tensor)) produced.reset(out.tensor);
    }
  }
  return needed;
}

namespace {

/// Of operators one by one: attention, every second GEMM, and what tensor ranks have added up.
TensorSet kept_operators(const Model& model, const Plan& plan, const Ops& forward) {
  TensorSet kept;
  kept.set(kX);
  kept.set(kAttentionOut);
  kept.set(plan.attention == AttentionKind::kFlash ? kAttentionStats : kProbabilities);
  int products = 0;
  for (const Op& op : forward) {
    const bool reduces = op.collective && op.collective.group == CommGroup::kTensor &&
                         op.collective.kind != Collective::kAllGather;
    // A recurrence's kernels are none of the operators that such policies know.
    const bool multiplies = op.work.kind == WorkKind::kGemm && op.kind != OpKind::kScan;
    const bool second = multiplies && ++products % 2 == 1;
    const Operand result = op.out[0] ? op.out[0] : op.in[0];
    if ((second || reduces) && result && result.offset == 0) kept.set(result.tensor);
  }
  kept.reset(kPartialSum);
  // Kept after its heads were normalised in place: the heads before that cannot be rebuilt.
  if (model.qk_norm && kept.test(kQkv)) {
    for (const Tensor t : {kQRaw, kKRaw, kQkNormSaved}) kept.set(t);
  }
  return kept;
}

/// `needed` without what the pieces make again.
TensorSet kept_beside_pieces(const Model& model, const Plan& plan, const TensorSet& needed,
                             const ProgramTensors& tensors) {
  TensorSet kept = needed;
  kept.set(kX);
  const auto drop = [&kept](std::initializer_list<Tensor> dropped) {
    for (const Tensor t : dropped) kept.reset(t);
  };
  const auto drop_norm = [&](bool second) {
    const std::array<Tensor, 3> saved = second
                                            ? std::array{kNorm2Saved0, kNorm2Saved1, kNorm2Saved2}
                                            : std::array{kNorm1Saved0, kNorm1Saved1, kNorm1Saved2};
    drop({second ? kNorm2Out : kNorm1Out, second ? kNorm2Gathered : kNorm1Gathered});
    if (tensors[saved[0]].bytes > 0 || tensors[saved[1]].bytes > 0) {
      for (const Tensor t : saved) kept.reset(t);
      if (second && !model.parallel_residual) kept.set(kXMid);
    }
  };
  const std::uint16_t pieces = plan.pieces;
  if (pieces & kPieceNorm) {
    drop_norm(false);
    drop_norm(true);
    drop({kQueryLatentNorm, kKeyLatentNorm});
  }
  if (pieces & (kPieceSwiglu | kPieceFfn | kPieceMoeActivation))
    drop({kActivationOut, kActivationSaved0, kActivationSaved1, kExpertActivation});
  if (pieces & kPieceFfn) {
    drop({kGate, kUp, kGateUp});
    if (!needed.test(kRows)) drop_norm(true);
    if (!model.parallel_residual) kept.set(kXMid);
  }
  if (pieces & kPieceMoe) drop({kRouterScores, kRows, kExpertUp, kExpertActivation});
  if (pieces & (kPieceMoe | kPieceSharedExperts)) drop({kSharedUp, kSharedActivation});
  if (pieces & kPieceCoreAttention) drop({kProbabilities, kAttentionStats});
  if (pieces & kPieceMlaUpProjection && needed.test(kKeyValueUp))
    drop({kQRaw, kQ, kK, kKeyValueUp});
  if (pieces & kPieceAttention) {
    drop({kQkv, kQRaw, kKRaw, kQ, kK, kV, kKRepeated, kVRepeated, kProbabilities, kAttentionOut,
          kAttentionStats, kAttentionCast, kQkNormSaved, kContextInput, kKeyValueUp});
    drop_norm(false);
  }
  if (pieces & kPieceBlock) {
    kept.clear();
    kept.set(kX);
  }
  return kept;
}

/// A cast that belongs to one product (low_precision.cc).
bool casts_operands(const Op& op) {
  return op.kind == OpKind::kQuantize && op.of != OpKind::kHostWork;
}

/// `gathers` gathers inside what the first of `later`, which is in reverse order, reads now.
void gather_inside_next(const Op& gathers, Ops& later) {
  const Operand gathered = gathers.out[1];
  for (auto op = later.rbegin(); op != later.rend(); ++op) {
    const auto in = std::find(std::begin(op->in), std::end(op->in), gathered);
    if (in == std::end(op->in) || op->work.kind != WorkKind::kGemm) continue;
    op->collective = gathers.collective;
    *in = gathers.in[0];
    *std::find(std::begin(op->out), std::end(op->out), Operand()) = gathered;
    return;
  }
}

}  // namespace

TensorSet kept_tensors(const Model& model, const Plan& plan, const Ops& forward,
                       const TensorSet& needed, const ProgramTensors& tensors) {
  TensorSet input;
  input.set(kX);
  switch (plan.recompute) {
    case Recompute::kNone:
      return needed;
    case Recompute::kFull:
      return input;
    case Recompute::kSelectiveOp:
      return kept_operators(model, plan, forward);
    case Recompute::kPieces:
      break;
  }
  return kept_beside_pieces(model, plan, needed, tensors);
}

Ops recomputation(const Ops& forward, const TensorSet& needed, const TensorSet& kept) {
  TensorSet wanted = needed.without(kept);
  Ops list;
  std::size_t last = forward.size();  // the one that was taken
  for (std::size_t i = forward.size(); i-- > 0;) {
    const Op& op = forward[i];
    if (casts_operands(op)) {  // for the product behind it, also where that reads what was kept
      if (last != i + 1) continue;
      list.push_back(op);
      list.back().phase = Phase::kRecompute;
      continue;
    }
    bool leads = false;
    for (const Operand& out : op.out)
      leads = leads || (out && out.offset == 0 && wanted.test(out.tensor));
    // In-place operations (RoPE and norms on the packed product) write what they read.
    const bool works_in_place =
        !op.out[0] || (op.kind == OpKind::kQkNorm && op.in[0] == Operand(kQkv));
    const bool in_place = works_in_place && op.in[0] && wanted.test(op.in[0].tensor);
    if (!leads && !in_place) continue;
    const bool gathers_alone = op.collective.overlap == Overlap::kInside && op.out[1] &&
                               op.out[0].offset == 0 && !wanted.test(op.out[0].tensor);
    if (gathers_alone) {
      if (!kept.test(op.in[0].tensor)) wanted.set(op.in[0].tensor);
      gather_inside_next(op, list);
      continue;
    }
    for (const Operand& in : op.in) {
      if (in && !kept.test(in.tensor)) wanted.set(in.tensor);
    }
    list.push_back(op);
    list.back().phase = Phase::kRecompute;
    last = i;
  }
  std::reverse(list.begin(), list.end());
  return list;
}

std::vector<MemoryAction> lifetimes(const Ops& list, const ProgramTensors& tensors,
                                    const TensorSet& alive, const TensorSet& kept, bool backward) {
  std::vector<MemoryAction> actions;
  actions.reserve(2 * list.size());
  std::array<int, kTensorCount> last_use{};
  last_use.fill(-1);
  bool next_dx_used = false;
  int next_dx_last = -1;
  bool reads_x = false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto touch = [&](const Operand& operand) {
      if (operand == of_next_unit(kDX)) {
        next_dx_used = true;
        next_dx_last = static_cast<int>(i);
      } else if (operand && operand.offset == 0) {
        last_use[index_of(operand.tensor)] = static_cast<int>(i);
      }
    };
    for (const Operand& in : list[i].in) {
      touch(in);
      reads_x = reads_x || in == Operand(kX);
    }
    for (const Operand& out : list[i].out) touch(out);
  }
  TensorSet live = alive;
  if (!backward) live.set(kX, reads_x);
  const auto act = [&](std::size_t op, bool acquire, const Operand& operand) {
    MemoryAction action;
    action.op = static_cast<std::uint32_t>(op);
    action.acquire = acquire;
    action.tensor = operand.tensor;
    action.offset = operand.offset;
    action.category = tensors[operand.tensor].category;
    action.bytes = tensors[operand.tensor].bytes;
    if (action.bytes > 0) actions.push_back(action);
  };
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Op& op = list[i];
    for (const Operand& out : op.out) {
      if (!out) continue;
      if (out.offset != 0) {
        act(i, true, out);
      } else if (!live.test(out.tensor)) {
        act(i, true, out);
        live.set(out.tensor);
      }
    }
    if (op.temporary_bytes > 0) {
      MemoryAction action;
      action.op = static_cast<std::uint32_t>(i);
      action.tensor = kTemporary;
      action.category = op.phase == Phase::kLoss || op.kind == OpKind::kLoss
                            ? MemoryCategory::kLoss
                            : MemoryCategory::kActivations;
      action.bytes = op.temporary_bytes;
      actions.push_back(action);
      action.acquire = false;
      actions.push_back(action);
    }
    TensorSet dying;
    const auto ends = [&](const Operand& operand) {
      if (operand && operand.offset == 0 &&
          last_use[index_of(operand.tensor)] == static_cast<int>(i))
        dying.set(operand.tensor);
    };
    for (const Operand& in : op.in) ends(in);
    for (const Operand& out : op.out) ends(out);
    if (i + 1 == list.size()) {
      live.for_each([&](Tensor t) {
        if (last_use[index_of(t)] < 0) dying.set(t);
      });
    }
    dying.for_each([&](Tensor t) {
      const bool pass_output = is_weight_gradient(t) || (backward && t == kDX);
      if (!live.test(t) || kept.test(t) || pass_output) return;
      act(i, false, t);
      live.reset(t);
    });
    if (next_dx_used && next_dx_last == static_cast<int>(i)) act(i, false, of_next_unit(kDX));
  }
  return actions;
}

// Products that tensor ranks share: what is gathered before a column-parallel one, summed behind a
// row-parallel one, and both ways backward.

void ProgramWriter::copy_parts(Ops& list, OpKind kind, Operand of) const {
  if (copies_parts_)
    list.push_back(memory(kind, 2 * gathered_bytes(), 1, stack_.copies.copy, {of}));
}

Overlap ProgramWriter::gathers() const {
  const bool scales_of_rows = fp8_scaled(plan_, Fp8Recipe::kRowwise);
  const bool fused = overlap_ != TensorOverlap::kNone && !(matches_async_ && scales_of_rows);
  return fused ? Overlap::kInside : Overlap::kNone;
}

void ProgramWriter::gather_before(Ops& list, Op product, Operand from, Operand to,
                                  Overlap overlap) const {
  if (shape_.sequence_parallel) {
    const Op gather = collective(CommGroup::kTensor, Collective::kAllGather, gathered_bytes(),
                                 overlap, {from}, {to});
    if (overlap == Overlap::kInside) {
      product.collective = gather.collective;
      std::replace(std::begin(product.in), std::end(product.in), to, from);
      add_output(product, to);
    } else {
      list.push_back(gather);
      copy_parts(list, OpKind::kCopyOut, to);
    }
  }
  list.push_back(product);
}

Op ProgramWriter::reduction(Operand from, Operand to, Overlap overlap) const {
  return collective(CommGroup::kTensor,
                    shape_.sequence_parallel ? Collective::kReduceScatter : Collective::kAllReduce,
                    gathered_bytes(), overlap, {from}, {to != from ? to : Operand()});
}

void ProgramWriter::row_forward(Ops& list, const Product& product) const {
  reduce_after(list, product_forward(product));
}

void ProgramWriter::reduce_after(Ops& list, Op op) const {
  if (shape_.tp == 1) {
    list.push_back(op);
    return;
  }
  if (overlap_ != TensorOverlap::kNone) {
    op.collective = reduction({}, {}, Overlap::kInside).collective;
    // What came from every rank is read, its sum written.
    if (matches_async_) op.work.extra_bytes = gathered_bytes() * (1 + 1 / f(shape_.tp));
    list.push_back(op);
    return;
  }
  const Operand sum = op.out[0];
  const Operand part = shape_.sequence_parallel ? Operand(kPartialSum) : sum;
  op.out[0] = part;
  list.push_back(op);
  copy_parts(list, OpKind::kCopyIn, part);
  list.push_back(reduction(part, sum, Overlap::kNone));
}

void ProgramWriter::row_backward(Ops& list, const Product& product, Overlap overlap) const {
  const bool of_attention = product.kind == OpKind::kOutputProjection;
  const Operand whole = of_attention ? kDGatheredMid : kDGathered;
  Product gathered = product;
  if (shape_.sequence_parallel) gathered.d_out = whole;
  gather_before(list, input_gradient(gathered), product.d_out, whole, overlap);
  list.push_back(weight_gradient_of(gathered));
  add_bias_gradient(list, gathered);
}

void ProgramWriter::column_forward(Ops& list, const std::vector<Product>& products, bool second,
                                   Overlap overlap) const {
  for (const Product& product : products) {
    if (&product == &products.front() || gathers_each()) {
      gather_before(list, product_forward(product), norm_output(second), gathered_norm(second),
                    overlap);
    } else {
      list.push_back(product_forward(product));
    }
  }
}

void ProgramWriter::column_backward(Ops& list, const std::vector<Product>& products, bool second,
                                    int sum_sms) const {
  const Operand d_in = products.front().d_in;
  const bool at_once = stack_.parallel.tensor.sums_gradients_at_once;
  const auto add_up = [&](double streams) {
    const double each = gathers_each() ? gathered_bytes() / f(shape_.tp) : gathered_bytes();
    list.push_back(memory(OpKind::kAccumulate, streams * each, 1, 1.0, {d_in}));
  };
  if (shape_.tp == 1) {
    // Two by two also where a compiler adds all at once: the published runs of data parallelism
    // that its kernels' rates are fitted to were counted so.
    for (auto product = products.rbegin(); product != products.rend(); ++product) {
      const bool adds = product != products.rbegin();
      product_backward(list, *product, adds);
      if (adds) add_up(3);
    }
    return;
  }
  const bool beside = stack_.parallel.async_tensor_backward ||
                      (overlap_ != TensorOverlap::kNone && !matches_async_);
  const Overlap overlap = beside ? Overlap::kFollowing : Overlap::kNone;
  const bool bulk = sum_sms > 0 && overlap_ == TensorOverlap::kUserbuffers;
  if (shape_.sequence_parallel && !keeps_gathered()) {
    Op gather = collective(CommGroup::kTensor, Collective::kAllGather, gathered_bytes(), overlap,
                           {norm_output(second)}, {gathered_norm(second)});
    if (bulk) gather.collective.sms = stack_.parallel.userbuffers.gather_sms;
    list.push_back(gather);
  }
  const auto reduce_to = [&](Operand sum) {
    copy_parts(list, OpKind::kCopyIn, d_in);
    Op reduce = reduction(d_in, sum, overlap);
    reduce.joins = true;  // what was gathered is there before the gradient of the weight
    if (bulk) reduce.collective.sms = sum_sms;
    list.push_back(reduce);
  };
  const Operand sum = norm_gradient(second);
  for (const Product& product : products) {
    Op gradient = input_gradient(product);
    const bool adds = &product != &products.front();
    if (adds) {
      gradient.out[0] = {};
      gradient.temporary_bytes = tensors_[d_in.tensor].bytes;
    }
    list.push_back(gradient);
    if (gathers_each()) reduce_to(adds ? d_in : sum);
    if (adds && !at_once) add_up(3);
  }
  if (at_once && products.size() > 1) add_up(f(static_cast<std::int64_t>(products.size()) + 1));
  if (!gathers_each()) reduce_to(sum);
  for (const Product& product : products) list.push_back(weight_gradient_of(product));
  for (const Product& product : products) add_bias_gradient(list, product);
}

// How large a rank's tensors are.

namespace {

constexpr Tensor following(Tensor first, int n) {
  return static_cast<Tensor>(static_cast<int>(first) + n);
}

double saved(const KernelGroup& group, int i) {
  const auto index = static_cast<std::size_t>(i);
  return index < group.saved_bytes.size() ? group.saved_bytes[index] : 0;
}

}  // namespace

void ProgramWriter::size(Tensor tensor, double bytes, MemoryCategory category) {
  tensors_[tensor] = {static_cast<Bytes>(bytes), category};
}

/// What is a matrix of tokens in the compute type, and what a type of its own makes wider.
void ProgramWriter::size_layer() {
  const double t = f(shape_.tokens), w = f(width_);
  const Model local = model_of_rank(model_, shape_);
  for (int i = 1; i < kTensorCount; ++i) {
    const auto tensor = static_cast<Tensor>(i);
    const double tokens = is_of_own_tokens(tensor) ? f(shape_.sharded_tokens) : t;
    size(tensor, w * tokens * f(columns_of(tensor, local)));
  }
  // In fp8 backward keeps of a product's input what the product reads.
  const double input = narrows_inputs() ? saved_input_bytes(plan_) : w;
  for (const Tensor read : {kNorm1Out, kNorm2Out})
    size(read, input * sharded_elements(shape_.hidden));
  if (narrows_inputs()) {
    size(kActivationOut, input * elements(shape_.ffn));
    size(kAttentionCast, input * elements(shape_.attention_out_dim()));
  }
  for (const Tensor of_head_width : {kAttentionOut, kDAttention})
    size(of_head_width, w * elements(shape_.attention_out_dim()));
  if (model_.head_gate) {
    size(kAttentionGate, w * elements(shape_.heads));
    size(kGatedAttention, input * elements(shape_.attention_out_dim()));
  }
  if (model_.attention_gate) {
    size(kAttentionGate, w * elements(shape_.q_dim()));
    size(kGatedAttention, input * elements(shape_.q_dim()));
    size(kDQkv, w * elements(2 * shape_.q_dim() + 2 * shape_.kv_dim()));
    size(kQkv, w * elements(shape_.q_dim() + 2 * shape_.kv_dim()));
  }
  size_recurrence();
  size(kTokens, 8 * t);
  if (stack_.autocast) {
    const double fp32_bytes = f(bytes_of(DType::kFp32));
    for (const Tensor residual : {kX, kXMid, kNorm1Out, kNorm2Out, kDX, kDXMid, kDNorm1, kDNorm2})
      size(residual, fp32_bytes * sharded_elements(shape_.hidden));
    // Positions are fp32 and make keys so.
    size(kKeyValueCache, (fp32_bytes + w) * elements(shape_.kv_dim()));
  }
  const double scores = elements(shape_.heads) * f(plan_.seq_len);
  size(kProbabilities, (stack_.parallel.score_bytes + w - 2) * scores);
  size(kAttentionStats, 4 * elements(shape_.heads));
}

void ProgramWriter::size_recurrence() {
  const Recurrence& r = shape_.recurrence;
  if (r.value_heads == 0) return;
  const double w = f(width_);
  for (const Tensor in : {kRecurrentIn, kDRecurrentIn}) size(in, w * elements(r.product_width()));
  for (const Tensor convolved : {kRecurrentConvolved, kDRecurrentConvolved})
    size(convolved, w * elements(r.convolved()));
  for (const Tensor out : {kRecurrentOut, kRecurrentGated, kDRecurrentOut, kDRecurrentGated})
    size(out, w * elements(r.value_width()));
  for (const Tensor latent : {kRecurrentLatent, kDRecurrentLatent})
    size(latent, w * elements(r.latent_width()));
  for (const Tensor up : {kRecurrentUp, kDRecurrentUp}) size(up, w * elements(r.up_width()));
  size(kRecurrentExchanged, w * elements(r.product_width() + r.up_width()));
}

/// What kernels of this stack keep for their own backward.
void ProgramWriter::size_saved() {
  const double t = f(shape_.sharded_tokens), c = f(shape_.hidden);
  for (int i = 0; i < 3; ++i) {
    const double statistics =
        i == 2 ? statistics_kept() * stack_.norm.saved_bytes_per_token * t : 0;
    size(following(kNorm1Saved0, i), saved(stack_.norm, i) * t * c + statistics);
    size(following(kNorm2Saved0, i), saved(stack_.norm, i) * t * c + statistics);
  }
  size(kQkNormSaved, stack_.norm.saved_bytes_per_token * elements(shape_.heads + shape_.kv_heads));
  for (int i = 0; i < 2; ++i)
    size(following(kActivationSaved0, i), saved(activation(), i) * elements(shape_.ffn));
  size(kLayerSaved, stack_.parallel.layer_saved_bytes * t * c);
}

/// Of the tokens whose logits exist at once. Static memory has room for one row in fp32: a device
/// that keeps logits so takes smaller chunks.
void ProgramWriter::size_loss() {
  const std::int64_t chunk = loss_chunk_tokens(plan_, stack_, shape_.tokens);
  const bool gathers = shape_.tp > 1 && !stack_.parallel.vocabulary_parallel_loss;
  const std::int64_t columns = gathers ? model_.vocab : shape_.vocab;
  const double logits = f(chunk) * f(columns);
  const auto of_loss = [&](Tensor tensor, double bytes) {
    size(tensor, bytes, MemoryCategory::kLoss);
  };
  const bool in_place = stack_.loss_chunk_tokens > 0;
  of_loss(kLogits,
          in_place ? f(std::max<std::int64_t>(width_ * chunk, 4) * columns) : f(width_) * logits);
  of_loss(kLossParts, f(kLossPartBytes * plan_.feature_parts() * chunk));
  of_loss(kDLogits, f(width_) * logits);
  of_loss(kLogitsFloat, 4 * logits);
  of_loss(kDLogitsFloat, 4 * logits);
  for (int i = 0; i < 2; ++i) of_loss(following(kLossSaved0, i), saved(stack_.loss, i) * logits);
}

/// What tensor, context and expert parallelism and latent vectors add.
void ProgramWriter::size_parallel() {
  const double w = f(width_), input = narrows_inputs() ? saved_input_bytes(plan_) : w;
  const RankShape& s = shape_;
  const bool apart = gathers_each() && keeps_gathered();  // each product keeps what it gathered
  size(kNorm1Gathered, (apart && !fused_qkv() ? 3 : 1) * input * elements(s.hidden));
  size(kNorm2Gathered,
       (apart && model_.gated_mlp && !fused_gate_up() ? 2 : 1) * input * elements(s.hidden));
  for (const Tensor whole : {kPartialSum, kDGathered, kDGatheredMid}) size(whole, gathered_bytes());
  std::int64_t norms = 0;
  for (const WeightShape& weight : weights_of(model_, ModelUnit::kDenseLayer))
    norms += weight.is_norm ? weight.elements() : 0;
  size(kNormGradients, f(gradient_width() * norms));
  if (s.tp > model_.kv_heads)
    size(kKeyValueGradients,
         f(gradient_width() * 2 * model_.kv_dim() * (model_.hidden + (model_.qkv_bias ? 1 : 0))));
  const double key_values = w * elements(s.kv_dim() + s.kv_heads * s.v_head_dim);
  switch (context_) {
    case ContextComm::kRing:  // one block is worked on while the next one comes
      size(kContextInput, 2 * key_values);
      if (stack_.parallel.context.ring_by_all_gather)
        size(kContextInput, w * elements(s.q_dim() + s.attention_out_dim()) * f(s.cp));
      break;
    case ContextComm::kAllGather:
      size(kContextInput, key_values * f(s.cp));
      break;
    case ContextComm::kAllToAll:
      size(kContextInput, key_values + w * elements(s.q_dim()));
      break;
  }
  if (const LatentAttention& latent = model_.latent; latent.kv_rank > 0) {
    const std::int64_t keys = latent.kv_rank + latent.rope_dim;
    const std::int64_t up = s.heads * (latent.nope_dim + latent.v_dim);
    for (const Tensor query : {kQueryLatent, kQueryLatentNorm})
      size(query, w * sharded_elements(latent.q_rank));
    for (const Tensor key : {kKeyLatent, kKeyLatentNorm}) size(key, w * sharded_elements(keys));
    size(kQueryLatentGathered, w * elements(latent.q_rank));
    size(kKeyLatentGathered, w * elements(keys));
    size(kKeyValueUp, w * elements(up));
    for (const Tensor heads : {kQRaw, kQ, kK}) size(heads, w * elements(s.q_dim()));
    size(kDQkv, w * elements(s.q_dim() + s.q_dim() + up));
    size(kDLatent, w * elements(std::max(latent.q_rank, keys)));
    const bool gathered = s.recurrence.value_heads > 0;  // beside layers of heads
    size(kDNorm1, w * (gathered ? elements(s.hidden) : sharded_elements(s.hidden)));
  }
  if (!model_.is_moe()) return;
  const ExpertShape e = expert_shape(model_, plan_, stack_);
  const double rows = e.all_rows(), gates = model_.gated_mlp ? 2 : 1;
  size(kRouterScores, 4 * e.tokens * f(model_.experts.count));
  const double sent = e.tokens * f(model_.experts.per_token);
  const double row = f(model_.expert_width());
  for (const Tensor own : {kRowsSent, kRowsReturned}) size(own, w * sent * row);
  for (const Tensor all : {kRowsArrived, kExpertOut, kDExpertOut, kDRows})
    size(all, w * rows * row);
  size(kRows, input * e.kept_rows * row);
  for (const Tensor latent : {kExpertLatent, kExpertLatentOut, kDExpertLatent})
    size(latent, w * e.tokens * f(model_.experts.latent));
  size(kExpertUp, w * gates * e.kept_rows * f(e.ffn));
  size(kDExpertUp, w * gates * rows * f(e.ffn));
  size(kExpertActivation, input * e.kept_rows * f(e.ffn));
  size(kDExpertActivation, w * rows * f(e.ffn));
  for (const Tensor up : {kSharedUp, kDSharedUp}) size(up, w * gates * elements(e.shared_ffn));
  size(kSharedActivation, input * elements(e.shared_ffn));
  size(kDSharedActivation, w * elements(e.shared_ffn));
}

}  // namespace shardwright::sim
