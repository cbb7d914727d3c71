// SPDX-License-Identifier: Apache-2.0
// What the executor keeps on the device beside parameters, gradients, states and activations: the
// step's batch, RoPE tables, room for kernels that sum in two stages, and the few numbers that
// ranks exchange once a step. The simulator counts these bytes, the executor allocates them.
//
// Libraries of products and attention work in it, too, so that they allocate nothing of their own.
// It leaves out what belongs to contexts and threads (CUDA, NCCL, per-thread scratch): that is part
// of the runtime's memory, not of the plan's.
#pragma once

#include <cstdint>

#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/units.h"

namespace shardwright {

/// Row sums (gradients of norms and biases) are made of this many partial sums; those of norms over
/// long rows, which a GPU takes while it reads them, of up to kNormPartialSums.
inline constexpr std::int64_t kPartialSums = 32;
inline constexpr std::int64_t kNormPartialSums = 256;
constexpr std::int64_t norm_partial_sums(std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kLongRow = 256;
  if (cols <= kLongRow || rows <= kPartialSums) return kPartialSums;
  return rows < kNormPartialSums ? rows : kNormPartialSums;
}

/// Words of an exact sum of squares (kernels/exact_sum.h).
inline constexpr std::int64_t kExactSumWords = 21;

/// What products may use: enough to split the sums of one, and no more than cuBLASLt asks for on
/// any GPU. (NVIDIA recommends 32 MiB for Hopper, 4 MiB before.)
inline constexpr Bytes kMostProductScratch = Bytes{32} << 20;

/// What the gradient of attention needs while it runs: fp32 sums of query gradients, or gradients
/// of keys and values for every query head in the compute type (cuDNN with grouped heads), and a
/// few numbers a row. In bf16 also a T x T matrix for each query head of some key heads
/// (exec/cudnn/attention.h): where gradients may be added in any order, of one key head and at most
/// kMostAttentionWorkspace, which lets several key heads run at once; where the order is fixed
/// (`ordered`), of as many as keep a GPU busy, because the pass runs that many at a time.
Bytes attention_workspace_bytes(std::int64_t batch, std::int64_t seq, std::int64_t heads,
                                std::int64_t kv_heads, std::int64_t head_dim, DType compute,
                                bool ordered = false);
inline constexpr Bytes kMostAttentionWorkspace = Bytes{1} << 30;
/// Two blocks of attention for each multiprocessor of the largest GPU that is known (an RTX 5090
/// has 170): a causal block's work depends on its place, and a second wave fills the gaps of the
/// first.
inline constexpr std::int64_t kOrderedAttentionBlocks = std::int64_t{2} * 170;

/// Room for a matrix in fp8 and its scales, however it is scaled.
Bytes fp8_operand_bytes(std::int64_t rows, std::int64_t cols);

/// Room for the operands of one product of a layer in fp8, each the largest of all products'.
struct Fp8Workspace {
  Bytes left_bytes = 0;      // [tokens, in] of forward, [tokens, out] of the input gradient
  Bytes right_bytes = 0;     // [out, in], [in, out]; [in, tokens] of the weight gradient
  Bytes gradient_bytes = 0;  // [out, tokens], made for the weight gradient with the former
  Bytes size_bytes() const { return left_bytes + right_bytes + gradient_bytes; }
};
Fp8Workspace plan_fp8_workspace(const Model& model, std::int64_t tokens);

/// Room for sums that tensor ranks share where a rank makes several leaves of them
/// (Plan::feature_parts): the leaves of the largest one, and the operands of one leaf.
struct LeafWorkspace {
  Bytes partial_bytes = 0, operand_bytes = 0;
};
LeafWorkspace plan_leaf_workspace(const Model& model, const Plan& plan);

/// Places within the workspace, all multiples of kArenaAlignment.
struct WorkspacePlan {
  Bytes batch_offset = 0;    // int32 [4][grad_accum][B*T]: tokens, targets, positions, first keys
  Bytes rope_offset = 0;     // fp32 [2][T][rotated/2]: cosines, sines
  Bytes scratch_offset = 0;  // of one operation on the compute stream; products use all of it
  Bytes fp8_offset = 0;      // plan_fp8_workspace, where layers multiply in fp8
  Bytes leaf_partial_offset = 0, leaf_operand_offset = 0;  // plan_leaf_workspace
  Bytes exchange_offset = 0;  // one record of exchange_bytes per rank, then 64 bytes of results
  Bytes batch_bytes = 0;
  Bytes rope_bytes = 0;
  Bytes scratch_bytes = 0;
  Bytes fp8_bytes = 0;
  LeafWorkspace leaves;
  Bytes exchange_bytes = 0;  // 8-byte words: exact sum, then loss and tokens of each micro-batch
  Bytes size_bytes = 0;
};

WorkspacePlan plan_workspace(const Model& model, const Plan& plan);

/// Elements of a head that RoPE turns; even.
std::int64_t rotated_elements(const Model& model);

}  // namespace shardwright
