// SPDX-License-Identifier: Apache-2.0
// What the executor relies on in schedules of the native stack.

#include "sim/core/arena.h"
#include "sim/core/placement.h"
#include "sim/core/workspace.h"
#include "tests/sim/prediction.h"
#include "tests/support/tiny_models.h"

namespace shardwright::sim {
namespace {

using shardwright::testing::tied;
using shardwright::testing::tiny_llama;
using shardwright::testing::tiny_plan;
using shardwright::testing::tiny_qwen2;
using shardwright::testing::tiny_qwen3;

Schedule native(const Model& model, const Plan& plan) {
  return executed_step(model, plan, profiles::load_stack("native").stack, 2).stages.front();
}

std::set<Tensor> acquired(const Schedule& schedule, Phase phase) {
  std::set<Tensor> tensors;
  for (const Block& block : schedule.blocks) {
    if (block.phase != phase) continue;
    for (std::uint32_t i = block.first_action; i < block.first_action + block.action_count; ++i) {
      const MemoryAction& action = schedule.memory[i];
      if (action.acquire) tensors.insert(action.tensor);
    }
  }
  return tensors;
}

TEST(NativeSchedule, TellsTheNormsOfALayerApart) {
  Plan plan = tiny_plan(Strategy::kSingle, 1);
  set_recompute(plan, "ffn");
  plan.ckpt_layers = 3;
  const Schedule schedule = native(tiny_llama(), plan);
  std::set<int> recomputed;
  for (const Op& op : not_empty(schedule.ops)) {
    if (op.kind == OpKind::kNorm && op.phase == Phase::kRecompute) recomputed.insert(op.part);
  }
  EXPECT_THAT(recomputed, ::testing::ElementsAre(1));
}

TEST(NativeSchedule, SaysWhichBiasAGradientBelongsTo) {
  const Schedule schedule = native(tiny_qwen2(), tiny_plan(Strategy::kSingle, 1));
  EXPECT_TRUE(std::any_of(schedule.ops.begin(), schedule.ops.end(), [](const Op& op) {
    return op.kind == OpKind::kAccumulate && op.of == OpKind::kQkvProjection;
  }));
}

// Heads are normalised inside the packed product, whose backward needs them as they were: also
// under a policy that keeps the packed product and recomputes what follows it.
TEST(NativeSchedule, KeepsHeadsAsTheyWereBeforeTheirNorm) {
  Plan plan = tiny_plan(Strategy::kSingle, 1);
  EXPECT_THAT(acquired(native(tiny_qwen3(), plan), Phase::kForward),
              ::testing::IsSupersetOf({Tensor::kQRaw, Tensor::kKRaw, Tensor::kQkNormSaved}));
  plan.ckpt_layers = 3;
  set_recompute(plan, "selective-op");
  const Schedule selective = native(tiny_qwen3(), plan);
  EXPECT_THAT(acquired(selective, Phase::kBackward),
              ::testing::Not(::testing::Contains(Tensor::kQRaw)));
  set_recompute(plan, "attention");
  EXPECT_THAT(
      acquired(native(tiny_qwen3(), plan), Phase::kBackward),
      ::testing::IsSupersetOf({Tensor::kQkv, Tensor::kQRaw, Tensor::kKRaw, Tensor::kQkNormSaved}));
}

TEST(NativeSchedule, DeclaresTheWorkspaceThatTheExecutorAllocates) {
  const Plan plan = tiny_plan(Strategy::kYafsdp, 4, 2);
  const WorkspacePlan workspace = plan_workspace(tiny_llama(), plan);
  const Schedule schedule = native(tiny_llama(), plan);
  const auto declared =
      std::find_if(schedule.persistent.begin(), schedule.persistent.end(),
                   [](const PersistentTensor& t) { return t.kind == Persistent::kWorkspace; });
  ASSERT_NE(declared, schedule.persistent.end());
  EXPECT_EQ(declared->bytes, workspace.size_bytes);
  EXPECT_EQ(workspace.batch_bytes, 4 * 4 * 2 * 32);
  EXPECT_EQ(workspace.rope_bytes, 2 * 4 * 32 * 8);
  EXPECT_GE(workspace.scratch_bytes, 4 * kPartialSums * 64);
  for (const Bytes offset :
       {workspace.rope_offset, workspace.scratch_offset, workspace.exchange_offset}) {
    EXPECT_EQ(offset % kArenaAlignment, 0);
  }
}

// With a tied head the gradient that backward writes first is needed last.
TEST(NativeSchedule, GivesTheTiedGradientABufferOfItsOwn) {
  for (const Strategy strategy : {Strategy::kSingle, Strategy::kDdp, Strategy::kZero1,
                                  Strategy::kZero2, Strategy::kFsdp2, Strategy::kYafsdp}) {
    const std::int64_t ranks = strategy == Strategy::kSingle ? 1 : 2;
    // In one micro-batch whole gradients are written where they are summed.
    const Schedule schedule = native(tied(tiny_llama()), tiny_plan(strategy, ranks, 2));
    const auto buffer = std::find_if(
        schedule.persistent.begin(), schedule.persistent.end(),
        [](const PersistentTensor& t) { return t.kind == Persistent::kTiedEmbeddingGradients; });
    ASSERT_NE(buffer, schedule.persistent.end()) << name_of(strategy);
    EXPECT_GE(buffer->bytes, 4 * 101 * 64);
  }
}

// Products write what is reduced as soon as it is there.
TEST(NativeSchedule, CastsNoGradientOnItsWayToAReductionInFp32) {
  for (const Strategy strategy :
       {Strategy::kSingle, Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kZero3,
        Strategy::kFsdp2, Strategy::kHsdp, Strategy::kYafsdp}) {
    for (const std::int64_t grad_accum : {1, 2}) {
      SCOPED_TRACE(std::string(name_of(strategy)) + ", " + std::to_string(grad_accum));
      Plan plan = tiny_plan(strategy, strategy == Strategy::kSingle ? 1 : 2, grad_accum);
      plan.param_dtype = DType::kBf16;
      const Schedule schedule = native(tiny_llama(), plan);
      for (const Op& op : not_empty(schedule.ops)) EXPECT_NE(op.kind, OpKind::kCastGradient);
      const bool whole = schedule.sharding.sums_whole_gradients();
      const Placement placement(schedule, 0);
      for (std::int32_t u = 0; u < schedule.units(); ++u) {
        const UnitPlacement& unit = placement.unit(u);
        if (unit.gradient.size == 0) continue;
        EXPECT_EQ(unit.gradient.dtype, DType::kFp32);
        EXPECT_EQ(unit.first_gradient, unit.reduced);
        const bool is_layer = u > 0 && u < schedule.head_unit();
        EXPECT_EQ(unit.gradient == unit.reduced, !whole || grad_accum == 1 || is_layer);
      }
      plan.reduce_dtype = DType::kBf16;
      EXPECT_EQ(Placement(native(tiny_llama(), plan), 0).unit(1).gradient.dtype, DType::kBf16);
    }
  }
}

// Where whole gradients are summed in fp32, products add to the sums: what is left to kernels of
// their own are the units that write a gradient in more than one piece, and one buffer for both.
TEST(NativeSchedule, AddsGradientsOfLayersWithinTheirProducts) {
  for (const Strategy strategy : {Strategy::kSingle, Strategy::kDdp, Strategy::kZero1}) {
    SCOPED_TRACE(name_of(strategy));
    Plan plan = tiny_plan(strategy, strategy == Strategy::kSingle ? 1 : 2, 3);
    plan.param_dtype = DType::kBf16;
    const Schedule schedule = native(tiny_llama(), plan);
    std::multiset<std::int32_t> added;
    std::map<std::int32_t, std::set<Bytes>> traffic;  // by product of a layer, beyond its operands
    for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
      const bool whole = op.kind == OpKind::kCopyIn ||
                         (op.kind == OpKind::kAccumulate && op.phase == Phase::kBackward);
      if (whole && op.of == OpKind::kHostWork) added.insert(at.unit);
      if (op.kind == OpKind::kWeightGradient && op.of == OpKind::kDownProjection) {
        const Work& work = op.work;
        traffic[at.micro_step].insert((work.bytes - 2 * work.k * (work.m + work.n)) /
                                      (4 * work.m * work.n));
      }
    });
    const std::int32_t head = schedule.head_unit();
    EXPECT_EQ(added, std::multiset({0, 0, head, head}));
    // Written; then read and written.
    ASSERT_EQ(traffic.size(), 3u);
    EXPECT_EQ(traffic.begin()->second, std::set<Bytes>({1}));
    for (auto later = std::next(traffic.begin()); later != traffic.end(); ++later) {
      EXPECT_EQ(later->second, std::set<Bytes>({2}));
    }
    const auto rotating = std::find_if(
        schedule.persistent.begin(), schedule.persistent.end(),
        [](const PersistentTensor& t) { return t.kind == Persistent::kRotatingGradients; });
    ASSERT_NE(rotating, schedule.persistent.end());
    const UnitSizes& sizes = schedule.unit_sizes;
    EXPECT_EQ(rotating->bytes, 4 * std::max(sizes.embedding, sizes.head));
    plan.reduce_dtype = DType::kBf16;  // of the sums, too: each is rounded once
    const Schedule narrow = native(tiny_llama(), plan);
    EXPECT_TRUE(narrow.sharding.sums_in_backward);
    EXPECT_EQ(Placement(narrow, 0).unit(1).gradient.dtype, DType::kBf16);
    EXPECT_EQ(Placement(narrow, 0).unit(1).gradient, Placement(narrow, 0).unit(1).reduced);
    plan.param_dtype = DType::kFp32;  // gradients are written in another type than their sums have
    EXPECT_FALSE(native(tiny_llama(), plan).sharding.sums_in_backward);
  }
}

// What is wider than its operands is what their traffic is made of; of the head's chunks all but
// the first are added to what is there.
TEST(NativeSchedule, CountsTheTrafficOfWiderGradients) {
  Plan plan = tiny_plan(Strategy::kYafsdp, 2);
  plan.param_dtype = DType::kBf16;
  int layers = 0, heads = 0;
  for (const Op& op : native(tiny_llama(), plan).ops) {
    if (op.kind != OpKind::kWeightGradient) continue;
    const Work& work = op.work;
    const Bytes operands = 2 * work.k * (work.m + work.n), result = 4 * work.m * work.n;
    const int chunks = work.kernels;
    EXPECT_EQ(work.bytes, operands + result * (2 * chunks - 1) / chunks);
    ++(op.of == OpKind::kHeadProjection ? heads : layers);
  }
  EXPECT_GT(layers, 0);
  EXPECT_EQ(layers % 4, 0);  // products of a layer
  EXPECT_EQ(heads, 1);
  plan.reduce_dtype = DType::kBf16;
  for (const Op& op : not_empty(native(tiny_llama(), plan).ops)) {
    EXPECT_TRUE(op.kind != OpKind::kWeightGradient || op.work.bytes == 0);
  }
}

// Sections say which blocks run how often: every block belongs to one, every micro-batch has its
// forward and backward in one.
TEST(NativeSchedule, IsAProgramOfSections) {
  for (const std::int64_t micro_steps : {1, 2, 5}) {
    const Schedule schedule = native(tiny_llama(), tiny_plan(Strategy::kFsdp2, 2, micro_steps));
    std::uint32_t next_block = 0;
    std::int64_t micro_batches = 0;
    for (const Section& section : schedule.sections) {
      EXPECT_EQ(section.first_block, next_block);
      next_block += section.block_count;
      ASSERT_GT(section.block_count, 0u);
      const bool passes = schedule.blocks[section.first_block].phase == Phase::kForward;
      if (passes) micro_batches += section.repeats;
      EXPECT_TRUE(passes || section.repeats == 1);
    }
    EXPECT_EQ(next_block, schedule.blocks.size());
    EXPECT_EQ(micro_batches, micro_steps);
  }
}

// The executor takes views from operands: every operation of the model names what it reads.
TEST(NativeSchedule, NamesTheOperandsOfEveryOperation) {
  const Schedule schedule = native(tiny_qwen3(), tiny_plan(Strategy::kYafsdp, 2));
  int seen = 0;
  for (const Op& op : schedule.ops) {
    if (op.kind > OpKind::kWeightGradient) continue;
    ++seen;
    EXPECT_TRUE(op.in[0] || op.kind == OpKind::kEmbedding) << name_of(op.kind);
    const bool in_place = op.kind == OpKind::kRope || op.kind == OpKind::kLoss ||
                          (op.kind == OpKind::kQkNorm && op.phase == Phase::kBackward);
    EXPECT_EQ(static_cast<bool>(op.out[0]), !in_place) << name_of(op.kind);
    const bool weightless = op.kind == OpKind::kRope || op.kind == OpKind::kAttention ||
                            op.kind == OpKind::kActivation || op.kind == OpKind::kLoss;
    EXPECT_EQ(op.weight == Weight::kNone, weightless) << name_of(op.kind);
  }
  EXPECT_GT(seen, 20);
}

}  // namespace
}  // namespace shardwright::sim
