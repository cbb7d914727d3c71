// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/local_communicator.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <system_error>

#include "exec/host/host_device.h"
#include "tests/exec/communicator_contract.h"
#include "tests/support/parameter_name.h"

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
    parameter_name);
INSTANTIATE_TEST_SUITE_P(Local, CommunicatorFailure,
                         ::testing::Values(local(4, StreamMode::kInline),
                                           local(4, StreamMode::kThreads)),
                         parameter_name);

TEST(LocalWorld, NamesTheRankThatFailedFirst) {
  LocalWorld world(4, 4);
  EXPECT_THROW(world.run([](int rank) {
    if (rank == 2) throw std::runtime_error("out of paper");
  }),
               std::runtime_error);
  EXPECT_EQ(world.failed_rank(), 2);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/// Room for the stacks of a few threads, of 8 MiB each, more than there is now.
void limit_address_space() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto limit = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + (40 << 20));
  const rlimit both{limit, limit};
  setrlimit(RLIMIT_AS, &both);
}

TEST(LocalWorldDeathTest, WithoutMemoryForAThreadRanksThatRunDoNotWaitForIt) {
  const auto run = [] {
    constexpr int kRanks = 64;
    limit_address_space();
    LocalWorld world(kRanks, kRanks);
    try {
      world.run([&](int rank) {
        kernels::host::Parallel parallel(1);
        HostDevice device(parallel, StreamMode::kInline);
        world.groups(rank, device).world->barrier();
      });
    } catch (const std::system_error&) {
      std::_Exit(7);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(7), "");
}
#endif

TEST(LocalWorld, RefusesAWorldOfNobody) {
  EXPECT_THROW(LocalWorld(0, 1), Error);
}

}  // namespace
}  // namespace shardwright::exec
