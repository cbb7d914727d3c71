// SPDX-License-Identifier: Apache-2.0
// Trainings of ranks that are threads and meet by the fake NCCL.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "exec/comm/bootstrap.h"
#include "exec/nccl/nccl_communicator.h"
#include "exec/train/trainer.h"
#include "sim/core/message_queue.h"
#include "sim/pipeline/step_program.h"
#include "tests/exec/training.h"
#include "tests/exec_nccl/fake_nccl.h"
#include "tests/support/temp_folder.h"

namespace shardwright::exec::testing {

/// What stands for the streams of a device.
class FakeStreams {
 public:
  explicit FakeStreams(Device& device) : device_(device) {}
  NativeStreams native() {
    return [this](StreamId id) {
      while (std::ssize(streams_) <= id) {
        streams_.push_back({&device_, static_cast<StreamId>(streams_.size())});
      }
      return streams_[static_cast<std::size_t>(id)].native();
    };
  }

 private:
  Device& device_;
  std::deque<shardwright::testing::FakeStream> streams_;
};

inline std::vector<Schedule> stages_of(const Training& training) {
  std::vector<Schedule> stages =
      sim::executed_step(training.model, training.plan, native_stack(), training.gpus_per_node)
          .stages;
  if (training.change) training.change(stages.front());
  return stages;
}

using MakeDevice =
    std::function<std::unique_ptr<HostDevice>(kernels::host::Parallel& parallel, int rank)>;

/// body(rendezvous, executor) on every rank.
inline void on_nccl_ranks(const Training& training,
                          const std::function<void(Bootstrap&, Executor&)>& body,
                          const MakeDevice& make_device = {}) {
  const std::vector<Schedule> stages = stages_of(training);
  const RankMesh mesh(training.plan, stages.front().shard_ranks());
  kernels::host::Parallel parallel(1);
  if (training.plan.deterministic) NcclWorld::keep_order_of_sums();
  LocalBootstrapRoom(static_cast<int>(training.plan.gpus)).run([&](Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    const std::unique_ptr<HostDevice> made =
        make_device ? make_device(parallel, rank)
                    : std::make_unique<HostDevice>(
                          parallel, training.mode,
                          100 * training.shuffle_seed + static_cast<std::uint64_t>(rank));
    HostDevice& device = *made;
    FakeStreams streams(device);
    NcclOptions options;
    options.is_deterministic = training.plan.deterministic;
    // Threads that play processes say so.
    if (!shardwright::testing::fake_nccl().in_one_process) options.process = 1 + rank;
    NcclWorld world(bootstrap, options);
    Executor executor(training.model, training.plan,
                      stages[static_cast<std::size_t>(mesh.place_of(rank).pp)], device,
                      world.groups(mesh, message_queues(stages), device, streams.native()),
                      training.options);
    body(bootstrap, executor);
  });
  EXPECT_EQ(shardwright::testing::live_nccl_objects(), 0);
}

/// As train(), over NCCL; where there are stages behind a rehearsal, which connects them.
inline std::vector<TrainedStep> train_over_nccl(const Training& training,
                                                const MakeDevice& make_device = {}) {
  std::vector<TrainedStep> trained(static_cast<std::size_t>(training.steps));
  std::mutex mutex;
  on_nccl_ranks(
      training,
      [&](Bootstrap& bootstrap, Executor& executor) {
        const int rank = bootstrap.rank();
        if (training.plan.parallel.pp > 1) executor.rehearse(batch_of(training, 1, rank));
        executor.initialize(3);
        for (int step = 1; step <= training.steps; ++step) {
          const StepResult result =
              executor.step(batch_of(training, step, rank), step_options(training, step));
          const std::lock_guard lock(mutex);
          TrainedStep& out = trained[static_cast<std::size_t>(step) - 1];
          if (rank == 0) out.result = result;
          collect(executor, out);
        }
        if (training.inspect) training.inspect(rank, executor);
      },
      make_device);
  return trained;
}

/// What ranks say that notice a hang, the first one first, while they train for two steps. A hang
/// ends them all.
inline std::vector<std::string> hangs_of(const Training& training, const HangLimits& limits) {
  const shardwright::testing::TempFolder folder;
  const Data data = open_data({.train = "synthetic",
                               .eval = "",
                               .seq_len = training.plan.seq_len,
                               .vocab = training.model.vocab,
                               .seed = 3});
  std::mutex mutex;
  std::vector<std::string> said;
  const auto body = [&](Bootstrap& bootstrap, Executor& executor) {
    TrainOptions options;
    options.lr.total_steps = 2;
    options.folder = folder.path();
    options.saves = false;
    options.rehearses = true;
    options.hang = limits;
    options.on_hang = [&](const std::string& sentence) {
      {
        const std::lock_guard lock(mutex);
        said.push_back(sentence);
      }
      bootstrap.fail(ExitCode::kFailed, sentence);  // a process would end here
    };
    exec::train(executor, training.plan, data, options, nullptr);
  };
  EXPECT_THROW(on_nccl_ranks(training, body), Error);
  EXPECT_EQ(shardwright::testing::live_nccl_objects(), 0);
  return said;
}

/// The norm of the difference over the norm.
inline double difference(const Tensors& a, const Tensors& b) {
  double apart = 0, size = 0;
  for (const auto& [name, values] : a) {
    const std::vector<float>& other = b.at(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      apart += std::pow(values[i] - other[i], 2);
      size += std::pow(values[i], 2);
    }
  }
  return std::sqrt(apart / size);
}

/// Losses, norms, gradients and weights within a share of themselves.
inline void expect_near_training(const std::vector<TrainedStep>& a,
                                 const std::vector<TrainedStep>& b, double bound) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(b[i].result.loss() / a[i].result.loss(), 1, bound) << i;
    EXPECT_NEAR(b[i].result.gradient_norm / a[i].result.gradient_norm, 1, bound) << i;
    EXPECT_EQ(b[i].result.tokens, a[i].result.tokens);
    EXPECT_LT(difference(a[i].gradients, b[i].gradients), bound) << i;
    EXPECT_LT(difference(a[i].weights, b[i].weights), bound) << i;
  }
}

}  // namespace shardwright::exec::testing
