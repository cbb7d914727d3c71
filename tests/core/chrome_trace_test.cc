// SPDX-License-Identifier: Apache-2.0
#include "sim/core/chrome_trace.h"

#include <map>

#include "tests/core/common.h"

namespace shardwright {
namespace {

enum Event : std::uint8_t { kGathered = 1 };

Op kernel(Phase phase) {
  Op op;
  op.kind = OpKind::kNorm;
  op.phase = phase;
  op.work = {.kind = WorkKind::kMemory, .bytes = 1000};
  return op;
}

/// Two layers: the communication stream gathers, the compute stream waits and runs two kernels.
Schedule two_layers(std::int32_t micro_steps = 1) {
  Schedule schedule;
  schedule.streams = {{.name = "compute"}, {.name = "communication"}};
  Op gather;
  gather.kind = OpKind::kAllGather;
  gather.stream = 1;
  gather.record = {kGathered, 0};
  gather.work = {.kind = WorkKind::kCollective, .bytes = 4096};
  Op wait;
  wait.kind = OpKind::kHostWork;
  wait.waits[0] = {kGathered, 0};
  schedule.ops = {gather, wait, kernel(Phase::kForward), kernel(Phase::kForward)};
  schedule.blocks = {{.op_count = 4, .first_unit = 1, .repeats = 2}};
  schedule.sections = {{.block_count = 1, .repeats = micro_steps}};
  schedule.event_names = {"", "gathered"};
  schedule.layers = 2;
  return schedule;
}

/// Gathers of 10 ns, kernels of 5 ns behind them; ids 0..3 and 4..7.
Timeline timeline_of_two_layers() {
  Timeline timeline;
  timeline.streams = {"compute", "communication"};
  for (const OpId base : {0, 4}) {
    const Nanoseconds at = base * 5;
    timeline.spans.push_back({.id = base, .stream = 1, .begin_ns = at, .end_ns = at + 10});
    timeline.spans.push_back({.id = base + 2, .begin_ns = at + 10, .end_ns = at + 15});
    timeline.spans.push_back({.id = base + 3, .begin_ns = at + 15, .end_ns = at + 20});
    timeline.host.push_back({.id = base, .begin_ns = at, .end_ns = at + 1});
  }
  timeline.memory = {{0, 100, 200}, {5, 100, 300}, {7, 150, 300}};
  timeline.step_ns = 40;
  return timeline;
}

json written(std::span<const TracedTimeline> timelines,
             const std::vector<std::pair<std::string, std::string>>& notes = {}) {
  const std::string path =
      (shardwright::testing::temp_folder() / "chrome_trace_test.json").string();
  write_chrome_trace(path, timelines, notes);
  std::ifstream in(path);
  return json::parse(in);
}

std::vector<json> events(const json& trace, const std::string& kind, const std::string& name = "") {
  std::vector<json> found;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == kind && (name.empty() || event.at("name") == name)) {
      found.push_back(event);
    }
  }
  return found;
}

TEST(GatherUses, AreTheFirstKernelsThatWait) {
  const std::vector<GatherUse> uses = gather_uses(two_layers());
  ASSERT_EQ(uses.size(), 2U);
  EXPECT_EQ(uses[0].gather, 0);
  EXPECT_EQ(uses[0].use, 2);  // the wait itself runs nothing
  EXPECT_EQ(uses[1].gather, 4);
  EXPECT_EQ(uses[1].use, 6);
}

TEST(GatherUses, AreFoundInEveryMicroStep) {
  const std::vector<GatherUse> uses = gather_uses(two_layers(3));
  ASSERT_EQ(uses.size(), 6U);
  EXPECT_EQ(uses.back().gather, 20);
  EXPECT_EQ(uses.back().use, 22);
}

// FSDP2 unpacks on the stream that gathered: no event stands between.
TEST(GatherUses, SeeUnpackingOnTheSameStream) {
  Schedule schedule = two_layers();
  Op unpack = kernel(Phase::kForward);
  unpack.kind = OpKind::kCopyOut;
  unpack.stream = 1;
  schedule.ops[1] = unpack;
  const std::vector<GatherUse> uses = gather_uses(schedule);
  ASSERT_EQ(uses.size(), 2U);
  EXPECT_EQ(uses[0].use, 1);
}

TEST(GatherUses, LeaveOutWhatNothingWaitsFor) {
  Schedule schedule = two_layers();
  schedule.ops[1].waits[0] = {};
  EXPECT_TRUE(gather_uses(schedule).empty());
}

TEST(ChromeTrace, HasATrackForTheHostAndEachStream) {
  const Schedule schedule = two_layers();
  const Timeline timeline = timeline_of_two_layers();
  const json trace = written(std::vector<TracedTimeline>{{"predicted", &schedule, &timeline}});
  std::vector<std::string> tracks;
  for (const json& event : not_empty(events(trace, "M", "thread_name"))) {
    tracks.push_back(event.at("args").at("name"));
  }
  EXPECT_THAT(tracks, ::testing::ElementsAre("host", "compute", "communication"));
  EXPECT_EQ(events(trace, "M", "process_name")[0].at("args").at("name"), "predicted");
  EXPECT_EQ(events(trace, "X").size(), 8U);
}

TEST(ChromeTrace, SlicesSayWhatTheyAre) {
  const Schedule schedule = two_layers();
  const Timeline timeline = timeline_of_two_layers();
  const json trace = written(std::vector<TracedTimeline>{{"predicted", &schedule, &timeline}});
  const json slice = events(trace, "X", "layer1.forward.norm").at(0);
  EXPECT_EQ(slice.at("ts"), 0.03);  // 30 ns
  EXPECT_EQ(slice.at("dur"), 0.005);
  EXPECT_EQ(slice.at("cat"), "forward");
  EXPECT_EQ(slice.at("args"), R"({"id": 6, "unit": "layer1", "phase": "forward",
      "kind": "norm", "micro_step": 0, "bytes": 1000})"_json);
}

TEST(ChromeTrace, KeepsEveryNanosecondOfALongStep) {
  const Schedule schedule = two_layers();
  Timeline timeline;
  timeline.streams = {"compute"};
  timeline.spans = {{.id = 2, .begin_ns = 299'700'000'000'001, .end_ns = 299'700'000'001'003}};
  const std::string path = (shardwright::testing::temp_folder() / "long_trace.json").string();
  write_chrome_trace(path, std::vector<TracedTimeline>{{"predicted", &schedule, &timeline}});
  std::ifstream in(path);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  EXPECT_THAT(text, ::testing::HasSubstr("\"ts\":299700000000.001,\"dur\":1.002"));
}

TEST(ChromeTrace, FlowsTieGathersToTheirFirstUse) {
  const Schedule schedule = two_layers();
  const Timeline timeline = timeline_of_two_layers();
  const json trace = written(std::vector<TracedTimeline>{{"predicted", &schedule, &timeline}});
  std::map<int, json> starts, ends;
  for (const json& event : events(trace, "s")) starts[event.at("id")] = event;
  for (const json& event : events(trace, "f")) ends[event.at("id")] = event;
  ASSERT_EQ(starts.size(), 2U);
  ASSERT_EQ(ends.size(), 2U);
  for (const auto& [id, start] : starts) {
    EXPECT_EQ(start.at("tid"), 3);  // communication
    EXPECT_EQ(ends.at(id).at("tid"), 2);
    EXPECT_EQ(ends.at(id).at("bp"), "e");
    EXPECT_NEAR(ends.at(id).at("ts").get<double>() - start.at("ts").get<double>(), 0.01, 1e-12);
  }
}

TEST(ChromeTrace, CountsMemoryAndBytesInFlight) {
  const Schedule schedule = two_layers();
  const Timeline timeline = timeline_of_two_layers();
  const json trace = written(std::vector<TracedTimeline>{{"predicted", &schedule, &timeline}});
  const auto values = [&](const char* name) {
    std::vector<std::pair<double, Bytes>> found;
    for (const json& event : not_empty(events(trace, "C", name))) {
      found.emplace_back(event.at("ts"), event.at("args").at("bytes"));
    }
    return found;
  };
  using Values = std::vector<std::pair<double, Bytes>>;
  EXPECT_EQ(values("memory allocated"), (Values{{0, 100}, {0.007, 150}}));
  EXPECT_EQ(values("memory reserved"), (Values{{0, 200}, {0.005, 300}}));
  EXPECT_EQ(values("bytes in flight"), (Values{{0, 4096}, {0.01, 0}, {0.02, 4096}, {0.03, 0}}));
}

// compare puts predicted above measured; measured has ranks, steps and kernels nobody predicted.
TEST(ChromeTrace, GivesEveryRankOfEveryTimelineAProcess) {
  const Schedule schedule = two_layers();
  const Timeline predicted = timeline_of_two_layers();
  Timeline measured = timeline_of_two_layers();
  measured.names = {"ampere \"gemm\" \x01 \xff"};
  measured.spans.push_back({.id = -1, .rank = 1, .step = 7, .begin_ns = 3, .end_ns = 4, .name = 0});
  const json trace = written(std::vector<TracedTimeline>{{"predicted", &schedule, &predicted},
                                                         {"measured", &schedule, &measured}},
                             {{"model", "a \"name\""}});
  std::vector<std::string> titles;
  for (const json& event : not_empty(events(trace, "M", "process_name"))) {
    titles.push_back(event.at("args").at("name"));
  }
  EXPECT_THAT(titles, ::testing::ElementsAre("predicted", "measured, rank 0", "measured, rank 1"));
  EXPECT_EQ(events(trace, "s").size(), 4U);
  const json foreign = events(trace, "X").back();
  EXPECT_EQ(foreign.at("pid"), 3);
  EXPECT_EQ(foreign.at("args"), (json{{"step", 7}}));
  EXPECT_EQ(trace.at("otherData").at("model"), "a \"name\"");
}

// Slices that are compared keep the operation's name; a kernel or a call is said beside it.
TEST(ChromeTrace, NamesKernelsAndCallsBesideTheirOperation) {
  const Schedule schedule = two_layers();
  Timeline measured;
  measured.streams = {"compute", "communication"};
  measured.names = {"gemm", "cudaLaunchKernel"};
  measured.spans = {{.id = 0, .begin_ns = 1, .end_ns = 2, .name = 0}};
  measured.host = {{.id = 0, .begin_ns = 0, .end_ns = 1},
                   {.id = 0, .begin_ns = 0, .end_ns = 1, .name = 1}};
  const json trace = written(std::vector<TracedTimeline>{{"measured", &schedule, &measured}}, {});
  const auto slices = events(trace, "X");
  ASSERT_EQ(slices.size(), 3U);
  EXPECT_EQ(slices[1].at("name"), "cudaLaunchKernel");
  EXPECT_EQ(slices[1].at("args"), (json{{"op", 0}}));
  EXPECT_EQ(slices[2].at("name"), slices[0].at("name"));
  EXPECT_EQ(slices[2].at("args").at("id"), 0);
  EXPECT_EQ(slices[2].at("args").at("kernel"), "gemm");
}

TEST(ChromeTrace, SaysWhichFileItCannotWrite) {
  const Schedule schedule = two_layers();
  const Timeline timeline;
  EXPECT_THROW(write_chrome_trace("/nonexistent/trace.json",
                                  std::vector<TracedTimeline>{{"p", &schedule, &timeline}}),
               Error);
}

}  // namespace
}  // namespace shardwright
