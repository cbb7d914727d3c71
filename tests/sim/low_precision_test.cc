// SPDX-License-Identifier: Apache-2.0
// What GEMMs in fp8 change in a layer: casts, and how userbuffers gather and add up beside them.
#include "sim/program/low_precision.h"

#include "profiles/gpu_file.h"
#include "sim/bounds/bounds.h"
#include "sim/core/executed_plan.h"
#include "sim/core/placement.h"
#include "sim/core/workspace.h"
#include "tests/sim/model_parallel_plans.h"
#include "tests/sim/timed_list.h"

namespace shardwright::sim {
namespace {

Plan fp8_plan(int tp, Fp8Recipe recipe) {
  Plan plan = plan_of(8, tp, 1, 1);
  plan.numerics.precision = Precision::kFp8;
  plan.numerics.fp8_recipe = recipe;
  plan.parallel.tp_overlap = TensorOverlap::kUserbuffers;
  return plan;
}

/// That GPU, or with "" none.
Gpu gpu_of(const char* name) {
  return *name == '\0' ? Gpu{} : profiles::load_gpu(name).gpu;
}

/// Of a layer's two sums in forward, by userbuffers.
std::vector<CollectiveWork> sums(const Plan& plan, const char* gpu) {
  static const Model model = llama_70b();
  std::vector<CollectiveWork> found;
  for (const Op& op : ProgramWriter(model, plan, h100().stack, gpu_of(gpu)).layer(false).forward) {
    if (op.collective.kind == Collective::kReduceScatter) found.push_back(op.collective);
  }
  return found;
}

// TransformerEngine pytorch/utils.py is_non_tn_fp8_gemm_supported: with one scale a tensor nothing
// is transposed there, and norms with delayed scaling leave nothing to cast. Block scales run along
// the inner dimension, so they are made both ways everywhere.
TEST(LowPrecision, GpusThatMultiplyBothWaysNeedNoTransposes) {
  const Model model = llama_70b();
  const auto bytes = [&](Fp8Recipe recipe, const char* gpu) {
    const Plan plan = fp8_plan(1, recipe);
    return bytes_of_casts(
        ProgramWriter(model, plan, h100().stack, gpu_of(gpu)).layer(false).forward);
  };
  const double norms = 8192.0 * 2 * 8192, others = 8192.0 * (8192 + 28672);
  EXPECT_DOUBLE_EQ(bytes(Fp8Recipe::kDelayed, "gb200"), 3 * others);
  EXPECT_DOUBLE_EQ(bytes(Fp8Recipe::kTensorwise, "gb200"), 5 * (norms + others));
  EXPECT_DOUBLE_EQ(bytes(Fp8Recipe::kTensorwise, "h100-80g"), 6 * (norms + others));
  EXPECT_EQ(bytes(Fp8Recipe::kTensorwise, "rtx-pro-6000"), bytes(Fp8Recipe::kTensorwise, ""))
      << "compute capability 12.0 does not";
  EXPECT_EQ(bytes(Fp8Recipe::kMxfp8, "gb200"), bytes(Fp8Recipe::kMxfp8, ""));
  const profiles::Profile torch = profiles::load_profile("gb200-nvl72", "torch-compile");
  EXPECT_TRUE(transposes_fp8(torch.stack, torch.cluster.gpu)) << "torchao copies all the same";
}

// The kernel that was measured casts with one scale and transposes.
TEST(LowPrecision, CastsThatTransposeReachWhatWasMeasured) {
  const Model model = llama_70b();
  const auto efficiency = [&](Fp8Recipe recipe, const char* gpu) {
    const Plan plan = fp8_plan(1, recipe);
    for (const Op& op :
         ProgramWriter(model, plan, h100().stack, gpu_of(gpu)).layer(false).backward) {
      if (op.kind == OpKind::kQuantize) return op.work.efficiency;
    }
    return 0.0;
  };
  const double measured = h100().stack.parallel.fp8.cast_transpose_efficiency;
  const double others = h100().stack.parallel.cast_efficiency;
  EXPECT_NE(measured, others);
  EXPECT_DOUBLE_EQ(efficiency(Fp8Recipe::kDelayed, "h100-80g"), measured);
  EXPECT_DOUBLE_EQ(efficiency(Fp8Recipe::kTensorwise, "h100-80g"), measured);
  EXPECT_DOUBLE_EQ(efficiency(Fp8Recipe::kTensorwise, "gb200"), others);
  EXPECT_DOUBLE_EQ(efficiency(Fp8Recipe::kBlock, "h100-80g"), others);
}

// NVIDIA's settings of userbuffers: sums in fp8 with delayed scaling on Hopper, by exchanged pieces
// in bf16 with all other fp8, by the kernels of a pipeline without fp8.
TEST(LowPrecision, UserbuffersAddUpAsTheirSettingsSay) {
  const double whole = 2.0 * 8192 * 8192;
  for (const CollectiveWork& sum : sums(fp8_plan(4, Fp8Recipe::kDelayed), "h100-80g")) {
    EXPECT_DOUBLE_EQ(sum.bytes, whole / 2);
    EXPECT_FALSE(sum.exchanged);
  }
  for (const CollectiveWork& sum : sums(fp8_plan(4, Fp8Recipe::kTensorwise), "h100-80g")) {
    EXPECT_DOUBLE_EQ(sum.bytes, whole);
    EXPECT_TRUE(sum.exchanged);
  }
  EXPECT_TRUE(sums(fp8_plan(4, Fp8Recipe::kDelayed), "gb200").at(0).exchanged);
  Plan wide = fp8_plan(4, Fp8Recipe::kDelayed);
  wide.numerics.precision = Precision::kBf16;
  ASSERT_EQ(sums(wide, "h100-80g").size(), 2u);
  EXPECT_DOUBLE_EQ(sums(wide, "h100-80g").at(0).bytes, whole);
  EXPECT_FALSE(sums(wide, "h100-80g").at(0).exchanged);
  Plan torch = fp8_plan(4, Fp8Recipe::kTensorwise);
  torch.parallel.tp_overlap = TensorOverlap::kAsync;
  EXPECT_FALSE(sums(torch, "h100-80g").at(0).exchanged);
}

// Pieces of a product: those of other ranks leave while the next is multiplied, a rank's own is the
// last, and one kernel reads all that came.
TEST(LowPrecision, ExchangedPiecesHideButForTheirSum) {
  const Model model = llama_70b();
  const Plan plan = fp8_plan(4, Fp8Recipe::kTensorwise);
  OpCosts costs(h100());
  costs.place(layout_of(plan, h100().cluster));
  Op product =
      ProgramWriter(model, plan, h100().stack).product(OpKind::kDownProjection, 8192, 8192, 65536);
  const double alone = timed_list(h100(), plan, {product}).device_s;
  product.collective = {CommGroup::kTensor, Collective::kReduceScatter, Pattern::kCollective,
                        Overlap::kInside, 2.0 * 8192 * 8192};
  const double pipeline = timed_list(h100(), plan, {product}).device_s;
  product.collective.exchanged = true;
  const double exchanged = timed_list(h100(), plan, {product}).device_s;
  const double sum = costs.memory_s(2.0 * 8192 * 8192 * 5 / 4, h100().stack.copies.add);
  EXPECT_GT(exchanged, alone + sum);
  EXPECT_NEAR(exchanged, alone + sum, 2e-5) << "launches of the pieces";
  EXPECT_LT(exchanged, pipeline) << "no SMs are taken";
}

// Blocks along rows and along columns are scaled after the gather.
TEST(LowPrecision, WeightsInMxfp8AreGatheredInBf16AndCast) {
  const Model model = llama_70b();
  const auto gathered = [&](Fp8Recipe recipe, bool kept) {
    Plan plan = fp8_plan(1, recipe);
    plan.numerics.fp8_params = kept;
    plan.parallel.tp_overlap.reset();
    const Prediction step =
        predict(model, profiles::load_profile("dgx-b200", "megatron-core"), plan);
    return step.sent[static_cast<std::size_t>(CommGroup::kData)].all_gather;
  };
  EXPECT_DOUBLE_EQ(gathered(Fp8Recipe::kTensorwise, true),
                   0.5 * gathered(Fp8Recipe::kTensorwise, false));
  EXPECT_EQ(gathered(Fp8Recipe::kMxfp8, true), gathered(Fp8Recipe::kMxfp8, false));
  Plan plan = fp8_plan(1, Fp8Recipe::kMxfp8);
  plan.numerics.fp8_params = true;
  EXPECT_DOUBLE_EQ(weight_cast_bytes(plan, false), 2 + 2 * (1 + 1.0 / 32));
  plan.numerics.fp8_recipe = Fp8Recipe::kTensorwise;
  EXPECT_EQ(weight_cast_bytes(plan, false), 0) << "the shard is cast as it is updated";
}

// What runs whole beside products of backward holds the SMs that its setting gives it.
TEST(LowPrecision, UserbuffersTakeFewSmsInBackward) {
  const Model model = llama_70b();
  const auto sms = [&](TensorOverlap overlap) {
    Plan plan = fp8_plan(4, Fp8Recipe::kDelayed);
    plan.parallel.tp_overlap = overlap;
    std::vector<int> held;
    for (const Op& op : ProgramWriter(model, plan, h100().stack).layer(false).backward) {
      if (op.collective.overlap == Overlap::kFollowing) held.push_back(op.collective.sms);
    }
    return held;
  };
  EXPECT_EQ(sms(TensorOverlap::kUserbuffers), (std::vector<int>{4, 4, 4, 24}));
  EXPECT_EQ(sms(TensorOverlap::kNone), (std::vector<int>{0, 0, 0, 0}));
}

/// A plan of the executor's own framework.
Plan native_fp8(Strategy strategy, Fp8Recipe recipe) {
  Plan plan;
  plan.strategy = strategy;
  plan.gpus = strategy == Strategy::kSingle ? 1 : 8;
  plan.stack = "native";
  plan.seq_len = 1024;
  plan.micro_batch = 2;
  plan.param_dtype = DType::kBf16;
  plan.numerics.precision = Precision::kFp8;
  plan.numerics.fp8_recipe = recipe;
  return plan;
}

// What is predicted is what runs: the executor keeps inputs in bf16 and no copies of weights, and
// has room for one product's operands.
TEST(LowPrecision, NativePlansTakeTheMemoryThatTheExecutorPlans) {
  Model model = llama_70b();
  model.layers = 4;
  const profiles::Profile profile = profiles::load_profile("dgx-b200", "native");
  for (const Strategy strategy : {Strategy::kSingle, Strategy::kDdp, Strategy::kZero1,
                                  Strategy::kZero2, Strategy::kFsdp2, Strategy::kYafsdp}) {
    for (const Fp8Recipe recipe :
         {Fp8Recipe::kTensorwise, Fp8Recipe::kRowwise, Fp8Recipe::kMxfp8}) {
      for (const char* recompute : {"none", "full", "norm,swiglu"}) {
        for (const std::int64_t micro_batches : {1, 3}) {
          Plan plan = native_fp8(strategy, recipe);
          plan.grad_accum = micro_batches;
          set_recompute(plan, recompute);
          plan.ckpt_layers = plan.recompute == Recompute::kNone ? 0 : 2;
          SCOPED_TRACE(std::string(name_of(strategy)) + " " + recompute + " " +
                       std::to_string(static_cast<int>(recipe)) + " " +
                       std::to_string(micro_batches));
          const MemoryPrediction memory = predict(model, profile, plan).memory;
          EXPECT_EQ(
              memory.peak_allocated_bytes,
              static_memory_bytes(executed_step(model, plan, profile.stack, 8).stages.front()));
          EXPECT_FALSE(memory.estimates_fragmentation);
          // What a search rules plans out by.
          EXPECT_LE(Predictor(model, profile).bounds().least_bytes(plan), memory.total_bytes);
        }
      }
    }
  }
}

TEST(LowPrecision, EveryNativeStageHasRoomForTheOperandsThatAreCast) {
  Model model = llama_70b();
  model.layers = 4;
  const Stack stack = profiles::load_profile("dgx-b200", "native").stack;
  for (const std::int64_t pp : {1, 2}) {
    Plan plan = native_fp8(Strategy::kYafsdp, Fp8Recipe::kRowwise);
    plan.parallel.pp = pp;
    plan.grad_accum = 4;
    const Bytes room = plan_workspace(model, plan).size_bytes;
    ASSERT_GT(room, plan_workspace(model, with_products_in_bf16(plan)).size_bytes);
    for (const Schedule& stage : executed_step(model, plan, stack, 8).stages) {
      EXPECT_EQ(stage.sharding.workspace_bytes, room) << "pp " << pp;
      EXPECT_EQ(stage.persistent.back().kind, Persistent::kWorkspace);
      EXPECT_EQ(stage.persistent.back().bytes, room) << "pp " << pp;
    }
  }
}

// exec/model_ops.h: both operands before each product, a gradient of an output once for its two.
TEST(LowPrecision, NativeProductsCastBothOperands) {
  const Model model = llama_70b();
  const Stack stack = profiles::load_stack("native").stack;
  const auto bytes = [&](Fp8Recipe recipe, const char* gpu, bool backward) {
    const Plan plan = native_fp8(Strategy::kSingle, recipe);
    const UnitProgram unit = ProgramWriter(model, plan, stack, gpu_of(gpu)).layer(false);
    return bytes_of_casts(backward ? unit.backward : unit.forward);
  };
  const double tokens = 2.0 * 1024, hidden = 8192, qkv = 8192 + 2 * 1024, ffn = 28672;
  const double weights = hidden * (qkv + hidden + 3 * ffn);
  const double inputs = tokens * (3 * hidden + ffn);
  const double outputs = tokens * (qkv + hidden + 2 * ffn + hidden);
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensorwise, Fp8Recipe::kRowwise}) {
    EXPECT_DOUBLE_EQ(bytes(recipe, "h100-80g", false), 5 * (weights + inputs));
    EXPECT_DOUBLE_EQ(bytes(recipe, "h100-80g", true), 5 * (weights + inputs) + 6 * outputs);
  }
  EXPECT_DOUBLE_EQ(bytes(Fp8Recipe::kTensorwise, "b200", true), 5 * (weights + inputs + outputs));
  const double block = 1 + 1.0 / 32;
  EXPECT_DOUBLE_EQ(bytes(Fp8Recipe::kMxfp8, "b200", false), (2 + block) * (weights + inputs));
  EXPECT_DOUBLE_EQ(bytes(Fp8Recipe::kMxfp8, "b200", true),
                   (2 + block) * (weights + inputs) + (2 + 2 * block) * outputs);
}

// Also where the input was kept, as with pieces that are made again.
TEST(LowPrecision, NativeProductsThatAreMadeAgainCastAgain) {
  const Model model = llama_70b();
  const Stack stack = profiles::load_stack("native").stack;
  const auto bytes = [&](const char* recompute) {
    Plan plan = native_fp8(Strategy::kSingle, Fp8Recipe::kTensorwise);
    set_recompute(plan, recompute);
    return bytes_of_casts(
        ProgramWriter(model, plan, stack, gpu_of("h100-80g")).layer(true).recompute);
  };
  const double tokens = 2.0 * 1024, hidden = 8192, qkv = 8192 + 2 * 1024, ffn = 28672;
  const double gate_up = hidden * 2 * ffn + tokens * hidden;
  EXPECT_DOUBLE_EQ(bytes("ffn"), 5 * gate_up);
  EXPECT_DOUBLE_EQ(bytes("norm"), 0);
  EXPECT_DOUBLE_EQ(bytes("full"), 5 * (gate_up + hidden * (qkv + hidden) + 2 * tokens * hidden));
}

// A collective beside a product takes the SMs that it says.
TEST(LowPrecision, FewerSmsLeaveTheProductMore) {
  const Model model = llama_70b();
  const Plan plan = fp8_plan(4, Fp8Recipe::kDelayed);
  const ProgramWriter writer(model, plan, h100().stack);
  const auto beside = [&](int sms) {
    Op gather =
        writer.collective(CommGroup::kTensor, Collective::kAllGather, 1e9, Overlap::kFollowing);
    gather.collective.sms = sms;
    const Ops list = {gather, writer.product(OpKind::kInputGradient, 8192, 8192, 8192)};
    for (const auto& [op, took_s] : timed_list(h100(), plan, list).operations) {
      if (op.kind == OpKind::kInputGradient) return took_s;
    }
    return 0.0;
  };
  EXPECT_LT(beside(2), 0.95 * beside(0));
  EXPECT_LT(beside(2), beside(24));
}

}  // namespace
}  // namespace shardwright::sim
