// SPDX-License-Identifier: Apache-2.0
// Guards exec/nccl: collectives of every size and type, groups, and failures that end all ranks, on
// a fake NCCL (tests/exec_nccl/fake_nccl.h).
#include "exec/nccl/nccl_communicator.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "exec/comm/local_meeting.h"
#include "exec/host/host_device.h"
#include "exec/nccl/nccl_world.h"
#include "kernels/bf16.h"
#include "tests/exec_nccl/fake_nccl.h"

namespace shardwright::exec {
namespace {

using kernels::BFloat16;
using shardwright::testing::FakeNccl;
using shardwright::testing::FakeStream;
using shardwright::testing::live_nccl_objects;
using shardwright::testing::nccl_calls;
using shardwright::testing::reset_fake_nccl;

struct Case {
  int ranks;
  StreamMode mode;
  int polls = 2;
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return fmt::format("{}_{}_{}", info.param.ranks, name_of(info.param.mode), info.param.polls);
}

/// Small integers, so that sums are exact in any order.
float number(int rank, std::int64_t i) {
  return static_cast<float>((rank * 31 + i * 7) % 17 - 8);
}

std::vector<float> numbers(int rank, std::int64_t size) {
  std::vector<float> values(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) values[static_cast<std::size_t>(i)] = number(rank, i);
  return values;
}

Array array_of(std::vector<float>& values) {
  return {values.data(), DType::kFp32, std::ssize(values)};
}

/// body(rank, device, groups, stream) on every rank.
template <class Body>
void on_all_ranks(const Case& with, int shard_ranks, Body body) {
  kernels::host::Parallel parallel(1);
  LocalMeetingRoom(with.ranks).run([&](Meeting& meeting) {
    HostDevice device(parallel, with.mode, static_cast<std::uint64_t>(meeting.rank()));
    FakeStream stream{&device, device.make_stream("communication", 0)};
    NcclOptions options;
    options.echo_s = 1.5;
    NcclWorld world(meeting, options);
    RankGroups groups =
        world.groups(shard_ranks, device, [&](StreamId) { return stream.native(); });
    body(meeting.rank(), device, groups, stream.id);
    device.synchronize();
    groups.world->leave();
    groups.shard->leave();
    groups.replicate->leave();
  });
}

class NcclCollectives : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { reset_fake_nccl({.polls = GetParam().polls}); }
  void TearDown() override { EXPECT_EQ(live_nccl_objects(), 0); }
  int ranks() const { return GetParam().ranks; }
};

// Sizes that divide, that do not, and that leave ranks with nothing.
constexpr std::int64_t kSizes[] = {0, 1, 3, 24, 101, 4000};

TEST_P(NcclCollectives, AllGatherPutsSharesTogether) {
  on_all_ranks(GetParam(), ranks(),
               [&](int rank, Device& device, RankGroups& groups, StreamId stream) {
                 for (const std::int64_t size : kSizes) {
                   const std::vector<float> expected = numbers(0, size);
                   std::vector<float> whole(expected.size(), -100.0f);
                   std::vector<float> source = expected;
                   const Array mine = share_of(array_of(source), ranks(), rank);
                   groups.shard->all_gather(stream, mine, array_of(whole));
                   device.synchronize();
                   EXPECT_EQ(whole, expected);
                   std::vector<float> own(expected.size(), -100.0f);
                   const Array place = share_of(array_of(own), ranks(), rank);
                   if (place.size > 0) {
                     std::memcpy(place.data, mine.data, static_cast<std::size_t>(place.bytes()));
                   }
                   groups.shard->all_gather(stream, place, array_of(own));
                   device.synchronize();
                   EXPECT_EQ(own, expected);
                 }
               });
}

TEST_P(NcclCollectives, ReduceScatterAddsAlsoOntoWhatIsThere) {
  on_all_ranks(
      GetParam(), ranks(), [&](int rank, Device& device, RankGroups& groups, StreamId stream) {
        for (const std::int64_t size : kSizes) {
          for (const bool adds : {false, true}) {
            std::vector<float> whole = numbers(rank, size);
            std::vector<float> sums = numbers(99, size), scratches(whole.size());
            const Array mine = share_of(array_of(sums), ranks(), rank);
            const bool lends = size != 24;
            groups.shard->reduce_scatter(
                stream, array_of(whole), mine, adds,
                lends ? share_of(array_of(scratches), ranks(), rank) : Array{});
            device.synchronize();
            for (std::int64_t i = 0; i < mine.size; ++i) {
              const std::int64_t at = share_begin(size, ranks(), rank) + i;
              float expected = adds ? number(99, at) : 0;
              for (int r = 0; r < ranks(); ++r) expected += number(r, at);
              EXPECT_EQ(static_cast<const float*>(mine.data)[i], expected) << size << " " << at;
            }
            if (lends) {
              EXPECT_EQ(whole, numbers(rank, size));
            }
          }
        }
      });
}

TEST_P(NcclCollectives, ReduceScatterOfBf16IntoFp32GoesThroughScratch) {
  on_all_ranks(GetParam(), ranks(),
               [&](int rank, Device& device, RankGroups& groups, StreamId stream) {
                 const std::int64_t size = 48;
                 std::vector<BFloat16> whole;
                 for (const float x : numbers(rank, size)) whole.push_back(kernels::to_bf16(x));
                 std::vector<BFloat16> scratches(whole.size());
                 std::vector<float> sums(whole.size());
                 const Array mine = share_of(array_of(sums), ranks(), rank);
                 groups.shard->reduce_scatter(
                     stream, {whole.data(), DType::kBf16, size}, mine, false,
                     share_of({scratches.data(), DType::kBf16, size}, ranks(), rank));
                 device.synchronize();
                 for (std::int64_t i = 0; i < mine.size; ++i) {
                   float expected = 0;
                   for (int r = 0; r < ranks(); ++r) {
                     expected += number(r, share_begin(size, ranks(), rank) + i);
                   }
                   EXPECT_EQ(static_cast<const float*>(mine.data)[i], expected);
                 }
                 const auto calls = nccl_calls(rank);
                 EXPECT_EQ(calls.back().type, ncclBfloat16);
                 EXPECT_EQ(calls.back().comm, "shard");
               });
}

TEST_P(NcclCollectives, AllReduceAndBroadcastLeaveTheSameEverywhere) {
  on_all_ranks(GetParam(), ranks(),
               [&](int rank, Device& device, RankGroups& groups, StreamId stream) {
                 for (const std::int64_t size : kSizes) {
                   std::vector<float> expected(static_cast<std::size_t>(size));
                   for (int r = 0; r < ranks(); ++r) {
                     for (std::size_t i = 0; i < expected.size(); ++i) {
                       expected[i] += number(r, static_cast<std::int64_t>(i));
                     }
                   }
                   std::vector<float> data = numbers(rank, size);
                   groups.shard->all_reduce(stream, array_of(data));
                   device.synchronize();
                   EXPECT_EQ(data, expected);
                   for (int root = 0; root < ranks(); ++root) {
                     std::vector<float> sent = numbers(rank, size);
                     groups.world->broadcast(stream, array_of(sent), root);
                     device.synchronize();
                     EXPECT_EQ(sent, numbers(root, size));
                   }
                 }
               });
}

// Many collectives are in flight before the first wait, on the same buffers.
TEST_P(NcclCollectives, CallsFollowOneAnotherWithoutTheHostWaiting) {
  on_all_ranks(GetParam(), ranks(),
               [&](int rank, Device& device, RankGroups& groups, StreamId stream) {
                 const std::int64_t size = 24;
                 std::vector<float> whole(static_cast<std::size_t>(size), static_cast<float>(rank));
                 std::vector<float> sums(whole.size());
                 const Array mine = share_of(array_of(sums), ranks(), rank);
                 for (int i = 0; i < 8; ++i) {
                   groups.shard->reduce_scatter(stream, array_of(whole), mine, false, {});
                   groups.shard->all_gather(stream, mine, array_of(whole));
                 }
                 device.synchronize();
                 float expected = static_cast<float>(ranks() * (ranks() - 1) / 2);
                 for (int i = 1; i < 8; ++i) expected *= static_cast<float>(ranks());
                 EXPECT_THAT(whole, ::testing::Each(expected));
               });
}

TEST_P(NcclCollectives, ChainsPassDataOn) {
  on_all_ranks(GetParam(), 1, [&](int rank, Device& device, RankGroups& groups, StreamId stream) {
    Communicator& chain = *groups.replicate;
    ASSERT_EQ(chain.size(), ranks());
    std::vector<float> data(5, 1.0f), received(5, 0.0f);
    if (rank > 0) {
      chain.receive(stream, array_of(received), rank - 1);
      device.accumulate(stream, array_of(received), array_of(data));
    }
    if (rank + 1 < ranks()) chain.send(stream, array_of(data), rank + 1);
    device.synchronize();
    EXPECT_THAT(data, ::testing::Each(1.0f + static_cast<float>(rank)));
  });
}

TEST_P(NcclCollectives, TheHostExchangesInEveryGroup) {
  on_all_ranks(GetParam(), ranks(), [&](int rank, Device&, RankGroups& groups, StreamId) {
    for (Communicator* group : {groups.world.get(), groups.shard.get()}) {
      std::vector<int> all(static_cast<std::size_t>(ranks()));
      group->exchange(std::as_bytes(std::span(&rank, 1)), std::as_writable_bytes(std::span(all)));
      for (int r = 0; r < ranks(); ++r) EXPECT_EQ(all[static_cast<std::size_t>(r)], r);
      group->barrier();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    RanksAndModes, NcclCollectives,
    ::testing::Values(Case{1, StreamMode::kInline, 0}, Case{2, StreamMode::kInline},
                      Case{3, StreamMode::kThreads}, Case{4, StreamMode::kThreads},
                      Case{4, StreamMode::kThreads, 0}, Case{4, StreamMode::kShuffled}),
    case_name);

TEST(NcclWorld, GroupsAreConsecutiveAndStrided) {
  reset_fake_nccl();
  on_all_ranks({6, StreamMode::kThreads}, 2,
               [](int rank, Device&, const RankGroups& groups, StreamId) {
                 EXPECT_EQ(groups.world->rank(), rank);
                 EXPECT_EQ(groups.world->size(), 6);
                 EXPECT_EQ(groups.shard->rank(), rank % 2);
                 EXPECT_EQ(groups.shard->size(), 2);
                 EXPECT_EQ(groups.replicate->rank(), rank / 2);
                 EXPECT_EQ(groups.replicate->size(), 3);
                 EXPECT_FALSE(groups.shard->ordered());
               });
  EXPECT_EQ(live_nccl_objects(), 0);
  EXPECT_THAT(
      [] {
        on_all_ranks({4, StreamMode::kThreads}, 3, [](auto&&...) {});
      },
      ::testing::ThrowsMessage<Error>(
          ::testing::HasSubstr("the shard group has 3 ranks, expected a divisor of the 4 ranks")));
  EXPECT_EQ(live_nccl_objects(), 0);
}

TEST(NcclWorld, MemoryIsRegisteredWhereThatIsPossible) {
  for (const bool registers : {true, false}) {
    reset_fake_nccl({.registers = registers});
    on_all_ranks({2, StreamMode::kThreads}, 2,
                 [&](int, Device& device, const RankGroups& groups, StreamId stream) {
                   std::vector<float> data(64, 1.0f);
                   groups.shard->register_memory(data.data(), 256);
                   groups.shard->all_reduce(stream, array_of(data));
                   device.synchronize();
                   EXPECT_THAT(data, ::testing::Each(2.0f));
                 });
    EXPECT_EQ(live_nccl_objects(), 0);
  }
}

TEST(NcclWorld, ARankThatNeverConnectsIsATimeout) {
  reset_fake_nccl();
  ncclUniqueId id{};
  ncclGetUniqueId(&id);
  NcclOptions options;
  options.init_timeout_s = 0.1;
  EXPECT_THAT([&] { NcclGroup(2, 0, id, options, [] { return false; }); },
              ::testing::ThrowsMessage<Error>("ncclCommInitRankConfig is not done after 0.1 s: "
                                              "expected all 2 ranks to call it"));
  EXPECT_EQ(live_nccl_objects(), 0);
}

/// All ranks work until one of them fails in the middle; what the job's error says.
std::string failure_of(
    const std::function<void(int rank, int round, Device& device, StreamId stream)>& disturb) {
  try {
    on_all_ranks({4, StreamMode::kThreads}, 2,
                 [&](int rank, Device& device, RankGroups& groups, StreamId stream) {
                   std::vector<float> data(64, 1.0f);
                   // Streams may be writing to the data.
                   const auto round = [&](int i) {
                     disturb(rank, i, device, stream);
                     groups.shard->all_reduce(stream, array_of(data));
                     groups.world->all_reduce(stream, array_of(data));
                     device.synchronize();
                     groups.world->check();
                   };
                   try {
                     for (int i = 0; i < 30; ++i) round(i);
                   } catch (...) {
                     device.drain();
                     throw;
                   }
                 });
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing failed";
}

TEST(NcclWorld, OneFailureEndsAllRanks) {
  reset_fake_nccl();
  EXPECT_EQ(failure_of([](int rank, int round, Device&, StreamId) {
              if (rank == 2 && round == 10) throw std::runtime_error("out of paper");
            }),
            "rank 2 of 4: out of paper");
  EXPECT_EQ(live_nccl_objects(), 0);
  EXPECT_EQ(failure_of([](int rank, int round, Device& device, StreamId stream) {
              if (rank != 1 || round != 5) return;
              device.call(stream, [] { throw std::runtime_error("an illegal address"); });
            }),
            "rank 1 of 4: an illegal address");
  EXPECT_EQ(live_nccl_objects(), 0);
}

TEST(NcclWorld, WhatNcclMeetsOnTheDeviceIsReportedInItsWords) {
  for (const ncclResult_t failure : {ncclUnhandledCudaError, ncclRemoteError}) {
    reset_fake_nccl({.failing_rank = 3, .failing_collective = 7, .failure = failure});
    const std::string said = failure_of([](auto&&...) {});
    EXPECT_THAT(said, ::testing::StartsWith("rank 3 of 4: "));
    EXPECT_THAT(said, ::testing::HasSubstr(ncclGetErrorString(failure)));
    EXPECT_THAT(said, ::testing::HasSubstr("said by the fake"));
    EXPECT_EQ(live_nccl_objects(), 0);
  }
}

// A network error is the echo of a rank that died: the death is what is reported.
TEST(NcclWorld, TheFirstCauseIsReported) {
  reset_fake_nccl({.failing_rank = 0, .failing_collective = 3, .failure = ncclRemoteError});
  EXPECT_EQ(failure_of([](int rank, int round, Device&, StreamId) {
              if (rank != 2 || round != 1) return;
              std::this_thread::sleep_for(std::chrono::milliseconds(100));
              throw std::runtime_error("out of paper");
            }),
            "rank 2 of 4: out of paper");
}

}  // namespace
}  // namespace shardwright::exec
