// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/local_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "exec/comm/local_world.h"
#include "exec/host/host_device.h"
#include "kernels/bf16.h"
#include "kernels/random.h"
#include "sim/core/error.h"

namespace shardwright::exec {
namespace {

using kernels::BFloat16;

struct Case {
  int ranks;
  StreamMode mode;
};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return std::to_string(info.param.ranks) + "_" + std::string(name_of(info.param.mode));
}

/// Numbers of many magnitudes, so that the order of additions shows in the bits.
float number(int rank, std::int64_t i) {
  const kernels::RandomStream stream{7, kernels::RandomSite::kInit,
                                     static_cast<std::uint32_t>(rank)};
  const auto at = static_cast<std::uint64_t>(i);
  return std::ldexp(stream.uniform(2 * at) - 0.5f, static_cast<int>(stream.word(2 * at + 1) % 20));
}

std::vector<float> numbers(int rank, std::int64_t size) {
  std::vector<float> values(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) values[static_cast<std::size_t>(i)] = number(rank, i);
  return values;
}

Array array_of(std::vector<float>& values) {
  return {values.data(), DType::kFp32, std::ssize(values)};
}

class LocalCollectives : public ::testing::TestWithParam<Case> {
 protected:
  /// body(rank, device, groups, stream) on every rank.
  template <class Body>
  void on_all_ranks(int shard_ranks, Body body) {
    kernels::host::Parallel parallel(2);
    LocalWorld world(GetParam().ranks, shard_ranks);
    world.run([&](int rank) {
      HostDevice device(parallel, GetParam().mode, static_cast<std::uint64_t>(rank));
      const StreamId stream = device.make_stream("communication", 0);
      RankGroups groups = world.groups(rank, device);
      body(rank, device, groups, stream);
      device.drain();
      groups.shard->leave();
    });
  }
  int ranks() const { return GetParam().ranks; }
};

// Sizes that divide, that do not, and that leave ranks with nothing.
constexpr std::int64_t kSizes[] = {0, 1, 3, 24, 101, 40000};

TEST_P(LocalCollectives, AllGatherPutsSharesTogether) {
  on_all_ranks(ranks(), [&](int rank, Device& device, RankGroups& groups, StreamId stream) {
    for (const std::int64_t size : kSizes) {
      const std::vector<float> expected = numbers(0, size);
      std::vector<float> whole(expected.size(), -1.0f);
      std::vector<float> source = expected;
      const Array mine = share_of(array_of(source), ranks(), rank);
      groups.shard->all_gather(stream, mine, array_of(whole));
      device.synchronize();
      EXPECT_EQ(whole, expected);
      // In place.
      std::vector<float> own(expected.size(), -1.0f);
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

TEST_P(LocalCollectives, ReduceScatterAddsInTheOrderOfRanks) {
  on_all_ranks(ranks(), [&](int rank, Device& device, RankGroups& groups, StreamId stream) {
    for (const std::int64_t size : kSizes) {
      for (const bool adds : {false, true}) {
        std::vector<float> expected = numbers(99, size);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          if (!adds) expected[i] = number(0, static_cast<std::int64_t>(i));
          for (int r = adds ? 0 : 1; r < ranks(); ++r) {
            expected[i] += number(r, static_cast<std::int64_t>(i));
          }
        }
        std::vector<float> whole = numbers(rank, size);
        std::vector<float> sums = numbers(99, size);
        const Array mine = share_of(array_of(sums), ranks(), rank);
        groups.shard->reduce_scatter(stream, array_of(whole), mine, adds, {});
        device.synchronize();
        for (std::int64_t i = 0; i < mine.size; ++i) {
          const std::int64_t at = share_begin(size, ranks(), rank) + i;
          EXPECT_EQ(static_cast<const float*>(mine.data)[i], expected[static_cast<std::size_t>(at)])
              << "size " << size << " element " << at;
        }
        EXPECT_EQ(whole, numbers(rank, size));
      }
    }
  });
}

TEST_P(LocalCollectives, ReduceScatterOfBf16AddsInFp32) {
  on_all_ranks(ranks(), [&](int rank, Device& device, RankGroups& groups, StreamId stream) {
    const std::int64_t size = 50;
    std::vector<BFloat16> whole;
    for (const float x : numbers(rank, size)) whole.push_back(kernels::to_bf16(x));
    std::vector<float> sums(whole.size());
    const Array mine = share_of(array_of(sums), ranks(), rank);
    groups.shard->reduce_scatter(stream, {whole.data(), DType::kBf16, size}, mine, false, {});
    device.synchronize();
    for (std::int64_t i = 0; i < mine.size; ++i) {
      const std::int64_t at = share_begin(size, ranks(), rank) + i;
      float expected = kernels::to_float(kernels::to_bf16(number(0, at)));
      for (int r = 1; r < ranks(); ++r) {
        expected += kernels::to_float(kernels::to_bf16(number(r, at)));
      }
      EXPECT_EQ(static_cast<const float*>(mine.data)[i], expected);
    }
  });
}

TEST_P(LocalCollectives, AllReduceAndBroadcastLeaveTheSameEverywhere) {
  on_all_ranks(ranks(), [&](int rank, Device& device, RankGroups& groups, StreamId stream) {
    for (const std::int64_t size : kSizes) {
      std::vector<float> expected = numbers(0, size);
      for (int r = 1; r < ranks(); ++r) {
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
        groups.shard->broadcast(stream, array_of(sent), root);
        device.synchronize();
        EXPECT_EQ(sent, numbers(root, size));
      }
    }
  });
}

// Many collectives are in flight before the first wait, on the same buffers.
TEST_P(LocalCollectives, CallsFollowOneAnotherWithoutTheHostWaiting) {
  on_all_ranks(ranks(), [&](int rank, Device& device, RankGroups& groups, StreamId stream) {
    const std::int64_t size = 103;
    std::vector<float> whole(static_cast<std::size_t>(size), static_cast<float>(rank));
    std::vector<float> sums(whole.size());
    const Array mine = share_of(array_of(sums), ranks(), rank);
    for (int i = 0; i < 20; ++i) {
      groups.shard->reduce_scatter(stream, array_of(whole), mine, false, {});
      groups.shard->all_gather(stream, mine, array_of(whole));
    }
    device.synchronize();
    // After the first round all hold W (W-1) / 2, and each further round multiplies by W.
    float expected = static_cast<float>(ranks() * (ranks() - 1) / 2);
    for (int i = 1; i < 20; ++i) expected *= static_cast<float>(ranks());
    for (const float x : whole) ASSERT_EQ(x, expected);
  });
}

TEST_P(LocalCollectives, ChainsPassDataOn) {
  on_all_ranks(1, [&](int rank, Device& device, RankGroups& groups, StreamId stream) {
    Communicator& chain = *groups.replicate;
    ASSERT_EQ(chain.size(), ranks());
    std::vector<float> data(5, 1.0f);
    for (int round = 0; round < 3; ++round) {
      std::vector<float> received(5, 0.0f);
      if (rank > 0) {
        chain.receive(stream, array_of(received), rank - 1);
        device.accumulate(stream, array_of(received), array_of(data));
      }
      if (rank + 1 < ranks()) chain.send(stream, array_of(data), rank + 1);
      device.synchronize();
    }
    if (rank == 1) {
      EXPECT_THAT(data, ::testing::Each(1.0f + 3.0f));
    }
  });
}

TEST_P(LocalCollectives, ExchangeShowsEveryRankEveryRecord) {
  on_all_ranks(ranks(), [&](int rank, Device&, RankGroups& groups, StreamId) {
    for (int round = 0; round < 3; ++round) {
      const int mine = 100 * round + rank;
      std::vector<int> all(static_cast<std::size_t>(ranks()));
      groups.world->exchange(std::as_bytes(std::span(&mine, 1)),
                             std::as_writable_bytes(std::span(all)));
      for (int r = 0; r < ranks(); ++r) {
        EXPECT_EQ(all[static_cast<std::size_t>(r)], 100 * round + r);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    RanksAndModes, LocalCollectives,
    ::testing::Values(Case{1, StreamMode::kInline}, Case{2, StreamMode::kInline},
                      Case{3, StreamMode::kThreads}, Case{4, StreamMode::kInline},
                      Case{4, StreamMode::kThreads}, Case{4, StreamMode::kShuffled}),
    case_name);

TEST(LocalWorld, GroupsAreConsecutiveAndStrided) {
  kernels::host::Parallel parallel(1);
  LocalWorld world(6, 2);
  world.run([&](int rank) {
    HostDevice device(parallel, StreamMode::kInline);
    const RankGroups groups = world.groups(rank, device);
    EXPECT_EQ(groups.world->rank(), rank);
    EXPECT_EQ(groups.world->size(), 6);
    EXPECT_EQ(groups.shard->rank(), rank % 2);
    EXPECT_EQ(groups.shard->size(), 2);
    EXPECT_EQ(groups.replicate->rank(), rank / 2);
    EXPECT_EQ(groups.replicate->size(), 3);
  });
}

TEST(LocalWorld, RefusesGroupsThatDoNotDivide) {
  EXPECT_THROW(LocalWorld(4, 3), Error);
  EXPECT_THROW(LocalWorld(0, 1), Error);
}

// Whether the host or the device of a rank fails, the others end and the first cause is reported.
TEST(LocalWorld, OneFailureEndsAllRanks) {
  for (const StreamMode mode : {StreamMode::kInline, StreamMode::kThreads}) {
    for (const bool on_device : {false, true}) {
      kernels::host::Parallel parallel(1);
      LocalWorld world(4, 4);
      const auto body = [&](int rank) {
        HostDevice device(parallel, mode);
        const StreamId stream = device.make_stream("communication", 0);
        RankGroups groups = world.groups(rank, device);
        std::vector<float> data(64, 1.0f);
        for (int i = 0; i < 50; ++i) {
          if (rank == 2 && i == 20) {
            if (!on_device) throw std::runtime_error("rank 2 is out of paper");
            device.call(stream, [] { throw std::runtime_error("rank 2 is out of paper"); });
          }
          groups.shard->all_reduce(stream, array_of(data));
          device.synchronize();
        }
      };
      try {
        world.run(body);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const std::exception& error) {
        EXPECT_STREQ(error.what(), "rank 2 is out of paper");
        EXPECT_EQ(world.failed_rank(), 2);
      }
    }
  }
}

}  // namespace
}  // namespace shardwright::exec
