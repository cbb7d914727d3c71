// SPDX-License-Identifier: Apache-2.0
// Damaged traces: whatever is done to a file, importing it ends in an ObservationSet or in an Error
// of one sentence, in bounded memory, and durations stay positive.
#include <gtest/gtest.h>

#include <random>

#include "profiles/import/import_observations.h"
#include "profiles/import/trace_reader.h"
#include "sim/core/base/error.h"
#include "tests/profiles/kineto_text.h"
#include "tests/support/temp_folder.h"

namespace shardwright::profiles {
namespace {

std::string small_trace() {
  KinetoText trace(0, 2);
  trace.open("ProfilerStep#1", "user_annotation");
  for (int i = 0; i < 4; ++i) {
    trace.open("aten::mm", "cpu_op",
               shapes("[[64, 32], [32, 16]]", R"(["c10::BFloat16", "c10::BFloat16"])"));
    trace.kernel("gemm", 5).close();
    trace.open("aten::cat", "cpu_op", shapes("[[[10], [20]], []]", R"([["float", "float"], ""])"));
    trace.kernel("CatArrayBatchedCopy", 5).close();
    trace.open("record_param_comms");
    trace.kernel(
        "ncclDevKernel_AllGather", 9, 20,
        R"("Collective name": "_allgather_base", "In msg nelems": 10, "Out msg nelems": 20, "Group size": 2, "dtype": "Float", "Process Group Ranks": "[0, 1]")");
    trace.close();
  }
  return trace.close().text();
}

/// Flips, deletes, repeats or replaces bytes, with a liking for what JSON is made of.
std::string mutated(std::string text, std::mt19937& random) {
  static constexpr std::string_view kLoved = "{}[]\",:\\-0129eE.\0\n\xff";
  const auto pick = [&](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  for (std::size_t edits = 1 + pick(6); edits > 0 && !text.empty(); --edits) {
    const std::size_t at = pick(text.size());
    switch (pick(5)) {
      case 0:
        text[at] = kLoved[pick(kLoved.size())];
        break;
      case 1:
        text.erase(at, 1 + pick(40));
        break;
      case 2:
        text.insert(at, text.substr(pick(text.size()), 1 + pick(200)));
        break;
      case 3:
        text.resize(at);
        break;
      default:
        text.insert(at, std::to_string(random() * 4000000007ULL));
    }
  }
  return text;
}

void import_anything(const std::filesystem::path& file) {
  try {
    const ObservationSet set = import_observations({file});
    for (const Observation& seen : set.observations) {
      ASSERT_GT(seen.seconds, 0);
      ASSERT_GE(seen.contended, 0);
      ASSERT_LE(seen.contended, 1);
      ASSERT_GE(seen.ranks, 1);
      ASSERT_GE(seen.nodes, 1);
      ASSERT_LT(seen.source, static_cast<std::int32_t>(set.sources.size()));
      ASSERT_LT(seen.unit, static_cast<std::int32_t>(set.units.size()));
      if (seen.work.kind == WorkKind::kGemm) {
        ASSERT_GT(seen.work.m, 0);
      }
      if (seen.work.kind == WorkKind::kMemory) {
        ASSERT_GT(seen.work.bytes, 0);
      }
    }
  } catch (const Error& error) {
    ASSERT_GT(std::string(error.what()).size(), 20U);
  }
}

TEST(ImportFuzz, MutatedTraces) {
  const testing::TempFolder folder;
  const std::string text = small_trace();
  std::mt19937 random(1);
  for (int i = 0; i < 1500; ++i) {
    import_anything(write_text(folder.path() / "t.json", mutated(text, random)));
  }
}

TEST(ImportFuzz, MutatedArchives) {
  const testing::TempFolder folder;
  const auto file = write_gzip(folder.path() / "t.json.gz", small_trace());
  std::ifstream in(file, std::ios::binary);
  const std::string packed((std::istreambuf_iterator<char>(in)), {});
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    import_anything(write_text(folder.path() / "m.json.gz", mutated(packed, random)));
  }
}

TEST(ImportFuzz, MutatedLogs) {
  const testing::TempFolder folder;
  std::string text =
      "# nThread 1 nGpus 2 minBytes 8 maxBytes 8\n# Collective test starting: all_gather_perf\n";
  text +=
      "# Using devices\n#  Rank  0 Group  0 Pid 1 on a device 0 [0x1] GPU\n#  Rank  1 Group  0 Pid "
      "1 on a device 1 [0x2] GPU\n";
  text += "  1048576  65536  half  none  -1  25.2  41.6  36.4  0  26.2  40.0  35.0  0\n";
  std::mt19937 random(3);
  for (int i = 0; i < 1000; ++i) {
    import_anything(write_text(folder.path() / "log.txt", mutated(text, random)));
  }
}

TEST(ImportFuzz, NestingThatNeverEnds) {
  const testing::TempFolder folder;
  std::string deep = R"({"traceEvents": [{"ph": "X", "args": )";
  deep.append(3'000'000, '[');
  import_anything(write_text(folder.path() / "deep.json", deep));
  KinetoText nested;
  for (int i = 0; i < 20000; ++i) nested.open("f");
  for (int i = 0; i < 20000; ++i) nested.kernel("k", 1).close();
  import_anything(write_text(folder.path() / "nested.json", nested.text()));
}

TEST(ImportFuzz, AnEventLargerThanTheWindowIsPassedOver) {
  const testing::TempFolder folder;
  const std::string huge(300'000, 'x');
  const auto file =
      write_text(folder.path() / "t.json",
                 R"({"a": ")" + huge + R"(", "traceEvents": [{"ph": "X", "name": ")" + huge +
                     R"("}, {"ph": "X", "name": "small"}], "z": [)" + huge + "]}");
  ByteStream stream(file);
  TraceReader reader(stream, 64 << 10);
  int events = 0;
  for (auto item = reader.next(); item != TraceReader::Item::kEnd; item = reader.next()) {
    ASSERT_EQ(item, TraceReader::Item::kEvent);
    EXPECT_EQ(reader.event().text("name"), "small");
    ++events;
  }
  EXPECT_EQ(events, 1);
  EXPECT_EQ(reader.skipped(), 3);
  EXPECT_FALSE(reader.truncated());
  EXPECT_EQ(reader.problem(), "");
}

TEST(ImportFuzz, TheWindowMayEndAnywhere) {
  const testing::TempFolder folder;
  const std::string text = small_trace();
  const auto file = write_text(folder.path() / "t.json", text);
  for (std::size_t window = 700; window < 1200; window += 7) {
    ByteStream stream(file);
    TraceReader reader(stream, window);
    int events = 0;
    for (auto item = reader.next(); item != TraceReader::Item::kEnd; item = reader.next()) {
      events += item == TraceReader::Item::kEvent;
    }
    EXPECT_EQ(events, 37) << window;
    EXPECT_FALSE(reader.truncated());
  }
}

}  // namespace
}  // namespace shardwright::profiles
