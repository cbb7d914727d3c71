// SPDX-License-Identifier: Apache-2.0
// What exec/communicator.h promises, as tests of any implementation. Who implements it describes
// how its ranks are run (CommunicatorCase) and instantiates CommunicatorContract, and
// CommunicatorFailure where the process survives a rank that fails. One source of a test program
// includes this header.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "exec/communicator.h"
#include "kernels/bf16.h"
#include "kernels/random.h"
#include "sim/core/base/error.h"

namespace shardwright::exec::testing {

using RankBody = std::function<void(int rank, Device& device, RankGroups& groups, StreamId stream)>;

struct CommunicatorCase {
  std::string name;
  int ranks = 1;
  /// Runs the body on each rank of this process, all of them ranks of one world, whose groups it
  /// gives and leaves. Throws what ended the job.
  std::function<void(int shard_ranks, const RankBody& body)> run;
};

inline void PrintTo(const CommunicatorCase& one, std::ostream* out) {
  *out << one.name;
}

inline Array array_of(std::vector<float>& values) {
  return {values.data(), DType::kFp32, std::ssize(values)};
}

/// What ranks contribute. Where sums are made in the order of ranks: numbers of many magnitudes, so
/// that another order shows in the bits; else small integers, whose sums are exact in any order.
class Numbers {
 public:
  explicit Numbers(const Communicator& group) : ordered_(group.ordered()) {}

  float at(int rank, std::int64_t i) const {
    if (!ordered_) return static_cast<float>((rank * 31 + i * 7) % 17 - 8);
    const kernels::RandomStream stream{7, kernels::RandomSite::kInit,
                                       static_cast<std::uint32_t>(rank)};
    const auto n = static_cast<std::uint64_t>(i);
    return std::ldexp(stream.uniform(2 * n) - 0.5f, static_cast<int>(stream.word(2 * n + 1) % 20));
  }
  std::vector<float> of(int rank, std::int64_t size) const {
    std::vector<float> values(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) values[static_cast<std::size_t>(i)] = at(rank, i);
    return values;
  }
  /// start + the numbers of all ranks, one after the other.
  float sum(float start, int first_rank, int ranks, std::int64_t i) const {
    for (int rank = first_rank; rank < ranks; ++rank) start += at(rank, i);
    return start;
  }

 private:
  bool ordered_;
};

// Sizes that divide, that do not, and that leave ranks with nothing.
inline constexpr std::int64_t kSizes[] = {0, 1, 3, 24, 101, 8000};

class CommunicatorContract : public ::testing::TestWithParam<CommunicatorCase> {
 protected:
  int ranks() const { return GetParam().ranks; }
  /// One shard group of all ranks.
  void on_all_ranks(const RankBody& body) { GetParam().run(ranks(), body); }
};

TEST_P(CommunicatorContract, AllGatherPutsSharesTogether) {
  on_all_ranks([&](int rank, Device& device, RankGroups& groups, StreamId stream) {
    const Numbers numbers(*groups.shard);
    for (const std::int64_t size : kSizes) {
      const std::vector<float> expected = numbers.of(0, size);
      std::vector<float> whole(expected.size(), -100.0f);
      std::vector<float> source = expected;
      const Array mine = share_of(array_of(source), ranks(), rank);
      groups.shard->all_gather(stream, mine, array_of(whole));
      device.synchronize();
      EXPECT_EQ(whole, expected);
      // In place.
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

TEST_P(CommunicatorContract, ReduceScatterAddsAlsoOntoWhatIsThere) {
  on_all_ranks([&](int rank, Device& device, RankGroups& groups, StreamId stream) {
    const Numbers numbers(*groups.shard);
    for (const std::int64_t size : kSizes) {
      for (const bool adds : {false, true}) {
        std::vector<float> whole = numbers.of(rank, size);
        std::vector<float> sums = numbers.of(99, size), scratches(whole.size());
        const Array mine = share_of(array_of(sums), ranks(), rank);
        const bool lends = size != 24;
        groups.shard->reduce_scatter(
            stream, array_of(whole), mine, adds,
            lends ? share_of(array_of(scratches), ranks(), rank) : Array{});
        device.synchronize();
        for (std::int64_t i = 0; i < mine.size; ++i) {
          const std::int64_t at = share_begin(size, ranks(), rank) + i;
          const float start = numbers.at(adds ? 99 : 0, at);
          EXPECT_EQ(static_cast<const float*>(mine.data)[i],
                    numbers.sum(start, adds ? 0 : 1, ranks(), at))
              << "size " << size << " element " << at;
        }
        if (lends) {
          EXPECT_EQ(whole, numbers.of(rank, size));
        }
      }
    }
  });
}

TEST_P(CommunicatorContract, ReduceScatterOfBf16AddsToFp32) {
  on_all_ranks([&](int rank, Device& device, RankGroups& groups, StreamId stream) {
    using kernels::BFloat16;
    const Numbers numbers(*groups.shard);
    const std::int64_t size = 50;
    std::vector<BFloat16> whole;
    for (const float x : numbers.of(rank, size)) whole.push_back(kernels::to_bf16(x));
    std::vector<BFloat16> scratches(whole.size());
    std::vector<float> sums(whole.size());
    const Array mine = share_of(array_of(sums), ranks(), rank);
    groups.shard->reduce_scatter(stream, {whole.data(), DType::kBf16, size}, mine, false,
                                 share_of({scratches.data(), DType::kBf16, size}, ranks(), rank));
    device.synchronize();
    for (std::int64_t i = 0; i < mine.size; ++i) {
      const std::int64_t at = share_begin(size, ranks(), rank) + i;
      float expected = kernels::to_float(kernels::to_bf16(numbers.at(0, at)));
      for (int r = 1; r < ranks(); ++r) {
        expected += kernels::to_float(kernels::to_bf16(numbers.at(r, at)));
      }
      EXPECT_EQ(static_cast<const float*>(mine.data)[i], expected);
    }
  });
}

TEST_P(CommunicatorContract, AllReduceAndBroadcastLeaveTheSameEverywhere) {
  on_all_ranks([&](int rank, Device& device, RankGroups& groups, StreamId stream) {
    const Numbers numbers(*groups.shard);
    for (const std::int64_t size : kSizes) {
      std::vector<float> expected = numbers.of(0, size);
      for (std::int64_t i = 0; i < size; ++i) {
        float& sum = expected[static_cast<std::size_t>(i)];
        sum = numbers.sum(sum, 1, ranks(), i);
      }
      std::vector<float> data = numbers.of(rank, size);
      groups.shard->all_reduce(stream, array_of(data));
      device.synchronize();
      EXPECT_EQ(data, expected);
      for (int root = 0; root < ranks(); ++root) {
        for (Communicator* group : {groups.shard.get(), groups.world.get()}) {
          std::vector<float> sent = numbers.of(rank, size);
          group->broadcast(stream, array_of(sent), root);
          device.synchronize();
          EXPECT_EQ(sent, numbers.of(root, size));
        }
      }
    }
  });
}

// Many collectives are in flight before the first wait, on the same buffers.
TEST_P(CommunicatorContract, CallsFollowOneAnotherWithoutTheHostWaiting) {
  constexpr int kRounds = 12;
  on_all_ranks([&](int rank, Device& device, RankGroups& groups, StreamId stream) {
    std::vector<float> whole(103, static_cast<float>(rank));
    std::vector<float> sums(whole.size());
    const Array mine = share_of(array_of(sums), ranks(), rank);
    for (int i = 0; i < kRounds; ++i) {
      groups.shard->reduce_scatter(stream, array_of(whole), mine, false, {});
      groups.shard->all_gather(stream, mine, array_of(whole));
    }
    device.synchronize();
    // After the first round all hold W (W-1) / 2, and each further round multiplies by W.
    float expected = static_cast<float>(ranks() * (ranks() - 1) / 2);
    for (int i = 1; i < kRounds; ++i) expected *= static_cast<float>(ranks());
    EXPECT_THAT(whole, ::testing::Each(expected));
  });
}

TEST_P(CommunicatorContract, ChainsPassDataOn) {
  GetParam().run(1, [&](int rank, Device& device, RankGroups& groups, StreamId stream) {
    Communicator& chain = *groups.replicate;
    ASSERT_EQ(chain.size(), ranks());
    std::vector<float> data(5, 1.0f);
    std::vector<float> expected(static_cast<std::size_t>(ranks()), 1.0f);  // of each rank
    for (int round = 0; round < 3; ++round) {
      std::vector<float> received(5, 0.0f);
      if (rank > 0) {
        chain.receive(stream, array_of(received), rank - 1);
        device.accumulate(stream, array_of(received), array_of(data));
      }
      if (rank + 1 < ranks()) chain.send(stream, array_of(data), rank + 1);
      device.synchronize();
      for (std::size_t r = 1; r < expected.size(); ++r) expected[r] += expected[r - 1];
      EXPECT_THAT(data, ::testing::Each(expected[static_cast<std::size_t>(rank)]));
    }
  });
}

TEST_P(CommunicatorContract, TheHostExchangesInEveryGroup) {
  on_all_ranks([&](int rank, Device&, RankGroups& groups, StreamId) {
    for (int round = 0; round < 3; ++round) {
      for (Communicator* group : {groups.world.get(), groups.shard.get()}) {
        const int mine = 100 * round + rank;
        std::vector<int> all(static_cast<std::size_t>(ranks()));
        group->exchange(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
        for (int r = 0; r < ranks(); ++r) {
          EXPECT_EQ(all[static_cast<std::size_t>(r)], 100 * round + r);
        }
        group->barrier();
      }
    }
  });
}

TEST_P(CommunicatorContract, GroupsAreConsecutiveAndStrided) {
  const int shard_ranks = ranks() % 2 == 0 ? 2 : 1;
  GetParam().run(shard_ranks, [&](int rank, Device&, RankGroups& groups, StreamId) {
    EXPECT_EQ(groups.world->rank(), rank);
    EXPECT_EQ(groups.world->size(), ranks());
    EXPECT_EQ(groups.shard->rank(), rank % shard_ranks);
    EXPECT_EQ(groups.shard->size(), shard_ranks);
    EXPECT_EQ(groups.replicate->rank(), rank / shard_ranks);
    EXPECT_EQ(groups.replicate->size(), ranks() / shard_ranks);
  });
}

TEST_P(CommunicatorContract, RefusesGroupsThatDoNotDivide) {
  EXPECT_THAT([&] { GetParam().run(ranks() + 1, [](auto&&...) {}); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("expected a divisor of the")));
}

class CommunicatorFailure : public CommunicatorContract {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorFailure);

/// As the executor does before memory goes: own streams may be writing to it, peers reading it.
struct Leaving {
  Device& device;
  const RankGroups& groups;
  ~Leaving() {
    device.drain();
    groups.leave();
  }
};

// Whether the host or the device of a rank fails, the others end and the first cause is reported.
TEST_P(CommunicatorFailure, OfOneRankEndsAllAndIsReported) {
  for (const bool on_device : {false, true}) {
    const RankBody body = [&](int rank, Device& device, RankGroups& groups, StreamId stream) {
      std::vector<float> data(64, 1.0f);
      const auto round = [&](int i) {
        if (rank == ranks() - 1 && i == 20) {
          if (!on_device) throw std::runtime_error("out of paper");
          device.call(stream, [] { throw std::runtime_error("out of paper"); });
        }
        groups.shard->all_reduce(stream, array_of(data));
        groups.world->all_reduce(stream, array_of(data));
        device.synchronize();
        groups.world->check();
      };
      const Leaving leaving{device, groups};
      for (int i = 0; i < 50; ++i) round(i);
    };
    EXPECT_THAT([&] { GetParam().run(ranks() % 2 == 0 ? 2 : 1, body); },
                ::testing::ThrowsMessage<std::exception>(::testing::HasSubstr("out of paper")))
        << (on_device ? "device" : "host");
  }
}

}  // namespace shardwright::exec::testing
