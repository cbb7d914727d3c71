// SPDX-License-Identifier: Apache-2.0
#include "sim/score/kernel_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "sim/core/base/error.h"

namespace shardwright::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kGemm =
    "gpu,m,n,k,time_us,source\n"
    "a100-80g,4096,4096,8192,1120,x\n"
    "a100-80g,4096,4096,4096,600,x\n";
constexpr const char* kCollectives =
    "gpu,gpus,nodes,collective,total_bytes,time_us\n"
    "h100-80g,8,1,all_gather,1048576,17.1\n"
    "h100-80g,16,2,reduce_scatter,1048576,40\n";

auto gemm_of(const std::string& text) {
  return read_gemm_table(CsvTable::parse(text, "g.csv"));
}
auto collectives_of(const std::string& text) {
  return read_collective_table(CsvTable::parse(text, "c.csv"));
}

TEST(KernelTables, ReadsProducts) {
  const std::vector<GemmRow> rows = gemm_of(kGemm);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].gpu, "a100-80g");
  EXPECT_EQ(rows[0].k, 8192);
  EXPECT_DOUBLE_EQ(rows[0].time_s, 1120e-6);
  EXPECT_EQ(rows[1].line, 3u);
}

TEST(KernelTables, ReadsCollectives) {
  const std::vector<CollectiveRow> rows = collectives_of(kCollectives);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].collective, Collective::kReduceScatter);
  EXPECT_EQ(rows[1].nodes, 2);
  EXPECT_EQ(rows[1].inter_bytes_per_s, 0);
  const auto with_network = collectives_of(
      "inter_gbps_per_node,gpu,gpus,nodes,collective,total_bytes,time_us\n"
      "800,a100-80g,16,2,all_reduce,100,5\n");
  EXPECT_DOUBLE_EQ(with_network[0].inter_bytes_per_s, 100e9);
}

TEST(KernelTables, NamesTheMissingColumn) {
  EXPECT_THAT([] { gemm_of("gpu,m,n,time_us\n"); },
              ThrowsMessage<Error>(AllOf(HasSubstr("g.csv"), HasSubstr("k"))));
  EXPECT_THAT([] { collectives_of("gpu,gpus,collective,total_bytes,time_us\n"); },
              ThrowsMessage<Error>(AllOf(HasSubstr("c.csv"), HasSubstr("nodes"))));
}

TEST(KernelTables, NamesTheLineOfABadValue) {
  const auto with = [](const std::string& row) { return "gpu,m,n,k,time_us\na,1,1,1,1\n" + row; };
  for (const char* row :
       {"a,0,1,1,1\n", "a,-5,1,1,1\n", "a,1,x,1,1\n", "a,1,1,1.5,1\n", "a,1,1,1,0\n",
        "a,1,1,1,nan\n", "a,1,1,1,-3\n", "a,1,99999999999999999999,1,1\n", ",1,1,1,1\n"}) {
    EXPECT_THAT([&] { gemm_of(with(row)); },
                ThrowsMessage<Error>(AllOf(HasSubstr("g.csv"), HasSubstr("line 3"))))
        << row;
  }
  const std::string header = "gpu,gpus,nodes,collective,total_bytes,time_us\n";
  for (const char* row : {"a,1,1,all_gather,5,1\n", "a,8,3,all_gather,5,1\n", "a,8,1,gossip,5,1\n",
                          "a,8,1,all_gather,0,1\n"}) {
    EXPECT_THAT([&] { collectives_of(header + row); },
                ThrowsMessage<Error>(AllOf(HasSubstr("c.csv"), HasSubstr("line 2"))))
        << row;
  }
}

TEST(KernelTables, SeesThatMoreWorkCannotTakeLessTime) {
  const auto rows = gemm_of(
      "gpu,m,n,k,time_us\n"
      "a,2048,5120,8192,987\n"  // disturbed: half of the next
      "a,4096,5120,8192,420\n"
      "b,8192,8192,8192,100\n"    // another GPU says nothing
      "a,4096,5120,4096,440\n");  // 5 % above a larger one: noise
  EXPECT_EQ(contradicted_rows(rows), (std::vector<bool>{true, false, false, false}));
}

// Whatever bytes come in, the readers return rows or throw Error.
TEST(KernelTables, SurvivesDamagedFiles) {
  std::mt19937 random(4);
  for (int i = 0; i < 4000; ++i) {
    std::string text = i % 2 == 0 ? kGemm : kCollectives;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 5);
      } else {
        text[at] = static_cast<char>("0123456789,.\n\"-eax\xff\0"[random() % 20]);
      }
      if (text.empty()) text = "x";
    }
    for (const bool gemm : {true, false}) {
      try {
        if (gemm) {
          for (const GemmRow& row : gemm_of(text)) ASSERT_GT(row.time_s, 0);
        } else {
          for (const CollectiveRow& row : collectives_of(text)) ASSERT_GT(row.bytes, 0);
        }
      } catch (const Error& error) {
        ASSERT_STRNE(error.what(), "");
      }
    }
  }
}

}  // namespace
}  // namespace shardwright::sim
