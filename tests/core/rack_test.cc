// SPDX-License-Identifier: Apache-2.0
// Racks are filled evenly, in whole trays, and cut no group that could stay whole.
#include "sim/core/rack.h"

#include <gtest/gtest.h>

namespace shardwright {
namespace {

constexpr std::int64_t kRack = 72;

TEST(Rack, PowersOfTwoTake64Of72) {
  for (const std::int64_t gpus : {128, 256, 1024, 4096})
    EXPECT_EQ(gpus_of_each_rack(gpus, kRack), 64) << gpus;
}

TEST(Rack, WholeRacksAndPartsOfOneAreTakenAsTheyAre) {
  EXPECT_EQ(gpus_of_each_rack(1152, kRack), 72);
  for (const std::int64_t gpus : {1, 4, 36, 72}) EXPECT_EQ(gpus_of_each_rack(gpus, kRack), gpus);
}

TEST(Rack, GroupsStayWholeWhereTheyCan) {
  EXPECT_EQ(gpus_of_each_rack(1152, kRack, 64), 64) << "18 racks of 64 rather than 16 of 72";
  EXPECT_EQ(gpus_of_each_rack(1152, kRack, 8), 72);
  EXPECT_EQ(gpus_of_each_rack(720, kRack, 32), 72) << "neither 64 nor 32 divides 720 in halves";
}

TEST(Rack, WhereNothingDividesTheLastRackHoldsTheRest) {
  // 37 trays: no equal number of trays but one.
  EXPECT_EQ(gpus_of_each_rack(148, kRack), 52);
  EXPECT_LE(gpus_of_each_rack(1036, kRack), kRack);
  EXPECT_EQ(gpus_of_each_rack(1036, kRack) % kGpusPerTray, 0);
}

TEST(Rack, AJobFindsNodesOfWhatItFills) {
  Cluster cluster;
  cluster.gpus_per_node = cluster.nics_per_node = kRack;
  const Cluster job = filled(cluster, 1024);
  EXPECT_EQ(job.gpus_per_node, 64);
  EXPECT_EQ(job.nics_per_node, 64);
  EXPECT_EQ(nvlink_gpus(job), kRack);
  EXPECT_EQ(filled(cluster, 64).gpus_per_node, kRack) << "within one rack nothing changes";
  cluster.gpus_per_node = 8;
  EXPECT_EQ(filled(cluster, 1024).gpus_per_node, 8);
}

}  // namespace
}  // namespace shardwright
