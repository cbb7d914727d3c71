// SPDX-License-Identifier: Apache-2.0
#include "sim/program/unit_program.h"

#include <algorithm>

namespace shardwright::sim {

using enum Tensor;

TensorSet kept_tensors(const Model& model, const Plan& plan, const std::vector<ProgramOp>& forward,
                       const TensorSet& needed, const ProgramTensors& tensors) {
  TensorSet kept;
  kept.set(kX);
  switch (plan.recompute) {
    case Recompute::kNone:
      return needed;
    case Recompute::kFull:
      return kept;
    case Recompute::kSelectiveOp: {
      kept.set(kAttentionOut);
      kept.set(plan.attention == AttentionKind::kFlash ? kAttentionStats : kProbabilities);
      int products = 0;
      for (const ProgramOp& p : forward) {
        if (p.op.work.kind == WorkKind::kGemm && ++products % 2 == 1 && p.op.out[0].offset == 0)
          kept.set(p.op.out[0].tensor);
      }
      // Kept after its heads were normalised in place: the heads before that cannot be rebuilt.
      if (model.qk_norm && kept.test(kQkv)) {
        for (const Tensor t : {kQRaw, kKRaw, kQkNormSaved}) kept.set(t);
      }
      return kept;
    }
    case Recompute::kPieces:
      break;
  }
  kept = needed;
  kept.set(kX);
  const auto drop = [&kept](std::initializer_list<Tensor> dropped) {
    for (const Tensor t : dropped) kept.reset(t);
  };
  const auto drop_norm = [&](bool second) {
    const std::array<Tensor, 3> saved = second
                                            ? std::array{kNorm2Saved0, kNorm2Saved1, kNorm2Saved2}
                                            : std::array{kNorm1Saved0, kNorm1Saved1, kNorm1Saved2};
    drop({second ? kNorm2Out : kNorm1Out});
    if (tensors[saved[0]].bytes > 0 || tensors[saved[1]].bytes > 0) {
      for (const Tensor t : saved) kept.reset(t);
      if (second && !model.parallel_residual) kept.set(kXMid);
    }
  };
  const std::uint16_t pieces = plan.pieces;
  if (pieces & kPieceNorm) {
    drop_norm(false);
    drop_norm(true);
  }
  if (pieces & (kPieceSwiglu | kPieceFfn))
    drop({kActivationOut, kActivationSaved0, kActivationSaved1});
  if (pieces & kPieceFfn) {
    drop({kGate, kUp, kGateUp});
    drop_norm(true);
    if (!model.parallel_residual) kept.set(kXMid);
  }
  if (pieces & kPieceAttention) {
    drop({kQkv, kQRaw, kKRaw, kQ, kK, kV, kKRepeated, kVRepeated, kProbabilities, kAttentionOut,
          kAttentionStats, kQkNormSaved});
    drop_norm(false);
  }
  if (pieces & kPieceBlock) {
    kept.clear();
    kept.set(kX);
  }
  return kept;
}

std::vector<ProgramOp> recomputation(const std::vector<ProgramOp>& forward, const TensorSet& needed,
                                     const TensorSet& kept) {
  TensorSet wanted = needed.without(kept);
  std::vector<ProgramOp> list;
  for (std::size_t i = forward.size(); i-- > 0;) {
    const ProgramOp& p = forward[i];
    bool leads = false;
    for (const Operand& out : p.op.out)
      leads = leads || (out && out.offset == 0 && wanted.test(out.tensor));
    // In-place operations (RoPE and norms on the packed product) write what they read.
    const bool works_in_place =
        !p.op.out[0] || (p.op.kind == OpKind::kQkNorm && p.op.in[0] == Operand(kQkv));
    const bool in_place = works_in_place && p.op.in[0] && wanted.test(p.op.in[0].tensor);
    if (!leads && !in_place) continue;
    for (const Operand& in : p.op.in) {
      if (in && !kept.test(in.tensor)) wanted.set(in.tensor);
    }
    list.push_back(p);
    list.back().op.phase = Phase::kRecompute;
  }
  std::reverse(list.begin(), list.end());
  return list;
}

UnitPass with_lifetimes(const std::vector<ProgramOp>& program, const ProgramTensors& tensors,
                        const TensorSet& alive, const TensorSet& kept, bool backward) {
  UnitPass pass;
  std::array<int, kTensorCount> last_use{};
  last_use.fill(-1);
  bool next_dx_used = false;
  int next_dx_last = -1;
  for (std::size_t i = 0; i < program.size(); ++i) {
    const auto touch = [&](const Operand& operand) {
      if (operand == of_next_unit(kDX)) {
        next_dx_used = true;
        next_dx_last = static_cast<int>(i);
      } else if (operand && operand.offset == 0) {
        last_use[index_of(operand.tensor)] = static_cast<int>(i);
      }
    };
    for (const Operand& in : program[i].op.in) touch(in);
    for (const Operand& out : program[i].op.out) touch(out);
  }
  TensorSet live = alive;
  if (!backward)
    live.set(kX, std::any_of(program.begin(), program.end(), [](const ProgramOp& p) {
               return std::find(std::begin(p.op.in), std::end(p.op.in), Operand(kX)) !=
                      std::end(p.op.in);
             }));
  const auto act = [&](std::size_t op, bool acquire, const Operand& operand) {
    MemoryAction action;
    action.op = static_cast<std::uint32_t>(op);
    action.acquire = acquire;
    action.tensor = operand.tensor;
    action.offset = operand.offset;
    action.category = tensors[operand.tensor].category;
    action.bytes = tensors[operand.tensor].bytes;
    if (action.bytes > 0) pass.memory.push_back(action);
  };
  for (std::size_t i = 0; i < program.size(); ++i) {
    const ProgramOp& p = program[i];
    pass.ops.push_back(p.op);
    for (const Operand& out : p.op.out) {
      if (!out) continue;
      if (out.offset != 0) {
        act(i, true, out);
      } else if (!live.test(out.tensor)) {
        act(i, true, out);
        live.set(out.tensor);
      }
    }
    if (p.temporary_bytes > 0) {
      MemoryAction action;
      action.op = static_cast<std::uint32_t>(i);
      action.tensor = kTemporary;
      action.category = p.op.phase == Phase::kLoss || p.op.kind == OpKind::kLoss
                            ? MemoryCategory::kLoss
                            : MemoryCategory::kActivations;
      action.bytes = p.temporary_bytes;
      pass.memory.push_back(action);
      action.acquire = false;
      pass.memory.push_back(action);
    }
    TensorSet dying;
    live.for_each([&](Tensor t) {
      const int last = last_use[index_of(t)];
      const bool pass_output = is_weight_gradient(t) || (backward && t == kDX);
      const bool unused_at_end = last < 0 && i + 1 == program.size();
      if ((last == static_cast<int>(i) || unused_at_end) && !kept.test(t) && !pass_output)
        dying.set(t);
    });
    dying.for_each([&](Tensor t) {
      act(i, false, t);
      live.reset(t);
    });
    if (next_dx_used && next_dx_last == static_cast<int>(i)) act(i, false, of_next_unit(kDX));
  }
  return pass;
}

}  // namespace shardwright::sim
