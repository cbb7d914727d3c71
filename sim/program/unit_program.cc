// SPDX-License-Identifier: Apache-2.0
#include "sim/program/unit_program.h"

#include <algorithm>

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

}  // namespace shardwright::sim
