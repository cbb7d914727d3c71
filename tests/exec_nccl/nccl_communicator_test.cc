// SPDX-License-Identifier: Apache-2.0
// Guards exec/nccl: the contract of communicators and what is NCCL's own, on a fake NCCL
// (tests/exec_nccl/fake_nccl.h).
#include "exec/nccl/nccl_communicator.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "exec/comm/bootstrap.h"
#include "exec/host/host_device.h"
#include "tests/exec/communicator_contract.h"
#include "tests/exec_nccl/fake_nccl.h"
#include "tests/support/parameter_name.h"

namespace shardwright::exec {
namespace {

using namespace testing;
using kernels::BFloat16;
using shardwright::testing::FakeNccl;
using shardwright::testing::FakeStream;
using shardwright::testing::live_nccl_objects;
using shardwright::testing::nccl_calls;
using shardwright::testing::reset_fake_nccl;

struct Nccl {
  int ranks = 4;
  StreamMode mode = StreamMode::kThreads;
  FakeNccl fake{};
  double echo_s = 0.2;
  int most_ctas = 0;
  bool is_deterministic = false;
};

/// Runs the body on ranks that are threads and NCCL's, and sees that nothing of NCCL is left.
void on_all_ranks(const Nccl& with, int shard_ranks, const RankBody& body) {
  struct NothingLeft {
    ~NothingLeft() { EXPECT_EQ(live_nccl_objects(), 0); }
  } at_the_end;
  reset_fake_nccl(with.fake);
  kernels::host::Parallel parallel(1);
  LocalBootstrapRoom(with.ranks).run([&](Bootstrap& bootstrap) {
    HostDevice device(parallel, with.mode, static_cast<std::uint64_t>(bootstrap.rank()));
    FakeStream stream{&device, device.make_stream("communication", 0)};
    NcclOptions options;
    options.echo_s = with.echo_s;
    options.most_ctas = with.most_ctas;
    options.is_deterministic = with.is_deterministic;
    if (!with.fake.in_one_process) options.process = 1 + bootstrap.rank();
    NcclWorld world(bootstrap, options);
    RankGroups groups = world.groups(data_parallel_mesh(bootstrap.ranks(), shard_ranks), {}, device,
                                     [&](StreamId) { return stream.native(); });
    body(bootstrap.rank(), device, groups, stream.id);
    device.synchronize();
    groups.world->leave();
    groups.shard->leave();
    groups.replicate->leave();
  });
}

CommunicatorCase nccl(int ranks, StreamMode mode, int polls = 2) {
  const Nccl with{.ranks = ranks, .mode = mode, .fake = {.polls = polls}};
  return {fmt::format("{}_{}_{}", ranks, name_of(mode), polls), ranks,
          [with](int shard_ranks, const RankBody& body) { on_all_ranks(with, shard_ranks, body); }};
}

INSTANTIATE_TEST_SUITE_P(
    Nccl, CommunicatorContract,
    ::testing::Values(nccl(1, StreamMode::kInline, 0), nccl(2, StreamMode::kInline),
                      nccl(3, StreamMode::kThreads), nccl(4, StreamMode::kThreads),
                      nccl(4, StreamMode::kThreads, 0), nccl(6, StreamMode::kShuffled)),
    parameter_name);
INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorFailure,
                         ::testing::Values(nccl(4, StreamMode::kThreads)), parameter_name);

// NCCL adds numbers of one type.
TEST(NcclWorld, ReducesBf16AsBf16AlsoIntoFp32) {
  on_all_ranks({.ranks = 2}, 2, [](int rank, Device& device, RankGroups& groups, StreamId stream) {
    std::vector<BFloat16> whole(48), scratch(24);
    std::vector<float> sums(24);
    groups.shard->reduce_scatter(stream, {whole.data(), DType::kBf16, 48}, array_of(sums), false,
                                 {scratch.data(), DType::kBf16, 24});
    device.synchronize();
    const auto calls = nccl_calls(rank);
    EXPECT_EQ(calls.back().type, ncclBfloat16);
    EXPECT_EQ(calls.back().comm, "world");
    EXPECT_FALSE(groups.shard->ordered());
  });
}

TEST(NcclWorld, MemoryIsRegisteredWhereThatIsPossible) {
  for (const bool registers : {true, false}) {
    on_all_ranks({.ranks = 2, .fake = {.registers = registers}}, 2,
                 [&](int, Device& device, RankGroups& groups, StreamId stream) {
                   const auto memory = groups.shard->allocate(device, 256);
                   EXPECT_EQ(device.allocated_bytes(), 256);
                   auto* data = static_cast<float*>(memory->data());
                   std::fill_n(data, 64, 1.0f);
                   groups.shard->all_reduce(stream, {data, DType::kFp32, 64});
                   device.synchronize();
                   EXPECT_TRUE(std::all_of(data, data + 64, [](float x) { return x == 2; }));
                   groups.world->leave();
                 });
  }
}

TEST(NcclWorld, ARankThatNeverConnectsIsATimeout) {
  reset_fake_nccl();
  ncclUniqueId id{};
  ncclGetUniqueId(&id);
  NcclOptions options;
  options.init_timeout_s = 0.1;
  EXPECT_THAT([&] { NcclGroup(2, 0, id, options, [] { return false; }); },
              ::testing::ThrowsMessage<Error>(
                  ::testing::AllOf(::testing::StartsWith("ncclCommInitRankConfig is not done after "
                                                         "0.1 s: expected all 2 ranks to call it"),
                                   ::testing::HasSubstr("NCCL_SOCKET_IFNAME"))));
  EXPECT_EQ(live_nccl_objects(), 0);
}

/// What the job's error says when all ranks work and disturb(rank, round) fails or NCCL does.
std::string failure_of(const Nccl& with, const std::function<void(int rank, int round)>& disturb) {
  try {
    on_all_ranks(with, 2, [&](int rank, Device& device, RankGroups& groups, StreamId stream) {
      std::vector<float> data(64, 1.0f);
      const auto round = [&](int i) {
        disturb(rank, i);
        groups.shard->all_reduce(stream, array_of(data));
        groups.world->all_reduce(stream, array_of(data));
        device.synchronize();
        groups.world->check();
      };
      try {
        for (int i = 0; i < 30; ++i) round(i);
      } catch (...) {
        device.drain();  // streams may be writing to the data
        throw;
      }
    });
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing failed";
}

TEST(NcclWorld, WhatNcclMeetsOnTheDeviceIsReportedInItsWords) {
  for (const ncclResult_t failure : {ncclUnhandledCudaError, ncclRemoteError}) {
    const FakeNccl fake{.failing_rank = 3, .failing_collective = 7, .failure = failure};
    const std::string said = failure_of({.fake = fake}, [](auto&&...) {});
    EXPECT_THAT(said, ::testing::StartsWith("rank 3 of 4: "));
    EXPECT_THAT(said, ::testing::HasSubstr(ncclGetErrorString(failure)));
    EXPECT_THAT(said, ::testing::HasSubstr("said by the fake"));
  }
}

TEST(NcclWorld, MoreProcessesThanGpusAreToldWhatIsExpected) {
  const FakeNccl fake{.failing_rank = 0,
                      .failing_collective = 0,
                      .failure = ncclInvalidUsage,
                      .last_error = "Duplicate GPU detected : rank 0 and rank 1 both on 41000"};
  EXPECT_THAT(failure_of({.fake = fake}, [](auto&&...) {}),
              ::testing::HasSubstr("rank 1 both on 41000); expected at most one process for each "
                                   "GPU of a machine"));
}

// A network error is the echo of a rank that died: the death is what is reported, however late.
TEST(NcclWorld, TheFirstCauseIsReported) {
  const FakeNccl fake{.failing_rank = 0, .failing_collective = 3, .failure = ncclRemoteError};
  EXPECT_EQ(failure_of({.fake = fake, .echo_s = 200},
                       [](int rank, int round) {
                         if (rank != 2 || round != 1) return;
                         std::this_thread::sleep_for(std::chrono::milliseconds(100));
                         throw std::runtime_error("out of paper");
                       }),
            "rank 2 of 4: out of paper");
}

/// The most thread blocks and the policy that communicators of four ranks were made with.
std::set<std::pair<int, int>> blocks_of(const Nccl& with) {
  on_all_ranks(with, 2, [](int, Device&, RankGroups&, StreamId) {});
  const auto all = shardwright::testing::nccl_blocks();
  EXPECT_EQ(all.size(), 12u) << "three communicators a rank";
  return {all.begin(), all.end()};
}

// What collectives take of the multiprocessors is lost to products that run beside them. The policy
// that takes few is asked for only where NVLS then works on this program's memory.
TEST(NcclCommunicator, TakesAsManyThreadBlocksAsItIsAllowed) {
  using ::testing::ElementsAre;
  constexpr int kNone = NCCL_CONFIG_UNDEF_INT;
  const FakeNccl processes{.in_one_process = false};
  const FakeNccl without_handles{.shares_memory = false, .in_one_process = false};
  EXPECT_THAT(blocks_of({.most_ctas = 8}), ElementsAre(std::pair(8, kNone)));
  EXPECT_THAT(blocks_of({}), ElementsAre(std::pair(kNone, kNone))) << "ranks are threads";
  EXPECT_THAT(blocks_of({.fake = processes}),
              ElementsAre(std::pair(kNone, NCCL_CTA_POLICY_EFFICIENCY)));
  EXPECT_THAT(blocks_of({.fake = without_handles}), ElementsAre(std::pair(kNone, kNone)));
  EXPECT_THAT(blocks_of({.fake = processes, .is_deterministic = true}),
              ElementsAre(std::pair(kNone, kNone)));
}

}  // namespace
}  // namespace shardwright::exec
