// SPDX-License-Identifier: Apache-2.0
// One rank of the MPI tests, started by mpirun. Trains with every strategy and compares what it
// owns with one rank that accumulates, computed in the same process. With an argument it fails on
// rank 1 in the way that the argument names.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>

#include "exec/comm/mpi_world.h"
#include "sim/core/error.h"
#include "tests/exec/training.h"

namespace shardwright::exec {
namespace {

using namespace testing;

struct Outcome {
  StepResult result;
  Tensors weights;
};

/// Losses, norms and the weights that this rank owns must be those of one accumulating rank.
int differences(MpiWorld& world, Strategy strategy, std::int64_t shard_group, StreamMode mode) {
  Training training;
  training.steps = 2;
  training.mode = mode;
  training.plan = tiny_plan(strategy, world.ranks());
  training.plan.shard_group = shard_group;
  Training alone = training;
  alone.plan = tiny_plan(Strategy::kSingle, 1, world.ranks());
  const auto expected = train(alone);

  const Schedule schedule = sim::lower(training.model, training.plan, native_stack(), 2);
  kernels::host::Parallel parallel(1);
  HostDevice device(parallel, mode, static_cast<std::uint64_t>(world.rank()));
  Executor executor(training.model, training.plan, schedule, device,
                    world.groups(static_cast<int>(schedule.shard_ranks()), device));
  executor.initialize(3);
  int different = 0;
  for (int step = 1; step <= training.steps; ++step) {
    const StepResult result =
        executor.step(batch_of(training, step, world.rank()), step_options(training, step));
    const TrainedStep& want = expected[static_cast<std::size_t>(step) - 1];
    different += result.loss_sum != want.result.loss_sum;
    different += result.gradient_norm != want.result.gradient_norm;
    for (const OwnedState& state : executor.owned_state()) {
      const std::vector<float>& whole =
          want.weights.at(executor.layout().tensor(state.tensor).name);
      const std::vector<float> mine = executor.read(state.parameter);
      different += !std::equal(mine.begin(), mine.end(), whole.begin() + state.tensor_offset);
    }
  }
  if (different > 0) {
    std::fprintf(stderr, "rank %d, %s, %s: %d differences\n", world.rank(),
                 std::string(name_of(strategy)).c_str(), std::string(name_of(mode)).c_str(),
                 different);
  }
  return different;
}

void fail_on_rank_one(MpiWorld& world, std::string_view how) {
  kernels::host::Parallel parallel(1);
  HostDevice device(parallel, StreamMode::kInline);
  const StreamId stream = device.make_stream("communication", 0);
  RankGroups groups = world.groups(world.ranks(), device);
  std::vector<float> data(100, 1.0f);
  for (int i = 0; i < 1000; ++i) {
    if (world.rank() == 1 && i == 10) {
      if (how == "kill") std::raise(SIGKILL);
      throw Error("the disk of this rank is full", ExitCode::kFailed);
    }
    groups.shard->all_reduce(stream, {data.data(), DType::kFp32, 100});
    std::fill(data.begin(), data.end(), 1.0f);
  }
}

}  // namespace
}  // namespace shardwright::exec

int main(int argc, char** argv) {
  using namespace shardwright;
  using namespace shardwright::exec;
  MpiWorld world(true);
  int different = 0;
  world.run([&] {
    if (argc > 1) return fail_on_rank_one(world, argv[1]);
    for (const Strategy strategy :
         {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kFsdp2,
          Strategy::kFsdp2NoReshard, Strategy::kYafsdp, Strategy::kYafsdpZero2}) {
      different += differences(world, strategy, 0, StreamMode::kInline);
    }
    different += differences(world, Strategy::kYafsdp, 0, StreamMode::kThreads);
    const std::int64_t group = world.ranks() % 2 == 0 ? 2 : 1;
    different += differences(world, Strategy::kHsdp, group, StreamMode::kThreads);
  });
  return different == 0 ? 0 : 1;
}
