// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiles/import/import_observations.h"
#include "profiles/import/nccl_tests.h"
#include "sim/core/base/error.h"
#include "tests/profiles/kineto_text.h"
#include "tests/support/not_empty.h"
#include "tests/support/temp_folder.h"

namespace shardwright::profiles {
namespace {

using ::testing::HasSubstr;

// The layout of nccl-tests 2.13 and later; the times are made up.
std::string log_of(std::string_view program, std::string_view redop, double factor, int ranks = 8,
                   int per_host = 8) {
  std::string text =
      program.empty() ? "" : fmt::format("# Collective test starting: {}\n", program);
  text +=
      "# nThread 1 nGpus 8 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 "
      "iters: 20 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n";
  for (int i = 0; i < ranks; ++i) {
    text += fmt::format(
        "#  Rank {:2} Group  0 Pid  24498 on  node-{} device  {} [0000:{:02x}:00] "
        "NVIDIA H100 80GB HBM3\n",
        i, i / per_host, i % per_host, 16 + i);
  }
  text +=
      "#\n#                                                              out-of-place          "
      "             in-place          \n#       size         count      type   redop    root   "
      "  time   algbw   busbw #wrong     time   algbw   busbw #wrong\n#        (B)    (elements)"
      "                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)      "
      " \n";
  for (const std::int64_t size : {1048576, 2097152, 4194304}) {
    const double time = 20 + static_cast<double>(size) / 2e5;
    const double algorithm = static_cast<double>(size) / time * 1e-3;
    text += fmt::format(
        "{:12} {:13}      half {:>7}      -1 {:8.2f} {:7.2f} {:7.2f}      0 {:8.2f} {:7.2f} "
        "{:7.2f}    N/A\n",
        size, size / 16, redop, time, algorithm, algorithm * factor, time + 1, algorithm,
        algorithm * factor);
  }
  return text + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 123.4\n#\n";
}

class ImportNcclTests : public ::testing::Test {
 protected:
  ObservationSet import(const std::string& text, const char* name = "log.txt") {
    return import_observations({write_text(folder_.path() / name, text)});
  }
  testing::TempFolder folder_;
};

TEST_F(ImportNcclTests, EachRowIsTwoObservations) {
  const ObservationSet set = import(log_of("all_gather_perf", "none", 0.875));
  ASSERT_EQ(set.observations.size(), 6U);
  const Observation& first = set.observations[0];
  EXPECT_EQ(first.op, OpKind::kAllGather);
  EXPECT_EQ(first.work.bytes, 1048576);
  EXPECT_EQ(first.work.dtype_bytes, 2);
  EXPECT_EQ(first.ranks, 8);
  EXPECT_EQ(first.nodes, 1);
  EXPECT_NEAR(first.seconds, 25.24e-6, 1e-9);
  EXPECT_NEAR(set.observations[1].seconds, 26.24e-6, 1e-9);
  EXPECT_EQ(set.sources[0].gpu, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(set.sources[0].world_size, 8);
}

TEST_F(ImportNcclTests, NodesAreCountedByHost) {
  const ObservationSet set = import(log_of("reduce_scatter_perf", "sum", 15.0 / 16, 16, 8));
  EXPECT_EQ(set.observations.at(0).op, OpKind::kReduceScatter);
  EXPECT_EQ(set.observations.at(0).ranks, 16);
  EXPECT_EQ(set.observations.at(0).nodes, 2);
}

TEST_F(ImportNcclTests, AnNvlinkDomainMaySpanHosts) {
  const auto file =
      write_text(folder_.path() / "nvl72.txt", log_of("all_reduce_perf", "sum", 142.0 / 72, 72, 4));
  const auto nodes = [&](std::int64_t gpus, bool given) {
    ImportOptions options;
    options.gpus_per_node = gpus;
    options.gpus_per_node_given = given;
    return import_observations({file}, options).observations.at(0).nodes;
  };
  EXPECT_EQ(nodes(0, false), 18) << "nobody says more than the hosts";
  EXPECT_EQ(nodes(72, true), 1);
  EXPECT_EQ(nodes(36, true), 2);
  EXPECT_EQ(nodes(72, false), 1) << "no host has 72 GPUs, so the base's node is the domain";
  EXPECT_EQ(nodes(8, false), 18) << "8 may be what a host has, of which the job used 4";
}

TEST_F(ImportNcclTests, ColumnsOfRcclAndLostHashesArePassedOver) {
  std::string text = log_of("all_reduce_perf", "sum", 1.75);
  std::string changed;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    std::string line = text.substr(at, end - at);
    if (line.starts_with("#  Rank")) line = line.substr(1);
    if (line.ends_with("N/A")) line += "   Ring  Simple  16";
    changed += line + "\n";
    at = end + 1;
  }
  const ObservationSet plain = import(text), set = import(changed);
  ASSERT_EQ(set.observations.size(), plain.observations.size());
  for (std::size_t i = 0; i < set.observations.size(); ++i) {
    EXPECT_DOUBLE_EQ(set.observations[i].seconds, plain.observations[i].seconds);
    EXPECT_EQ(set.observations[i].ranks, 8);
  }
}

TEST_F(ImportNcclTests, SeveralRunsInOneFile) {
  const ObservationSet set =
      import(log_of("all_gather_perf", "none", 0.875) + log_of("all_reduce_perf", "sum", 1.75) +
             log_of("alltoall_perf", "none", 0.875));
  int gathers = 0, reductions = 0;
  for (const Observation& o : not_empty(set.observations)) {
    gathers += o.op == OpKind::kAllGather;
    reductions += o.op == OpKind::kAllReduce;
  }
  EXPECT_EQ(gathers, 6);
  EXPECT_EQ(reductions, 6);
  EXPECT_EQ(set.observations.size(), 12U);  // of alltoall there is no cost model
  EXPECT_THAT(set.notes, ::testing::Contains(HasSubstr("3 rows were left out")));
}

TEST_F(ImportNcclTests, WithoutANameTheRatioOfBandwidthsTellsWhereItCan) {
  EXPECT_EQ(import(log_of("", "sum", 1.75)).observations.at(0).op, OpKind::kAllReduce);
  EXPECT_EQ(import(log_of("", "sum", 0.875)).observations.at(0).op, OpKind::kReduceScatter);
  // all_gather and alltoall print the same; the file's name may tell.
  EXPECT_THAT(import(log_of("", "none", 0.875)).notes,
              ::testing::Contains(HasSubstr("does not say which collective")));
  EXPECT_EQ(import(log_of("", "none", 0.875), "all_gather_perf.txt").observations.at(0).op,
            OpKind::kAllGather);
}

TEST_F(ImportNcclTests, OlderColumnsAndTaggedLines) {
  std::string text =
      "[1,0]<stdout>:# nThread 1 nGpus 1 minBytes 8 maxBytes 8\n"
      "[1,0]<stdout>:#   Rank  0 Pid   1 on  a device  0 [0x00] Tesla V100-SXM2-16GB\n"
      "[1,0]<stdout>:#   Rank  1 Pid   2 on  b device  0 [0x00] Tesla V100-SXM2-16GB\n"
      "[1,0]<stdout>:#       size         count      type     time   algbw   busbw  error     time "
      "  algbw   busbw  error\n"
      "[1,0]<stdout>:     1048576         32768     float    162.1    6.47    5.66  0e+00    162.0 "
      "   6.47    5.66  0e+00\n";
  const ObservationSet set = import(text, "all_gather_perf.log");
  ASSERT_EQ(set.observations.size(), 2U);
  EXPECT_EQ(set.observations[0].ranks, 2);
  EXPECT_EQ(set.observations[0].nodes, 2);
  EXPECT_EQ(set.observations[0].work.dtype_bytes, 4);
  EXPECT_NEAR(set.observations[0].seconds, 162.1e-6, 1e-12);
}

/// The lines that begin with a number.
std::string rows_of(const std::string& log) {
  std::string rows;
  for (std::size_t at = 0; at < log.size();) {
    const std::size_t end = log.find('\n', at) + 1;
    if (log[at] != '#') rows += log.substr(at, end - at);
    at = end;
  }
  return rows;
}

TEST_F(ImportNcclTests, RowsAloneTellTheRanksByTheirBandwidths) {
  const std::string rows = rows_of(log_of("", "sum", 1.75));
  ASSERT_EQ(rows.find('#'), std::string::npos);
  const ObservationSet set = import(rows, "all_reduce_perf.log");
  ASSERT_EQ(set.observations.size(), 6U);
  EXPECT_EQ(set.observations[0].ranks, 8);
  EXPECT_EQ(set.observations[0].nodes, 1);
  EXPECT_THAT(set.notes, ::testing::Contains(HasSubstr("those of 8 ranks")));
  EXPECT_EQ(import(rows_of(log_of("", "none", 15.0 / 16)), "all_gather_perf.log")
                .observations.at(0)
                .ranks,
            16);
  // Of many ranks a hundredth of a GB/s leaves several numbers open; of one, none.
  for (const double factor : {2 * 0.9999, 1.2345, 0.0}) {
    const ObservationSet open = import(rows_of(log_of("", "sum", factor)), "all_reduce_perf.log");
    EXPECT_TRUE(open.observations.empty()) << factor;
    EXPECT_THAT(open.notes, ::testing::Contains(HasSubstr("rows were left out")));
  }
  EXPECT_THAT(import(rows).notes,
              ::testing::Contains(HasSubstr("does not say which collective it timed")));
}

TEST_F(ImportNcclTests, ALogWithoutRowsIsRefused) {
  EXPECT_THROW(import("# nThread 1 nGpus 8 minBytes 8 maxBytes 8\n"), Error);
}

}  // namespace
}  // namespace shardwright::profiles
