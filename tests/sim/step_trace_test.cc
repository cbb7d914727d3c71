// SPDX-License-Identifier: Apache-2.0
// Guards the one reader of own traces: what was written is read back as it was, and whatever a
// stranger's file holds is an Error that names it, or a trace.
#include "sim/trace/step_trace.h"

#include <nlohmann/json.hpp>

#include "sim/core/base/atomic_file.h"
#include "sim/core/chrome_trace.h"
#include "sim/trace/observations.h"
#include "sim/trace/step_summary.h"
#include "sim/trace/trace_comparison.h"
#include "tests/profiles/kineto_text.h"
#include "tests/sim/prediction.h"
#include "tests/support/files.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_models.h"

namespace shardwright::sim {

namespace {

using nlohmann::json;
using testing::get;
namespace fs = std::filesystem;

/// Two ranks and two steps of a plan.
class StepTraceTest : public ::testing::Test {
 protected:
  StepTraceTest() {
    const fs::path config = profiles::data_dir() / "examples" / "tiny-llama.json";
    identity_ = {config.string(), get(config), testing::tiny_plan(Strategy::kYafsdp, 2), 2};
    schedule_ = executed_step(model_of(identity_, "test"), identity_.plan,
                              profiles::load_stack(identity_.plan.stack).stack, 2)
                    .stages.front();
    timeline_.source = "measured";
    for (const Stream& stream : schedule_.streams) timeline_.streams.emplace_back(stream.name);
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      for (std::int32_t step = 3; step < 5; ++step) {
        Nanoseconds at = step * 10'000'000 + rank * 17;
        for_each_op(schedule_, [&](const OpInstance& instance, const Op& op) {
          Span span;
          span.id = instance.id;
          span.rank = rank;
          span.step = step;
          span.begin_ns = at;
          span.end_ns = at += 1001;
          timeline_.host.push_back(span);
          span.stream = op.stream;
          if (op.work.kind != WorkKind::kHost) timeline_.spans.push_back(span);
        });
      }
    }
    timeline_.memory = {{0, 100, 200}, {5, 150, 200}, {7, 150, 300}};
  }

  fs::path written(TraceNotes more = {}) const {
    TraceNotes notes = notes_of(identity_);
    notes.insert(notes.end(), more.begin(), more.end());
    const fs::path path = testing::temp_folder() / "step_trace.json";
    write_chrome_trace(path, std::vector<TracedTimeline>{{"measured", &schedule_, &timeline_}},
                       notes);
    return path;
  }

  /// The written trace with one event or note changed.
  fs::path changed(const std::function<void(json& document)>& change) const {
    json document = json::parse(get(written()));
    change(document);
    const fs::path path = testing::temp_folder() / "changed.json";
    write_file_atomically(path, document.dump());
    return path;
  }

  static json& first_slice(json& document) {
    for (json& event : document["traceEvents"]) {
      if (event["ph"] == "X") return event;
    }
    throw std::runtime_error("no slice");
  }

  TraceIdentity identity_;
  Schedule schedule_;
  Timeline timeline_;
};

TEST_F(StepTraceTest, ReadsBackWhatWasWritten) {
  const TraceOrigin origin{"host", "EPYC",       8,       1 << 30,    1, "inline",
                           "s 1",  "2026-11-22", "local", {0.5, 0.25}};
  const fs::path plain = written(notes_of(origin));
  const fs::path packed = profiles::write_gzip(testing::temp_folder() / "t.json.gz", get(plain));
  for (const fs::path& file : {plain, packed}) {
    const StepTrace trace = read_step_trace(file);
    EXPECT_EQ(trace.name, file.string());
    EXPECT_EQ(trace.identity->plan, identity_.plan);
    EXPECT_EQ(trace.origin.device_name, "EPYC");
    EXPECT_EQ(trace.origin.units, 8);
    EXPECT_EQ(trace.origin.transport, "local");
    EXPECT_THAT(trace.origin.step_s, ElementsAre(0.5, 0.25));
    ASSERT_EQ(trace.timeline.spans.size(), timeline_.spans.size());
    ASSERT_EQ(trace.timeline.host.size(), timeline_.host.size());
    for (std::size_t i = 0; i < timeline_.spans.size(); ++i) {
      const Span &a = trace.timeline.spans[i], &b = timeline_.spans[i];
      EXPECT_EQ(std::tie(a.id, a.rank, a.step, a.begin_ns, a.end_ns),
                std::tie(b.id, b.rank, b.step, b.begin_ns, b.end_ns));
      EXPECT_EQ(trace.timeline.streams[a.stream], timeline_.streams[b.stream]);
      EXPECT_EQ(trace.roles[a.stream], schedule_.streams[b.stream].role);
    }
    std::size_t memory = 0;
    for (const MemorySample& sample : trace.timeline.memory) {
      ASSERT_LT(memory, timeline_.memory.size());
      EXPECT_EQ(sample.at_ns, timeline_.memory[memory].at_ns);
      EXPECT_EQ(sample.allocated_bytes, timeline_.memory[memory].allocated_bytes);
      EXPECT_EQ(sample.reserved_bytes, timeline_.memory[memory++].reserved_bytes);
    }
    EXPECT_EQ(memory, 3U);
    EXPECT_EQ(lanes_of(trace.timeline).size(), 4U) << "two ranks in two steps";
    EXPECT_NO_THROW(schedules_of(trace));
  }
}

TEST_F(StepTraceTest, IsTheSameFromMemoryAndFromAFile) {
  const StepTrace read = read_step_trace(written());
  const StepTrace made = step_trace_of({&schedule_, 1}, timeline_, "made");
  ASSERT_EQ(read.operations.size(), made.operations.size());
  for (const auto& [id, operation] : made.operations) {
    const TracedOperation& other = read.operations.at(id);
    EXPECT_EQ(other.name, operation.name);
    EXPECT_EQ(other.kind, operation.kind);
    EXPECT_EQ(other.phase, operation.phase);
    EXPECT_EQ(other.layer, operation.layer) << operation.name;
    EXPECT_EQ(other.group.has_value(), operation.group.has_value()) << operation.name;
  }
  const TraceComparison comparison = compare_traces(made, read);
  ASSERT_FALSE(comparison.operations.empty());
  for (const ComparedOperation& operation : comparison.operations) {
    EXPECT_EQ(operation.difference_s(), 0) << operation.name;
  }
}

TEST_F(StepTraceTest, TellsTheHostAndStreamsByTheirRoleOrInOldTracesByWhatTheyAre) {
  const StepTrace whole = read_step_trace(written());
  const auto renamed = [](json& document) {
    for (json& event : document["traceEvents"]) {
      if (event["name"] == "thread_name" && event["args"]["role"] == "host") {
        event["args"]["name"] = "processor";
      }
    }
  };
  EXPECT_EQ(read_step_trace(changed(renamed)).timeline.host.size(), whole.timeline.host.size());
  const StepTrace old = read_step_trace(changed([](json& document) {
    for (json& event : document["traceEvents"]) {
      if (event["name"] == "thread_name") event["args"].erase("role");
    }
  }));
  EXPECT_EQ(old.timeline.host.size(), whole.timeline.host.size());
  ASSERT_EQ(old.roles.size(), whole.roles.size());
  const auto compute = std::find(old.roles.begin(), old.roles.end(), StreamRole::kCompute);
  ASSERT_NE(compute, old.roles.end());
  EXPECT_EQ(whole.roles[static_cast<std::size_t>(compute - old.roles.begin())],
            StreamRole::kCompute);
}

TEST_F(StepTraceTest, TakesTheFirstOfSeveralTimelines) {
  Timeline predicted = timeline_;
  predicted.memory.clear();
  const fs::path path = testing::temp_folder() / "two.json";
  write_chrome_trace(path,
                     std::vector<TracedTimeline>{{"first", &schedule_, &predicted},
                                                 {"second", &schedule_, &timeline_}},
                     {});
  const StepTrace trace = read_step_trace(path);
  EXPECT_EQ(trace.timeline.source, "first");
  EXPECT_EQ(trace.timeline.spans.size(), timeline_.spans.size());
  ASSERT_EQ(trace.left_out.size(), 1U);
  EXPECT_THAT(trace.left_out[0], HasSubstr("'second'"));
}

TEST_F(StepTraceTest, RefusesWhatIsNoStep) {
  const auto said = [&](const std::function<void(json&)>& change) {
    const fs::path path = changed(change);
    const std::string sentence = refusal_of([&] { read_step_trace(path); });
    EXPECT_THAT(sentence, HasSubstr(path.string()));
    return sentence;
  };
  EXPECT_THAT(said([](json& d) { first_slice(d)["args"]["kind"] = "sorcery"; }),
              HasSubstr("'sorcery'"));
  EXPECT_THAT(said([](json& d) { first_slice(d)["args"]["phase"] = "?"; }), HasSubstr("phase"));
  EXPECT_THAT(said([](json& d) { first_slice(d)["name"] = "layer9.forward.norm"; }),
              HasSubstr("is both"));
  EXPECT_THAT(said([](json& d) { first_slice(d)["ts"] = 1e300; }), HasSubstr("1e+300"));
  EXPECT_THAT(said([](json& d) { first_slice(d)["dur"] = -1e300; }), HasSubstr("dur"));
  EXPECT_THAT(said([](json& d) { first_slice(d)["dur"] = -0.5; }), HasSubstr("dur is -500 ns"));
  EXPECT_THAT(said([](json& d) { first_slice(d)["args"]["step"] = -1; }), HasSubstr("step -1"));
  EXPECT_THAT(said([](json& d) { first_slice(d)["args"]["step"] = std::int64_t{1} << 40; }),
              HasSubstr("step 1099511627776"));
  EXPECT_THAT(said([](json& d) { d["traceEvents"] = json::array(); }), HasSubstr("no slice"));
  EXPECT_THAT(said([](json& d) { d["otherData"]["plan"] = "{"; }), HasSubstr("note plan"));
  EXPECT_THAT(said([](json& d) {
                for (json& event : d["traceEvents"]) {
                  if (event["name"] == "process_name") event["args"]["name"] = "x, rank 1";
                }
              }),
              HasSubstr("two processes are rank 1"));
}

TEST_F(StepTraceTest, RefusesAnIdentityThatIsNotTheTraces) {
  const auto said = [&](const std::function<void(json&)>& change) {
    const StepTrace trace = read_step_trace(changed(change));
    return refusal_of([&] { schedules_of(trace); });
  };
  const auto plan_with = [](json& document, const char* key, const json& value) {
    json plan = json::parse(document["otherData"]["plan"].get<std::string>());
    plan[key] = value;
    document["otherData"]["plan"] = plan.dump();
  };
  EXPECT_THAT(said([&](json& d) { plan_with(d, "strategy", "ddp"); }),
              HasSubstr("written by another version"));
  EXPECT_THAT(said([](json& d) { d["otherData"]["model_config"] = "{}"; }),
              HasSubstr("model_config"));
  EXPECT_THAT(said([](json& d) { d["otherData"].erase("plan"); }), HasSubstr("no plan"));
}

// 10^6 micro-batches of 16384 layers would fill 12 GB before the first name is held against it.
TEST_F(StepTraceTest, RefusesAPlanOfFarMoreOperationsThanSlices) {
  const StepTrace trace = read_step_trace(changed([](json& d) {
    json plan = json::parse(d["otherData"]["plan"].get<std::string>());
    plan["grad_accum"] = 1'000'000;
    d["otherData"]["plan"] = plan.dump();
    json config = json::parse(d["otherData"]["model_config"].get<std::string>());
    config["num_hidden_layers"] = 16384;
    d["otherData"]["model_config"] = config.dump();
  }));
  EXPECT_THAT(refusal_of([&] { observations_of(trace); }), HasSubstr("operations a step"));
}

TEST_F(StepTraceTest, TracesOfOneModelAreTold) {
  StepTrace trace = step_trace_of({&schedule_, 1}, timeline_, "mine");
  StepTrace other = trace;
  EXPECT_NO_THROW(expect_same_model(trace, other)) << "neither says";
  trace.identity = other.identity = identity_;
  json config = json::parse(identity_.model_config);
  config["transformers_version"] = "4.0";
  other.identity->model_config = config.dump();
  other.identity->model = "another name";
  EXPECT_NO_THROW(expect_same_model(trace, other)) << "what does not shape the model may differ";
  config["vocab_size"] = 512;
  other.identity->model_config = config.dump();
  other.name = "theirs";
  const std::string said = refusal_of([&] { expect_same_model(trace, other); });
  EXPECT_THAT(said, HasSubstr("mine: is of"));
  EXPECT_THAT(said, HasSubstr("vocabulary of 512"));
}

TEST_F(StepTraceTest, CutFilesAreRefused) {
  const std::string text = get(written());
  const fs::path path = testing::temp_folder() / "cut.json";
  for (std::size_t length = 0; length < text.size() - 3; length += 1 + text.size() / 17) {
    write_file_atomically(path, text.substr(0, length));
    EXPECT_THAT(refusal_of([&] { read_step_trace(path); }), HasSubstr(path.string()));
  }
  const fs::path packed = profiles::write_gzip(testing::temp_folder() / "whole.json.gz", text);
  const std::string bytes = get(packed);
  write_file_atomically(packed, bytes.substr(0, bytes.size() / 2));
  EXPECT_THAT(refusal_of([&] { read_step_trace(packed); }), HasSubstr("ends early or is damaged"));
}

// Deterministic flips of bytes all over the file: an Error that names the file, or a trace whose
// parts fit together.
TEST_F(StepTraceTest, FlippedBytesAreRefusedOrRead) {
  const std::string text = get(written());
  const fs::path path = testing::temp_folder() / "flipped.json";
  std::mt19937 random(3);
  std::size_t refused = 0, read = 0;
  for (int trial = 0; trial < 120; ++trial) {
    std::string flipped = text;
    for (int flips = 0; flips <= trial % 4; ++flips) {
      char& byte = flipped[random() % flipped.size()];
      byte = static_cast<char>(byte ^ (1 << random() % 8));
    }
    write_file_atomically(path, flipped);
    try {
      const StepTrace trace = read_step_trace(path);
      summary_of(trace);
      ++read;
      if (trace.identity) {
        EXPECT_FALSE(observations_of(trace).observations.empty());
      }
    } catch (const Error& error) {
      EXPECT_FALSE(std::string(error.what()).empty());
      ++refused;
    }
  }
  EXPECT_GT(refused, 10U);
  EXPECT_GT(read, 10U);
}

TEST(MergeChromeTraces, KeepsProcessesAndFlowsOfStrangersApart) {
  const auto file = [](const char* name, const std::string& text) {
    const fs::path path = testing::temp_folder() / name;
    write_file_atomically(path, text);
    return path;
  };
  const fs::path a = file("a.json", R"([{"ph":"X","pid":-5,"id":-1},{"ph":"X","pid":7,"id":9},
      {"ph":"M","pid":9223372036854775807,"id":9223372036854775807,"name":"process_name",
       "args":{"name":"far"}}])");
  const fs::path b = file("b.json", R"({"traceEvents":[{"ph":"X","pid":7,"id":9}]})");
  const fs::path both = testing::temp_folder() / "both.json";
  merge_chrome_traces({a, b}, {"one", "two"}, both);
  const json merged = json::parse(get(both));
  std::vector<std::int64_t> processes, flows;
  for (const json& event : merged["traceEvents"]) {
    processes.push_back(event["pid"]);
    flows.push_back(event["id"]);
  }
  EXPECT_THAT(processes, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(flows, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(merged["traceEvents"][2]["args"]["name"], "one: far");
}

const profiles::SeenGpu kH200{"NVIDIA H200", 132, Bytes{139} << 30};

TEST(Utilisation, KnowsGpusByNameSizeAndUnits) {
  const auto id = [](const char* name, double gib, int units) {
    const auto gpu = profiles::known_gpu({name, units, static_cast<Bytes>(gib * (1 << 30))});
    return gpu ? gpu->id : std::string();
  };
  EXPECT_EQ(id("NVIDIA H200", 139.8, 132), "h200");
  EXPECT_EQ(id("NVIDIA H100 80GB HBM3", 79.1, 132), "h100-80g");
  EXPECT_EQ(id("NVIDIA A100-SXM4-80GB", 79.1, 108), "a100-80g");
  EXPECT_EQ(id("NVIDIA A100 80GB PCIe", 79.1, 108), "a100-pcie-80g");
  EXPECT_EQ(id("NVIDIA GeForce RTX 3060", 12, 28), "");
}

TEST(Utilisation, CountsTheGpusThatAreUsed) {
  const auto model = shardwright::testing::tiny_llama();
  auto plan = shardwright::testing::tiny_plan(Strategy::kYafsdp, 4);
  plan.param_dtype = DType::kBf16;
  const Utilisation shared = utilisation_of(model, plan, UsedGpus{kH200, 1});
  const Utilisation own = utilisation_of(model, plan, UsedGpus{kH200, 8});
  ASSERT_TRUE(shared.mfu(1.0) && own.mfu(1.0));
  EXPECT_DOUBLE_EQ(*shared.mfu(1.0), 4 * *own.mfu(1.0));
  EXPECT_DOUBLE_EQ(shared.peak_flops, 9.894e14);
  EXPECT_FALSE(shared.of_products(1.0)) << "nothing was measured";
  EXPECT_FALSE(utilisation_of(model, plan, {}).mfu(1.0)) << "the host has no data sheet";
  EXPECT_EQ(own.basis, "4 x NVIDIA H200, 989 TFLOP/s dense bf16 each");
  plan.numerics.precision = Precision::kFp8;
  const Utilisation fp8 = utilisation_of(model, plan, UsedGpus{kH200, 8});
  EXPECT_DOUBLE_EQ(fp8.peak_flops, 4 * 1.9789e15);
  EXPECT_EQ(fp8.basis, "4 x NVIDIA H200, 1979 TFLOP/s dense fp8 each");
}

}  // namespace

}  // namespace shardwright::sim
