// SPDX-License-Identifier: Apache-2.0
// Guards the executor over NCCL: W ranks train as local ranks do, within rounding, and the calls of
// NCCL are the collectives of the schedule, one by one.
#include "tests/exec_nccl/nccl_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <utility>

#include "tests/support/parameter_name.h"

namespace shardwright::exec {
namespace {

using namespace testing;
using shardwright::testing::NcclCall;

Schedule schedule_of(const Training& training) {
  return stages_of(training).front();
}

struct Case {
  Strategy strategy;
  std::int64_t ranks;
  std::int64_t grad_accum = 1;
  std::int64_t shard_group = 0;
  DType dtype = DType::kFp32;
  DType reduce = DType::kFp32;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << name_of(c.strategy) << " " << c.ranks << "x" << c.grad_accum;
  if (c.dtype == DType::kBf16) *out << " bf16";
  if (c.reduce == DType::kBf16) *out << " reduced";
}

Training training_of(const Case& c) {
  Training training;
  training.model = uneven_llama();
  training.plan = tiny_plan(c.strategy, c.ranks, c.grad_accum);
  training.plan.shard_group = c.shard_group;
  training.plan.param_dtype = c.dtype;
  training.plan.reduce_dtype = c.reduce;
  training.mode = StreamMode::kThreads;
  training.steps = 3;
  return training;
}

class NcclTraining : public ::testing::TestWithParam<Case> {};

TEST_P(NcclTraining, EqualsLocalRanksWithinRounding) {
  const Training training = training_of(GetParam());
  shardwright::testing::reset_fake_nccl();
  const auto local = train(training);
  const auto nccl = train_over_nccl(training);
  expect_near_training(local, nccl, GetParam().reduce == DType::kBf16 ? 2e-2 : 1e-5);
}

TEST_P(NcclTraining, TwiceIsTheSameBits) {
  Training training = training_of(GetParam());
  training.mode = StreamMode::kShuffled;
  training.steps = 2;
  shardwright::testing::reset_fake_nccl();
  const auto once = train_over_nccl(training);
  training.shuffle_seed = 1;
  expect_same_training(once, train_over_nccl(training));
}

TEST_P(NcclTraining, CallsAreTheCollectivesOfTheSchedule) {
  Training training = training_of(GetParam());
  training.steps = 1;
  const Schedule schedule = schedule_of(training);
  std::int32_t last_reduction = 0;
  for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
    if (op.kind == OpKind::kAllReduce) last_reduction = at.micro_step;
  });
  shardwright::testing::reset_fake_nccl();
  train_over_nccl(training);
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    std::vector<NcclCall> calls = shardwright::testing::nccl_calls(rank);
    if (GetParam().ranks > 1) {  // what all ranks tell each other once a step
      ASSERT_FALSE(calls.empty());
      EXPECT_EQ(calls.back().name + calls.back().comm, "ncclAllGatherworld");
      calls.pop_back();
    }
    std::size_t next = 0;
    for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
      if (op.work.kind != WorkKind::kCollective || op.phase == Phase::kOptimizer) return;
      const bool all_reduces = op.kind == OpKind::kAllReduce;
      // Sums over micro-batches are reduced once.
      if (all_reduces && at.micro_step < last_reduction) return;
      ASSERT_LT(next, calls.size()) << describe(schedule, at);
      const NcclCall& call = calls[next++];
      const char* expected = op.kind == OpKind::kAllGather       ? "ncclAllGather"
                             : op.kind == OpKind::kReduceScatter ? "ncclReduceScatter"
                                                                 : "ncclAllReduce";
      EXPECT_EQ(call.name, expected) << describe(schedule, at);
      EXPECT_EQ(call.stream, op.stream) << describe(schedule, at);
      const bool replicates =
          op.work.group == CommGroup::kReplicate || GetParam().strategy == Strategy::kDdp;
      // A group of all ranks has no communicator of its own.
      const std::int64_t size = replicates ? schedule.replicate_ranks() : schedule.shard_ranks();
      EXPECT_EQ(call.comm, size == GetParam().ranks ? "world" : replicates ? "replicate" : "shard");
      const std::size_t width = call.type == ncclBfloat16 ? 2 : 4;
      const std::size_t parts = all_reduces ? 1 : static_cast<std::size_t>(call.ranks);
      EXPECT_EQ(static_cast<Bytes>(call.count * parts * width), op.work.bytes)
          << describe(schedule, at);
    });
    EXPECT_EQ(next, calls.size());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, NcclTraining,
    ::testing::Values(Case{Strategy::kYafsdp, 1}, Case{Strategy::kYafsdp, 2},
                      Case{Strategy::kYafsdp, 4}, Case{Strategy::kYafsdp, 2, 2},
                      Case{Strategy::kYafsdp, 2, 2, 0, DType::kBf16},
                      Case{Strategy::kYafsdp, 2, 1, 0, DType::kBf16, DType::kBf16},
                      Case{Strategy::kFsdp2, 4}, Case{Strategy::kFsdp2, 2, 2},
                      Case{Strategy::kHsdp, 4, 1, 2}, Case{Strategy::kHsdp, 4, 2, 2},
                      Case{Strategy::kZero1, 2}, Case{Strategy::kZero2, 2, 2},
                      Case{Strategy::kZero3, 2}, Case{Strategy::kDdp, 2}),
    parameter_name);

/// A node with an NVSwitch, on which nothing of the environment is set.
class NcclOnNvswitch : public ::testing::Test {
 protected:
  NcclOnNvswitch() { ::unsetenv("NCCL_NVLS_ENABLE"); }
  ~NcclOnNvswitch() override { ::unsetenv("NCCL_NVLS_ENABLE"); }

  shardwright::testing::NcclPaths paths_of(const Training& training, bool processes,
                                           bool shares_memory = true) {
    shardwright::testing::reset_fake_nccl(
        {.has_nvswitch = true, .shares_memory = shares_memory, .in_one_process = !processes});
    train_over_nccl(training);
    return shardwright::testing::nccl_paths();
  }
};

// NVLS that copies everything by the policy's few thread blocks is what must never be.
TEST_F(NcclOnNvswitch, ShardsGoByNvlsOnTheirMemoryOrByTheRing) {
  for (const Strategy strategy : {Strategy::kYafsdp, Strategy::kFsdp2, Strategy::kZero1}) {
    for (const DType dtype : {DType::kFp32, DType::kBf16}) {
      Training training = training_of({strategy, 4, 2, 0, dtype});
      training.steps = 2;
      SCOPED_TRACE(::testing::PrintToString(Case{strategy, 4, 2, 0, dtype}));
      const auto processes = paths_of(training, true);
      EXPECT_EQ(processes.copies, 0);
      EXPECT_GE(processes.nvls, 20) << "gathers and reductions";
      EXPECT_EQ(processes.rings, 2) << "what all ranks tell each other once a step";
      for (const bool threads : {true, false}) {
        const auto others = paths_of(training, !threads, threads);
        EXPECT_EQ(others.copies, 0);
        EXPECT_GE(others.rings, 20);
      }
    }
  }
}

TEST_F(NcclOnNvswitch, ADeterministicPlanHasTheSameBitsTwice) {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kYafsdp}) {
    ::unsetenv("NCCL_NVLS_ENABLE");
    Training training = training_of({strategy, 4, 2});
    const auto twice = [&] {
      shardwright::testing::reset_fake_nccl({.has_nvswitch = true, .in_one_process = false});
      auto first = train_over_nccl(training);
      return std::pair(std::move(first), train_over_nccl(training));
    };
    const auto [first, second] = twice();
    EXPECT_GT(difference(first.back().weights, second.back().weights), 0) << "NVLS has no order";
    training.plan.deterministic = true;
    const auto [one, other] = twice();
    expect_same_training(one, other);
    EXPECT_EQ(shardwright::testing::nccl_paths().nvls, 0);
  }
  // What is said by the environment stays, and is told.
  ::setenv("NCCL_NVLS_ENABLE", "2", 1);
  EXPECT_THAT(NcclWorld::keep_order_of_sums(),
              ::testing::StartsWith("NCCL_NVLS_ENABLE is 2, so sums over ranks may have other"));
  EXPECT_STREQ(std::getenv("NCCL_NVLS_ENABLE"), "2");
}

// No call fails where GPUs do not reach each other; only the clock says so, and that before the
// first step.
TEST(NcclTraining, ACollectiveThatHangsInTheRehearsalIsNamed) {
  shardwright::testing::reset_fake_nccl({.stuck_rank = 1, .stuck_collective = 1});
  const auto said = hangs_of(training_of({Strategy::kYafsdp, 2}),
                             {.least_s = 0.1, .first_s = 60, .collective_s = 0.5});
  ASSERT_FALSE(said.empty());
  EXPECT_THAT(said.front(), ::testing::AllOf(::testing::HasSubstr("the rehearsal, the "),
                                             ::testing::HasSubstr(" of unit "),
                                             ::testing::HasSubstr("has not ended after"),
                                             ::testing::HasSubstr("NCCL_P2P_DISABLE=1")));
}

TEST(NcclTraining, ARankThatFailsInAStepEndsAll) {
  shardwright::testing::reset_fake_nccl(
      {.failing_rank = 1, .failing_collective = 9, .failure = ncclUnhandledCudaError});
  Training training = training_of({Strategy::kYafsdp, 4});
  training.steps = 50;
  try {
    train_over_nccl(training);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::StartsWith("rank 1 of 4: a collective failed"));
  }
  EXPECT_EQ(shardwright::testing::live_nccl_objects(), 0);
}

}  // namespace
}  // namespace shardwright::exec
