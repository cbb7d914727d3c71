// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/local_communicator.h"

#include <fmt/core.h>

#include "exec/comm/local_world.h"
#include "exec/host/host_device.h"
#include "tests/exec/communicator_contract.h"

namespace shardwright::exec {
namespace {

using namespace testing;

CommunicatorCase local(int ranks, StreamMode mode) {
  const auto run = [ranks, mode](int shard_ranks, const RankBody& body) {
    kernels::host::Parallel parallel(2);
    LocalWorld world(ranks, shard_ranks);
    world.run([&](int rank) {
      HostDevice device(parallel, mode, static_cast<std::uint64_t>(rank));
      const StreamId stream = device.make_stream("communication", 0);
      RankGroups groups = world.groups(rank, device);
      body(rank, device, groups, stream);
      device.drain();
      groups.shard->leave();
    });
  };
  return {fmt::format("{}_{}", ranks, name_of(mode)), ranks, run};
}

INSTANTIATE_TEST_SUITE_P(
    Local, CommunicatorContract,
    ::testing::Values(local(1, StreamMode::kInline), local(2, StreamMode::kInline),
                      local(3, StreamMode::kThreads), local(4, StreamMode::kInline),
                      local(4, StreamMode::kThreads), local(6, StreamMode::kShuffled)),
    case_name);
INSTANTIATE_TEST_SUITE_P(Local, CommunicatorFailure,
                         ::testing::Values(local(4, StreamMode::kInline),
                                           local(4, StreamMode::kThreads)),
                         case_name);

TEST(LocalWorld, NamesTheRankThatFailedFirst) {
  LocalWorld world(4, 4);
  EXPECT_THROW(world.run([](int rank) {
    if (rank == 2) throw std::runtime_error("out of paper");
  }),
               std::runtime_error);
  EXPECT_EQ(world.failed_rank(), 2);
}

TEST(LocalWorld, RefusesAWorldOfNobody) {
  EXPECT_THROW(LocalWorld(0, 1), Error);
}

}  // namespace
}  // namespace shardwright::exec
