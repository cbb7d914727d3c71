// SPDX-License-Identifier: Apache-2.0
// NCCL itself on GPUs, one rank each (one GPU: one rank): every collective, registered memory, and
// training that equals local ranks within rounding. Not yet run on a GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>

#include "exec/comm/bootstrap.h"
#include "exec/cuda/cuda_device.h"
#include "exec/nccl/nccl_communicator.h"
#include "sim/core/message_queue.h"
#include "sim/pipeline/step_program.h"
#include "tests/exec/staged_training.h"
#include "tests/exec_gpu/gpu.h"

namespace shardwright::exec {
namespace {

using namespace testing;

/// body(rendezvous, device, world) on every rank.
template <class Body>
void on_all_gpus(Body body) {
  LocalBootstrapRoom(ranks_with_gpus()).run([&](Bootstrap& bootstrap) {
    CudaDeviceOptions options;
    options.gpu = bootstrap.rank();
    CudaDevice device(options);
    NcclWorld world(bootstrap);
    body(bootstrap, device, world);
  });
}

NativeStreams streams_of(const CudaDevice& device) {
  return [&device](StreamId id) { return device.stream(id); };
}

std::vector<float> pattern(int rank, std::int64_t size) {
  std::vector<float> values(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((static_cast<std::size_t>(rank) * 31 + i * 7) % 17) - 8;
  }
  return values;
}

/// Device memory with numbers.
struct DeviceArray {
  DeviceArray(Device& device, StreamId stream, const std::vector<float>& values,
              Communicator* group = nullptr)
      : memory(group != nullptr ? group->allocate(device, std::ssize(values) * 4 + 4)
                                : device.allocate(std::ssize(values) * 4 + 4)),
        array{memory->data(), DType::kFp32, std::ssize(values)} {
    device.copy(stream, array.data, values.data(), array.bytes());
    device.synchronize();
  }
  std::vector<float> get(Device& device, StreamId stream) const {
    std::vector<float> values(static_cast<std::size_t>(array.size));
    device.copy(stream, values.data(), array.data, array.bytes());
    device.synchronize();
    return values;
  }
  std::unique_ptr<Allocation> memory;
  Array array;
};

TEST(NcclOnGpus, CollectivesOfAnySize) {
  SHARDWRIGHT_NEEDS_GPU();
  on_all_gpus([](Bootstrap& bootstrap, CudaDevice& device, NcclWorld& world) {
    const int ranks = bootstrap.ranks(), rank = bootstrap.rank();
    const StreamId stream = device.make_stream("communication", -1);
    RankGroups groups =
        world.groups(data_parallel_mesh(ranks, ranks), {}, device, streams_of(device));
    std::deque<DeviceArray> registered;
    for (const std::int64_t size : {1, 24, 101, 1 << 20}) {
      const DeviceArray whole(device, stream, pattern(rank, size));
      // To be kept until the groups are left.
      const DeviceArray& sums = registered.emplace_back(
          device, stream, std::vector<float>(static_cast<std::size_t>(size)), groups.shard.get());
      const Array mine = share_of(sums.array, ranks, rank);
      groups.shard->reduce_scatter(stream, whole.array, mine, false, {});
      groups.shard->all_gather(stream, mine, sums.array);
      groups.shard->all_reduce(stream, whole.array);
      const std::vector<float> gathered = sums.get(device, stream);
      const std::vector<float> reduced = whole.get(device, stream);
      for (std::size_t i = 0; i < gathered.size(); ++i) {
        float expected = 0;
        for (int r = 0; r < ranks; ++r) {
          expected += static_cast<float>((static_cast<std::size_t>(r) * 31 + i * 7) % 17) - 8;
        }
        ASSERT_EQ(gathered[i], expected) << i << " of " << size;
        ASSERT_EQ(reduced[i], expected) << i << " of " << size;
      }
      groups.world->check();
    }
    groups.world->leave();
    groups.shard->leave();
    groups.replicate->leave();
  });
}

TEST(NcclOnGpus, TrainsAsLocalRanksDo) {
  SHARDWRIGHT_NEEDS_GPU();
  Training training;
  training.model = uneven_llama();
  training.plan = tiny_plan(Strategy::kYafsdp, ranks_with_gpus(), 2);
  const Schedule schedule =
      sim::executed_step(training.model, training.plan, native_stack(), 8).stages.front();
  const auto train_with = [&](auto&& groups_of, Device& device, int rank,
                              std::vector<StepResult>& results) {
    Executor executor(training.model, training.plan, schedule, device, groups_of());
    executor.initialize(3);
    for (int step = 1; step <= 3; ++step) {
      const StepResult result =
          executor.step(batch_of(training, step, rank), step_options(training, step));
      if (rank == 0) results.push_back(result);
    }
  };
  std::vector<StepResult> nccl, local;
  on_all_gpus([&](Bootstrap& bootstrap, CudaDevice& device, NcclWorld& world) {
    train_with(
        [&] {
          return world.groups(data_parallel_mesh(bootstrap.ranks(), schedule.shard_ranks()), {},
                              device, streams_of(device));
        },
        device, bootstrap.rank(), nccl);
  });
  LocalWorld world(ranks_with_gpus(), static_cast<int>(schedule.shard_ranks()));
  world.run([&](int rank) {
    CudaDevice device;  // all ranks on the first GPU
    train_with([&] { return world.groups(rank, device); }, device, rank, local);
  });
  for (std::size_t i = 0; i < local.size(); ++i) {
    EXPECT_NEAR(nccl[i].loss(), local[i].loss(), 1e-5) << i;
    EXPECT_NEAR(nccl[i].gradient_norm / local[i].gradient_norm, 1, 1e-5) << i;
  }
}

// Stages of a pipeline add nothing up between them, so the bits are those of local ranks.
TEST(NcclOnGpus, TrainsInStagesAsLocalRanksDo) {
  SHARDWRIGHT_NEEDS_GPU();
  const int ranks = ranks_with_gpus();
  if (ranks < 2) GTEST_SKIP() << "one GPU, and stages over NCCL need one each";
  using enum PipelineKind;
  for (const auto& [kind, chunks] :
       {std::pair(kOneForwardOneBackward, 1), std::pair(kInterleaved, 2), std::pair(kZb1p, 1),
        std::pair(kZbv, 2)}) {
    SCOPED_TRACE(name_of(kind));
    Training training =
        staged(uneven_llama(), Strategy::kYafsdp, {kind, 1, ranks, chunks, 1, 2 * ranks}, true);
    training.model.layers = 8;  // of four stages in two chunks
    const std::vector<Schedule> stages =
        sim::executed_step(training.model, training.plan, native_stack(), 8).stages;
    const RankMesh mesh(training.plan, stages.front().shard_ranks());
    std::vector<StepResult> nccl, local;
    const auto train_with = [&](RankGroups groups, Device& device, int rank,
                                std::vector<StepResult>& results, bool rehearses) {
      Executor executor(training.model, training.plan, stages[static_cast<std::size_t>(rank)],
                        device, std::move(groups));
      if (rehearses) executor.rehearse(batch_of(training, 1, rank));
      executor.initialize(3);
      for (int step = 1; step <= 3; ++step) {
        const StepResult result =
            executor.step(batch_of(training, step, rank), step_options(training, step));
        if (rank == 0) results.push_back(result);
      }
    };
    on_all_gpus([&](Bootstrap& bootstrap, CudaDevice& device, NcclWorld& world) {
      train_with(world.groups(mesh, message_queues(stages), device, streams_of(device)), device,
                 bootstrap.rank(), nccl, true);
    });
    LocalWorld world(mesh);
    world.run([&](int rank) {
      CudaDevice device;  // all ranks on the first GPU
      train_with(world.groups(rank, device), device, rank, local, false);
    });
    for (std::size_t i = 0; i < local.size(); ++i) {
      EXPECT_EQ(nccl[i].loss_sum, local[i].loss_sum) << i;
      EXPECT_EQ(nccl[i].gradient_norm, local[i].gradient_norm) << i;
    }
  }
}

}  // namespace
}  // namespace shardwright::exec
