// SPDX-License-Identifier: Apache-2.0
// From the traces of a PyTorch job to the question "what if": a truth that differs from the shipped
// profile is simulated, its step is written as torch.profiler would, and what is read from that
// must predict other plans as the truth does.
#include "sim/calibrate/stack_from_trace.h"

#include <fstream>

#include "profiles/import/import_observations.h"
#include "sim/calibrate/calibrate.h"
#include "sim/calibrate/rows.h"
#include "tests/sim/prediction.h"
#include "tests/support/kineto_from_step.h"
#include "tests/support/temp_folder.h"

namespace shardwright::sim {
namespace {

// A job whose host, norms, activations and copies are unlike what ships.
const std::vector<std::string> kTruth = {"stack.host.forward_launch_s=1.1e-5",
                                         "stack.host.backward_launch_s=6e-6",
                                         "stack.norm.forward_efficiency=0.7",
                                         "stack.norm.backward_efficiency=0.6",
                                         "stack.gated_activation.forward_efficiency=0.8",
                                         "stack.gated_activation.backward_efficiency=0.75",
                                         "stack.rope.forward_efficiency=0.5",
                                         "stack.copies.copy=0.6",
                                         "stack.optimizer.efficiency=0.7",
                                         "stack.host.step_s=0.03"};

// And a machine that is unlike it too.
const std::vector<std::string> kOtherMachine = {
    "cost.gemm.e=0.78", "cost.attention.fa2.forward_flops=3.1e14",
    "cost.attention.fa2.backward_flops=2.6e14", "cost.memory.stream_efficiency=0.78",
    "cluster.nic_efficiency=0.75"};

Model small_llama() {
  Model model;
  model.name = "small-llama";
  model.family = "llama";
  model.layers = 6;
  model.hidden = 4096;
  model.heads = 32;
  model.kv_heads = 32;
  model.head_dim = 128;
  model.ffn = 11008;
  model.vocab = 32000;
  model.max_positions = 4096;
  return model;
}

Plan fsdp2_plan() {
  Plan plan;
  plan.strategy = Strategy::kFsdp2;
  plan.gpus = 16;
  plan.seq_len = 4096;
  plan.recompute = Recompute::kNone;
  plan.stack = "torch-eager";
  return plan;
}

class StackFromKineto : public ::testing::Test {
 protected:
  StackFromKineto()
      : truth_(profiles::load_profile("dgx-h100", "torch-eager", kTruth)),
        shipped_(profiles::load_profile("dgx-h100", "torch-eager")) {
    set_ = traced(truth_);
  }

  /// What rank 0's trace of three steps on the machine `truth` shows.
  profiles::ObservationSet traced(const profiles::Profile& truth) {
    Predictor predictor(model_, truth);
    Timeline timeline;
    PredictOptions options;
    options.timeline = &timeline;
    const Plan plan = fsdp2_plan();
    predictor.predict(plan, options);
    shardwright::testing::KinetoJob job{&model_, &plan, &predictor.program().stages.front(),
                                        &timeline};
    job.small_kernel_ns = static_cast<Nanoseconds>(truth.cost.memory.values.t1_s * 1e9);
    const auto file = folder_.path() / "rank0.json";
    std::ofstream(file) << shardwright::testing::kineto_trace(job);
    profiles::ImportOptions import;
    import.model = model_;
    schedule_ = predictor.program().stages.front();
    return profiles::import_observations({file}, import);
  }

  StackFromTrace derive() {
    return stack_from_trace(set_, model_, shipped_, profiles::load_stack("torch-eager"), "theirs");
  }

  shardwright::testing::TempFolder folder_;
  Model model_ = small_llama();
  profiles::Profile truth_, shipped_;
  profiles::ObservationSet set_;
  Schedule schedule_;
};

TEST_F(StackFromKineto, TheTraceShowsTheSchedulesWork) {
  std::map<std::pair<int, int>, double> expected, seen;  // (kind of work, op) to flops or bytes
  const auto amount = [](const Work& w) {
    if (w.kind == WorkKind::kGemm) {
      return 2.0 * static_cast<double>(w.m) * static_cast<double>(w.n) * static_cast<double>(w.k);
    }
    return static_cast<double>(w.kind == WorkKind::kAttention ? w.m * w.n * w.k : w.bytes);
  };
  for_each_op(schedule_, [&](const OpInstance&, const Op& op) {
    if (op.work.kind == WorkKind::kNone || op.work.kind == WorkKind::kMemory) return;
    if (op.work.kind == WorkKind::kHost) return;
    const int kind = is_collective(op.kind) ? static_cast<int>(op.kind) : 0;
    expected[{static_cast<int>(op.work.kind), kind}] += 3 * amount(op.work);
  });
  for (const profiles::Observation& o : not_empty(set_.observations)) {
    if (o.work.kind == WorkKind::kMemory || o.work.kind == WorkKind::kHost) continue;
    const int kind = is_collective(o.op) ? static_cast<int>(o.op) : 0;
    seen[{static_cast<int>(o.work.kind), kind}] += amount(o.work);
    if (o.work.kind == WorkKind::kCollective) {
      EXPECT_EQ(o.ranks, 16);
      EXPECT_EQ(o.nodes, 2);
    }
  }
  EXPECT_EQ(seen, expected);
  double left = 0;
  for (const profiles::LeftOut& entry : set_.left_out) left += entry.seconds;
  EXPECT_LT(left, 0.002 * set_.kernel_seconds);
}

TEST_F(StackFromKineto, RecoversTheTruth) {
  const StackFromTrace derived = derive();
  EXPECT_EQ(derived.job.micro_batch, 1);
  EXPECT_EQ(derived.job.seq_len, 4096);
  EXPECT_EQ(derived.job.micro_steps, 3);
  EXPECT_EQ(derived.job.world_size, 16);
  const Stack& stack = derived.stack.stack;
  // A unit without parameters of its own runs its hook (150 us) before a norm, and nothing says so.
  EXPECT_NEAR(stack.host.forward_launch_s, 11e-6, 1.1e-6);
  EXPECT_NEAR(stack.host.backward_launch_s, 6e-6, 0.6e-6);
  EXPECT_NEAR(stack.host.step_s, 0.03, 0.001);
  EXPECT_NEAR(stack.norm.forward_efficiency, 0.7, 0.02);
  EXPECT_NEAR(stack.norm.backward_efficiency, 0.6, 0.02);
  EXPECT_NEAR(stack.norm.forward_bytes, 36, 0.5);
  EXPECT_NEAR(stack.norm.backward_bytes, 84, 1);
  EXPECT_EQ(stack.norm.forward_kernels, 8);
  EXPECT_EQ(stack.norm.backward_kernels, 16);
  EXPECT_NEAR(stack.gated_activation.forward_efficiency, 0.8, 0.02);
  // An operation that a collective stands beside for a part of it is slowed down in that part only,
  // but the writer spreads it over its kernels.
  EXPECT_NEAR(stack.gated_activation.backward_efficiency, 0.75, 0.08);
  EXPECT_EQ(stack.gated_activation.backward_kernels, 3);
  EXPECT_NEAR(stack.rope.forward_efficiency, 0.5, 0.02);
  EXPECT_NEAR(stack.copies.copy, 0.6, 0.02);
  EXPECT_NEAR(stack.optimizer.efficiency, 0.7, 0.02);
  // What nobody changed stays what it is.
  EXPECT_NEAR(stack.rope.backward_efficiency, 1, 0.02);
  EXPECT_NEAR(stack.residual.forward_efficiency, 1, 0.03);
}

TEST_F(StackFromKineto, PredictsOtherPlansAsTheTruthDoes) {
  const StackFromTrace derived = derive();
  // The file is what a user keeps.
  const auto path = folder_.path() / "theirs.json";
  std::ofstream(path) << profiles::to_json(derived.stack);
  const profiles::Profile read = profiles::load_profile("dgx-h100", path.string());
  for (const Strategy strategy : {Strategy::kFsdp2, Strategy::kYafsdp, Strategy::kFsdp1}) {
    for (const std::int64_t gpus : {16, 32}) {
      Plan plan = fsdp2_plan();
      plan.strategy = strategy;
      plan.gpus = gpus;
      const double truth = predict(model_, truth_, plan).time.iteration_s;
      const double before = predict(model_, shipped_, plan).time.iteration_s;
      const double after = predict(model_, read, plan).time.iteration_s;
      EXPECT_GT(std::abs(before / truth - 1), 0.05) << "the test would show nothing";
      EXPECT_NEAR(after / truth, 1, 0.01) << name_of(strategy) << " on " << gpus;
    }
  }
}

// Machine and software at once: calibrate's rows and the stack, from the same trace.
TEST_F(StackFromKineto, TogetherWithCalibrationThePredictionIsThatOfTheTruth) {
  std::vector<std::string> values = kTruth;
  values.insert(values.end(), kOtherMachine.begin(), kOtherMachine.end());
  const profiles::Profile truth = profiles::load_profile("dgx-h100", "torch-eager", values);
  const profiles::ObservationSet set = traced(truth);
  CalibrationResult result = calibrate(shipped_, merged(rows_of(set).rows));
  const StackFromTrace derived =
      stack_from_trace(set, model_, result.profile, profiles::load_stack("torch-eager"), "theirs");
  profiles::Profile mine = result.profile;
  mine.stack = derived.stack.stack;
  double worst_before = 0;
  for (const Strategy strategy : {Strategy::kFsdp2, Strategy::kYafsdp}) {
    for (const std::int64_t gpus : {16, 32}) {
      for (const std::int64_t ckpt : {0, 6}) {
        Plan plan = fsdp2_plan();
        plan.strategy = strategy;
        plan.gpus = gpus;
        plan.ckpt_layers = ckpt;
        if (ckpt > 0) plan.recompute = Recompute::kFull;
        const double expected = predict(model_, truth, plan).time.iteration_s;
        worst_before =
            std::max(worst_before,
                     std::abs(predict(model_, shipped_, plan).time.iteration_s / expected - 1));
        EXPECT_NEAR(predict(model_, mine, plan).time.iteration_s / expected, 1, 0.02)
            << name_of(strategy) << " on " << gpus << ", " << ckpt << " checkpointed";
      }
    }
  }
  EXPECT_GT(worst_before, 0.25);
}

TEST_F(StackFromKineto, SaysWhatTheTraceDoesNotShow) {
  profiles::ObservationSet without = set_;
  std::erase_if(without.observations, [](const profiles::Observation& o) {
    return o.op == OpKind::kNorm || o.work.kind == WorkKind::kHost;
  });
  const StackFromTrace derived =
      stack_from_trace(without, model_, shipped_, profiles::load_stack("torch-eager"), "theirs");
  EXPECT_THAT(derived.not_determined, ::testing::Contains(::testing::HasSubstr("norm.forward_*")));
  EXPECT_THAT(derived.not_determined,
              ::testing::Contains(::testing::HasSubstr("host.forward_launch_s")));
  EXPECT_EQ(derived.stack.stack.norm.forward_efficiency, shipped_.stack.norm.forward_efficiency);
  EXPECT_EQ(derived.stack.stack.host.step_s, shipped_.stack.host.step_s);
}

TEST_F(StackFromKineto, AnotherModelIsRefused) {
  Model other = model_;
  other.head_dim = 64;
  EXPECT_THROW(traced_job(set_, other), Error);
}

}  // namespace
}  // namespace shardwright::sim
