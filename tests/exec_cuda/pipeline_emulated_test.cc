// SPDX-License-Identifier: Apache-2.0
// What is issued to CUDA for the messages of a pipeline's stages: those of the schedule, in its
// order, on its streams, each behind a wait and before a record. Read from the log of the fake
// runtime.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <string>
#include <vector>

#include "tests/exec/staged_training.h"
#include "tests/exec_cuda/fixture.h"
#include "tests/support/cuda_on_cpu/fake_engine.h"
#include "tests/support/parameter_name.h"

namespace shardwright::exec {
namespace {

using namespace testing;
using cuda_on_cpu::Call;
using cuda_on_cpu::CallKind;

/// The second step of all ranks, and the numbers of their streams in its log.
struct LoggedStages {
  std::vector<Schedule> stages;
  std::vector<std::vector<int>> streams;  // by stage and stream of its schedule
  std::vector<Call> step;
};

LoggedStages log_stages(const Training& training) {
  use_order(1);
  LoggedStages logged;
  logged.stages =
      sim::executed_step(training.model, training.plan, native_stack(), training.gpus_per_node)
          .stages;
  logged.streams.resize(logged.stages.size());
  const RankMesh mesh(training.plan, logged.stages.front().shard_ranks());
  LocalWorld world(mesh);
  std::mutex mutex;
  world.run([&](int rank) {
    const auto device = naive_device();
    const auto stage = static_cast<std::size_t>(mesh.place_of(rank).pp);
    Executor executor(training.model, training.plan, logged.stages[stage], *device,
                      world.groups(rank, *device), training.options);
    executor.initialize(3);
    executor.step(batch_of(training, 1, rank), step_options(training, 1));
    {
      const std::lock_guard lock(mutex);
      for (const auto& [name, stream] : device->named_streams())
        logged.streams[stage].push_back(stream->id);
    }
    executor.world().barrier();
    if (rank == 0) cuda_on_cpu::clear_log();
    executor.world().barrier();
    executor.step(batch_of(training, 2, rank), step_options(training, 2));
    executor.world().barrier();
    if (rank == 0) logged.step = cuda_on_cpu::call_log();
  });
  return logged;
}

using CudaPipeline = OnCuda<::testing::TestWithParam<StagedLayout>>;

TEST_P(CudaPipeline, MessagesAreIssuedAsTheScheduleSays) {
  Training training = staged(tiny_llama(), Strategy::kYafsdp, GetParam(), false);
  training.plan.seq_len = 8;
  training.options.poison = false;
  const LoggedStages logged = log_stages(training);
  for (std::size_t stage = 0; stage < logged.stages.size(); ++stage) {
    const Schedule& schedule = logged.stages[stage];
    std::vector<std::vector<std::size_t>> expected(schedule.streams.size());
    for_each_op(schedule, [&](const OpInstance&, const Op& op) {
      if (op.peer >= 0) expected[op.stream].push_back(static_cast<std::size_t>(op.work.bytes));
    });
    std::size_t messages = 0;
    for (std::size_t s = 0; s < expected.size(); ++s) {
      if (expected[s].empty()) continue;
      SCOPED_TRACE("stage " + std::to_string(stage) + ", " + schedule.streams[s].name);
      std::vector<Call> calls;
      std::copy_if(logged.step.begin(), logged.step.end(), std::back_inserter(calls),
                   [&](const Call& call) { return call.stream == logged.streams[stage][s]; });
      std::vector<std::size_t> copied;
      for (std::size_t i = 0; i < calls.size(); ++i) {
        if (calls[i].kind != CallKind::kCopy) continue;
        copied.push_back(calls[i].bytes);
        ASSERT_TRUE(i > 0 && i + 1 < calls.size());
        EXPECT_EQ(calls[i - 1].kind, CallKind::kWait) << calls[i - 1].name;
        EXPECT_EQ(calls[i + 1].kind, CallKind::kRecord) << calls[i + 1].name;
      }
      EXPECT_EQ(copied, expected[s]);
      messages += copied.size();
    }
    EXPECT_GT(messages, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, CudaPipeline,
                         ::testing::Values(StagedLayout{PipelineKind::kOneForwardOneBackward, 1, 2,
                                                        1, 1, 3},
                                           StagedLayout{PipelineKind::kZbv, 1, 2, 2, 1, 2}),
                         parameter_name);

}  // namespace
}  // namespace shardwright::exec
