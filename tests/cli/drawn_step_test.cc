// SPDX-License-Identifier: Apache-2.0
// What a page draws of a trace: one step and one rank of each stage, all of a layer, little of the
// rest.
#include "cli/render/drawn_step.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr Nanoseconds kMs = 1'000'000;

/// Two stages of two ranks; step s takes `lengths[s]` ms a stage, the second stage after the first.
sim::StepTrace pipeline(const std::vector<Nanoseconds>& lengths) {
  sim::StepTrace trace;
  Timeline& timeline = trace.timeline;
  for (const std::int32_t rank : {0, 1, 2, 3}) timeline.stages[rank] = {rank / 2, 1, "a layer"};
  Nanoseconds begin = 0;
  std::int32_t step = 7;
  for (const Nanoseconds length : lengths) {
    for (const std::int32_t rank : {0, 1, 2, 3}) {
      const Nanoseconds from = begin + rank / 2 * length * kMs;
      if (rank >= 2)
        timeline.passes.push_back({StageWork::kBubble, rank, step, -1, -1, begin, from});
      timeline.passes.push_back({StageWork::kForward, rank, step, 0, 5, from, from + length * kMs});
    }
    begin += 2 * length * kMs;
    ++step;
  }
  return trace;
}

TEST(DrawnStep, IsTheStepOfMedianLengthOnOneRankOfEachStage) {
  const Json drawn = drawn_step(pipeline({10, 30, 12}));
  EXPECT_EQ(drawn.at("end_ns"), 24 * kMs);
  ASSERT_EQ(drawn.at("lanes").size(), 2U);
  EXPECT_EQ(drawn.at("operations"),
            Json::parse(R"([["forward", "", "forward 5"], ["bubble", "", "bubble"]])"));
  EXPECT_EQ(drawn.at("lanes")[0].at("spans"), (Json{0, 12 * kMs, 0, -1}));
  EXPECT_EQ(drawn.at("lanes")[1].at("spans"), (Json{0, 12 * kMs, 1, -1, 0, 12 * kMs, 0, -1}));
}

/// Each layer runs `kernels` kernels of 1 ns, forward and then in reverse order backward.
sim::StepTrace layers(std::int32_t count, std::int32_t kernels) {
  sim::StepTrace trace;
  trace.timeline.streams = {"compute"};
  trace.roles = {StreamRole::kCompute};
  Nanoseconds at = 0;
  OpId id = 0;
  for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
    for (std::int32_t i = 0; i < count; ++i) {
      const std::int32_t layer = phase == Phase::kForward ? i : count - 1 - i;
      for (std::int32_t k = 0; k < kernels; ++k, ++id, ++at) {
        trace.operations[id] = {fmt::format("layer{}.{}.norm", layer, name_of(phase)),
                                OpKind::kNorm, phase, layer};
        trace.timeline.spans.push_back({id, 0, 0, 0, at, at + 1});
      }
    }
  }
  return trace;
}

TEST(DrawnStep, OneLayerIsWholeAndTheRestIsStretches) {
  const std::int32_t count = 100, kernels = 500;
  const Json drawn = drawn_step(layers(count, kernels));
  EXPECT_EQ(drawn.at("layer").at("forward"), (Json{50 * kernels, 51 * kernels}));
  EXPECT_EQ(drawn.at("layer").at("backward"), (Json{149 * kernels, 150 * kernels}));
  const Json& spans = drawn.at("lanes").at(0).at("spans");
  EXPECT_LT(spans.size() / 4, 4000U);
  std::int64_t whole = 0, end = 0;
  for (std::size_t i = 0; i < spans.size(); i += 4) {
    EXPECT_EQ(spans[i], 0) << "nothing between kernels";
    end += spans[i + 1].get<std::int64_t>();
    whole += spans[i + 1] == 1 ? 1 : 0;
  }
  EXPECT_EQ(end, 2 * count * kernels);
  EXPECT_GE(whole, 2 * kernels);
  EXPECT_LT(whole, 2 * kernels + 200);
}

TEST(DrawnStep, ShortPassesKeepTheirShares) {
  sim::StepTrace trace;
  trace.timeline.stages[0] = {0, 1, "all"};
  constexpr Nanoseconds kPasses = 100'000;
  for (std::int32_t i = 0; i < kPasses; ++i) {
    const Nanoseconds at = 4 * Nanoseconds{i};
    trace.timeline.passes.push_back({StageWork::kForward, 0, 0, 0, i, at, at + 1});
    trace.timeline.passes.push_back({StageWork::kBackward, 0, 0, 0, i, at + 1, at + 4});
  }
  const Json drawn = drawn_step(trace);
  const Json& spans = drawn.at("lanes").at(0).at("spans");
  EXPECT_LT(spans.size() / 4, 8001U);
  std::map<std::string, Nanoseconds> sums;
  for (std::size_t i = 0; i < spans.size(); i += 4) {
    sums[drawn.at("operations")[spans[i + 2].get<std::size_t>()][0].get<std::string>()] +=
        spans[i + 1].get<Nanoseconds>();
  }
  EXPECT_EQ(sums.at("forward"), kPasses);
  EXPECT_EQ(sums.at("backward"), 3 * kPasses);
}

TEST(DrawnStep, WhatWaitsForOthersIsApartAndMemoryKeepsItsPeak) {
  sim::StepTrace trace = layers(1, 2);
  trace.timeline.spans[1].end_ns = 3;
  trace.ready_ns[{1, 0, 0}] = 2;
  trace.timeline.memory = {{-5, 7, 0}, {0, 10, 0}, {1, 90, 0}, {2, 20, 0}, {99, 500, 0}};
  const Json drawn = drawn_step(trace);
  const Json& spans = drawn.at("lanes").at(0).at("spans");
  EXPECT_EQ(drawn.at("operations").at(spans.at(6).get<std::size_t>()).at(0), "bubble");
  EXPECT_EQ(drawn.at("memory").dump(), R"({"allocated":[[0,10],[1,90],[2,20]]})");
}

}  // namespace
}  // namespace shardwright::cli
