// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/agreement.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "exec/comm/local_communicator.h"
#include "exec/host/host_device.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

const JobFacts kJob = {{"version", "1"}, {"lr", "3e-4", "default"}, {"steps", "4", "flag"}};

/// What each rank says when rank 2 of 3 has these facts.
std::vector<std::string> refusals(const JobFacts& of_rank_2) {
  std::vector<std::string> said(3);
  LocalWorld world(3, 1);
  try {
    world.run([&](int rank) {
      kernels::host::Parallel parallel(1);
      HostDevice device(parallel, StreamMode::kInline);
      const OnWorld agree = [&](Communicator& all) {
        try {
          require_agreement(all, rank == 2 ? of_rank_2 : kJob);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ExitCode::kBadInput);
          said[static_cast<std::size_t>(rank)] = error.what();
          throw;
        }
      };
      world.groups(rank, device, agree).leave();
    });
  } catch (const Error&) {  // one of them
  }
  return said;
}

TEST(Agreement, NamesTheFirstKeyThatDiffersOnAllRanks) {
  JobFacts other = kJob;
  other[1] = {"lr", "0.1", "environment"};
  other[2].value = "5";
  for (const std::string& said : refusals(other)) {
    EXPECT_EQ(said,
              "lr is 3e-4 (default) on rank 0, but 0.1 (environment) on rank 2; expected the same "
              "on all ranks");
  }
  other = kJob;
  other[2].value = std::string(5000, 'x');
  EXPECT_THAT(refusals(other)[0], SizeIs(::testing::Lt(250)));
  other[2].value = "";
  EXPECT_THAT(refusals(other)[1], HasSubstr("steps is 4 (flag) on rank 0, but nothing (flag) on"));
  other = kJob;
  other.push_back({"more", "1"});
  EXPECT_THAT(refusals(other)[0], HasSubstr("rank 0 has '' where rank 2 has 'more'"));
}

TEST(Agreement, IsOfKeysAndValuesAndNotOfWhereTheyAreFrom) {
  JobFacts other = kJob;
  other[2].origin = "the environment";
  EXPECT_EQ(refusals(other), std::vector<std::string>(3));
  EXPECT_EQ(hash_of(other), hash_of(kJob));
  other[2].value = "5";
  EXPECT_NE(hash_of(other), hash_of(kJob));
  EXPECT_THAT(hash_of(kJob), SizeIs(64));
}

}  // namespace
}  // namespace shardwright::exec
