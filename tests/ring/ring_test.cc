// SPDX-License-Identifier: Apache-2.0
// Guards the ring as a user closes it without a GPU: trace, calibrate, predict something else. The
// machine is synthetic: a profile holds its true values, and the traces are what the simulator says
// of it, signed as the executor signs its own and disturbed as real ones are. No clock is read, so
// the tolerance is fixed and nothing depends on what else runs. scripts/ring_check closes the same
// ring with real steps of this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <random>

#include "profiles/data_file.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace shardwright {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing::ProgramResult;
using Words = std::vector<std::string>;

constexpr double kTolerance = 0.05;
constexpr double kFromTheTruth =
    0.15;  // how far off the profile that calibration begins with must be

std::string example(const std::string& name) {
  return (profiles::data_dir() / "examples" / name).string();
}

Words tiny(const std::string& ranks, const std::string& strategy) {
  return {"--model",       example("tiny-llama.json"),
          "--gpus",        ranks,
          "--strategy",    strategy,
          "--seq-len",     "128",
          "--micro-batch", "4",
          "--param-dtype", "fp32"};
}

/// Another model, sequences in a micro-batch and checkpointing.
Words small(const std::string& ranks, const std::string& strategy) {
  return {"--model",       example("small-llama.json"),
          "--gpus",        ranks,
          "--strategy",    strategy,
          "--seq-len",     "128",
          "--micro-batch", "2",
          "--ckpt-layers", "all",
          "--param-dtype", "fp32"};
}

class RingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Json truth = read(profiles::data_dir() / "clusters" / "host.json");
    truth["id"] = "synthetic";
    for (const auto& [path, value] :
         std::map<std::string, double>{{"cost.gemm.e", 0.35},
                                       {"cost.memory.stream_efficiency", 0.55},
                                       {"cost.attention.fa2.forward_flops", 3e11},
                                       {"cost.attention.fa2.backward_flops", 2e11},
                                       {"stack.norm.forward_efficiency", 1.5},
                                       {"stack.gated_activation.forward_efficiency", 1.4},
                                       {"stack.optimizer.efficiency", 4.5},
                                       {"stack.host.forward_launch_s", 1e-6},
                                       {"stack.host.backward_launch_s", 1e-6}}) {
      Json& entry = truth["set"][path];
      entry["value"] = value;
      entry["source"] = "synthetic";
      entry["confidence"] = "low";
      if (path.ends_with("_flops")) entry["unit"] = "flop/s";
    }
    write("truth.json", truth);
  }

  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  static Json read(const fs::path& path) {
    std::ifstream in(path);
    return Json::parse(in);
  }
  void write(const std::string& name, const Json& document) const {
    std::ofstream(folder_ / name) << document;
  }
  static ProgramResult run(Words words) {
    words.insert(words.begin(), SHARDWRIGHT_BINARY);
    ProgramResult result = testing::run_program(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }

  double predicted(const std::string& cluster, const Words& flags) const {
    Words words{"predict", "--json", "--cluster", cluster};
    words.insert(words.end(), flags.begin(), flags.end());
    const ProgramResult result = run(words);
    return result.exit_code == 0 ? Json::parse(result.out).at("iteration_time_s").get<double>() : 0;
  }

  /// A step on the synthetic machine as a trace of the executor.
  Json trace_of(const Words& flags, const std::string& ranks) const {
    Words words{"predict", "--cluster", at("truth.json"), "--trace", at("trace.json")};
    words.insert(words.end(), flags.begin(), flags.end());
    run(words);
    Json trace = read(folder_ / "trace.json");
    trace["otherData"].update(Json{{"tool", "shardwright run"},
                                   {"device", "host"},
                                   {"device_name", "synthetic"},
                                   {"device_units", "8"},
                                   {"devices", "1"},
                                   {"streams", "inline"},
                                   {"ranks", ranks},
                                   {"transport", "local"}});
    for (Json& event : trace["traceEvents"]) {
      if (event["ph"] == "X") event["args"]["step"] = 1;
    }
    return trace;
  }

  void calibrate() const {
    run({"calibrate", "--trace", at("trace.json"), "--base", "host", "--out", at("mine.json")});
  }

  void expect_closed(const Words& flags) const {
    const double truth = predicted(at("truth.json"), flags);
    ASSERT_GT(truth, 0);
    const fs::path generic = profiles::data_dir() / "clusters" / "host.json";
    EXPECT_GT(std::abs(predicted(generic.string(), flags) / truth - 1), kFromTheTruth);
    EXPECT_NEAR(predicted(at("mine.json"), flags) / truth, 1, kTolerance);
  }

  const fs::path folder_ = testing::temp_folder();
};

TEST_F(RingTest, ATraceOfTwoRanksMakesPredictionsOfOtherPlansRight) {
  write("trace.json", trace_of(tiny("2", "zero2"), "2"));
  calibrate();
  expect_closed(tiny("2", "zero2"));
  expect_closed(small("1", "single"));
  expect_closed(small("2", "yafsdp"));
}

/// Several steps after one another, every operation 3 % longer or shorter, one in twenty up to
/// three times as long; what comes later moves. For the trace of one rank.
Json disturbed(const Json& trace, int steps) {
  std::mt19937 random(20);
  const auto uniform = [&] { return (static_cast<double>(random()) + 0.5) / 4294967296.0; };
  Json result = trace;
  Json& events = result["traceEvents"] = Json::array();
  double step_begin_us = 0;
  for (int step = 1; step <= steps; ++step) {
    std::map<std::int64_t, double> factors;
    double moved_us = 0, last_us = 0;
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] != "X" || event["args"]["kind"] == "host_work") continue;
      const auto [at, is_new] = factors.try_emplace(event["args"]["id"].get<std::int64_t>(), 1.0);
      if (!is_new) continue;
      const double gauss =
          std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform());
      at->second = std::exp(0.03 * gauss) * (uniform() < 0.05 ? 1 + 2 * uniform() : 1);
    }
    std::vector<Json> slices;
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] == "X") slices.push_back(event);
      if (event["ph"] == "M" && step == 1) events.push_back(event);
    }
    std::stable_sort(slices.begin(), slices.end(), [](const Json& a, const Json& b) {
      return a["ts"].get<double>() < b["ts"].get<double>();
    });
    std::map<std::int64_t, double>
        moved_at;  // both slices of an operation, the host's and the device's
    for (Json& slice : slices) {
      const auto id = slice["args"]["id"].get<std::int64_t>();
      const double duration_us = slice["dur"].get<double>();
      const double factor = factors.contains(id) ? factors.at(id) : 1;
      const bool is_new = moved_at.try_emplace(id, moved_us).second;
      slice["ts"] = slice["ts"].get<double>() + step_begin_us + moved_at.at(id);
      slice["dur"] = duration_us * factor;
      slice["args"]["step"] = step;
      if (is_new) moved_us += duration_us * (factor - 1);
      last_us = std::max(last_us, slice["ts"].get<double>() + slice["dur"].get<double>());
      events.push_back(slice);
    }
    step_begin_us = last_us + 20;
  }
  return result;
}

TEST_F(RingTest, DisturbedTimingsMakeThemRightAllTheSame) {
  write("trace.json", disturbed(trace_of(tiny("1", "single"), "1"), 8));
  calibrate();
  expect_closed(small("1", "single"));
  expect_closed(small("2", "yafsdp"));
}

TEST_F(RingTest, MeasureWritesAProfileThatPredicts) {
  const ProgramResult measured =
      run({"measure", "--quick", "--device", "host", "--threads", "2", "--model",
           example("tiny-llama.json"), "--out", at("measured.json"), "--json"});
  ASSERT_EQ(measured.exit_code, 0);
  const Json document = Json::parse(measured.out);
  EXPECT_EQ(document.at("schema"), "shardwright.measurement/1.1");
  EXPECT_GT(document.at("observations").get<int>(), 100);
  EXPECT_GT(predicted(at("measured.json"), tiny("2", "zero2")), 0);
}

TEST_F(RingTest, MeasureSaysWhatIsMissingForCuda) {
  const ProgramResult result = testing::run_program(
      {SHARDWRIGHT_BINARY, "measure", "--device", "cuda", "--out", at("none.json")});
  if (result.exit_code == 0) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_FALSE(fs::exists(folder_ / "none.json"));
}

}  // namespace
}  // namespace shardwright
