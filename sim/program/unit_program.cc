// SPDX-License-Identifier: Apache-2.0
#include "sim/program/unit_program.h"

#include <algorithm>

namespace shardwright::sim {

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
        if (p.op.work.kind == WorkKind::kGemm && ++products % 2 == 1 && !(p.out[0] & kNextUnit))
          kept.set(p.out[0]);
      }
      // Kept after its heads were normalised in place: the heads before that cannot be rebuilt.
      if (model.qk_norm && kept.test(kQkv)) {
        for (std::uint16_t t : {kQRaw, kKRaw, kQkNormSaved}) kept.set(t);
      }
      return kept;
    }
    case Recompute::kPieces:
      break;
  }
  kept = needed;
  kept.set(kX);
  const auto drop = [&kept](std::initializer_list<std::uint16_t> slots) {
    for (std::uint16_t t : slots) kept.reset(t);
  };
  const auto drop_norm = [&](bool second) {
    const std::uint16_t saved = second ? kNorm2Saved0 : kNorm1Saved0;
    drop({second ? kNorm2Out : kNorm1Out});
    if (tensors[saved].bytes > 0 || tensors[saved + 1].bytes > 0) {
      for (std::uint16_t i = 0; i < 3; ++i) kept.reset(saved + i);
      if (second) kept.set(kXMid);
    }
  };
  const std::uint8_t pieces = plan.pieces;
  if (pieces & kPieceNorm) {
    drop_norm(false);
    drop_norm(true);
  }
  if (pieces & (kPieceSwiglu | kPieceFfn))
    drop({kActivationOut, kActivationSaved0, kActivationSaved1});
  if (pieces & kPieceFfn) {
    drop({kGate, kUp, kGateUp});
    drop_norm(true);
    kept.set(kXMid);
  }
  if (pieces & kPieceAttention) {
    drop({kQkv, kQRaw, kKRaw, kQ, kK, kV, kKRepeated, kVRepeated, kProbabilities, kAttentionOut,
          kAttentionStats, kQkNormSaved});
    drop_norm(false);
  }
  if (pieces & kPieceBlock) {
    kept.reset();
    kept.set(kX);
  }
  return kept;
}

std::vector<ProgramOp> recomputation(const std::vector<ProgramOp>& forward, const TensorSet& needed,
                                     const TensorSet& kept) {
  TensorSet wanted = needed & ~kept;
  std::vector<ProgramOp> list;
  for (std::size_t i = forward.size(); i-- > 0;) {
    const ProgramOp& p = forward[i];
    bool leads = false;
    for (std::uint16_t t : p.out)
      leads = leads || (t != kNoTensor && !(t & kNextUnit) && wanted.test(t));
    // In-place operations (RoPE and norms on the packed product) write what they read.
    const bool works_in_place =
        p.out[0] == kNoTensor || (p.op.kind == OpKind::kQkNorm && p.in[0] == kQkv);
    const bool in_place = works_in_place && p.in[0] != kNoTensor && wanted.test(p.in[0]);
    if (!leads && !in_place) continue;
    for (std::uint16_t t : p.in) {
      if (t != kNoTensor && !kept.test(t)) wanted.set(t);
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
    const auto touch = [&](std::uint16_t t) {
      if (t == (kDX | kNextUnit)) {
        next_dx_used = true;
        next_dx_last = static_cast<int>(i);
      } else if (t != kNoTensor && !(t & kNextUnit)) {
        last_use[t] = static_cast<int>(i);
      }
    };
    for (std::uint16_t t : program[i].in) touch(t);
    for (std::uint16_t t : program[i].out) touch(t);
  }
  TensorSet live = alive;
  if (!backward)
    live.set(kX, std::any_of(program.begin(), program.end(), [](const ProgramOp& p) {
               return std::find(p.in.begin(), p.in.end(), kX) != p.in.end();
             }));
  const auto act = [&](std::size_t op, bool acquire, std::uint16_t t) {
    MemoryAction action;
    action.op = static_cast<std::uint32_t>(op);
    action.acquire = acquire;
    action.tensor = slot_of(t);
    action.offset = (t & kNextUnit) ? std::int16_t{1} : std::int16_t{0};
    action.category = tensors[slot_of(t)].category;
    action.bytes = tensors[slot_of(t)].bytes;
    if (action.bytes > 0) pass.memory.push_back(action);
  };
  for (std::size_t i = 0; i < program.size(); ++i) {
    const ProgramOp& p = program[i];
    pass.ops.push_back(p.op);
    for (std::uint16_t t : p.out) {
      if (t == kNoTensor) continue;
      if (t & kNextUnit) {
        act(i, true, t);
      } else if (!live.test(t)) {
        act(i, true, t);
        live.set(t);
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
    for (std::uint16_t t = 1; t < kTensorCount; ++t) {
      const bool gradient_of_weight = t >= kWeightGradient0 && t <= kWeightGradientLast;
      const bool pass_output = gradient_of_weight || (backward && t == kDX);
      const bool unused_at_end = live.test(t) && last_use[t] < 0 && i + 1 == program.size();
      if (live.test(t) && (last_use[t] == static_cast<int>(i) || unused_at_end) && !kept.test(t) &&
          !pass_output) {
        act(i, false, t);
        live.reset(t);
      }
    }
    if (next_dx_used && next_dx_last == static_cast<int>(i)) act(i, false, kDX | kNextUnit);
  }
  return pass;
}

const char* tensor_name(std::uint16_t tensor) {
  static constexpr const char* kNames[kTensorCount] = {"",
                                                       "tokens",
                                                       "x",
                                                       "norm1_saved0",
                                                       "norm1_saved1",
                                                       "norm1_saved2",
                                                       "norm1_out",
                                                       "qkv",
                                                       "q_raw",
                                                       "k_raw",
                                                       "q",
                                                       "k",
                                                       "v",
                                                       "k_repeated",
                                                       "v_repeated",
                                                       "probabilities",
                                                       "attention_out",
                                                       "attention_stats",
                                                       "qk_norm_saved",
                                                       "projected",
                                                       "x_mid",
                                                       "norm2_saved0",
                                                       "norm2_saved1",
                                                       "norm2_saved2",
                                                       "norm2_out",
                                                       "gate_up",
                                                       "gate",
                                                       "up",
                                                       "activation_saved0",
                                                       "activation_saved1",
                                                       "activation_out",
                                                       "down",
                                                       "logits",
                                                       "logits_fp32",
                                                       "loss_saved0",
                                                       "loss_saved1",
                                                       "d_x",
                                                       "d_activation",
                                                       "d_gate_up",
                                                       "d_norm2",
                                                       "d_x_mid",
                                                       "d_attention",
                                                       "d_qkv",
                                                       "d_norm1",
                                                       "d_logits",
                                                       "d_logits_fp32",
                                                       "weight_gradient0",
                                                       "weight_gradient1",
                                                       "weight_gradient2",
                                                       "weight_gradient3",
                                                       "weight_gradient4",
                                                       "weight_gradient5",
                                                       "weight_gradient6",
                                                       "weight_gradient7",
                                                       "temporary",
                                                       "gathered",
                                                       "gather_output",
                                                       "casted_shard",
                                                       "flat_gradient",
                                                       "reduce_input",
                                                       "reduce_output",
                                                       "shard_gradient",
                                                       "full_gradient",
                                                       "optimizer_temporary"};
  return tensor < kTensorCount ? kNames[tensor] : "";
}

}  // namespace shardwright::sim
