// SPDX-License-Identifier: Apache-2.0
// The drawing of a pipeline that was measured: one step and one rank of each stage, under the
// predicted one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cli/render/html/pictures.h"

namespace shardwright::cli::html {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr Nanoseconds kMs = 1'000'000;

/// Two stages of two ranks; step s takes `lengths[s]` ms a stage, the second stage after the first.
Timeline pipeline(const std::vector<Nanoseconds>& lengths) {
  Timeline timeline;
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
  return timeline;
}

std::size_t count(const std::string& text, const std::string& words) {
  std::size_t found = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1))
    ++found;
  return found;
}

TEST(PipelinePicture, AMeasuredStepIsTheOneOfMedianLength) {
  const Timeline step = usual_step(pipeline({10, 30, 12}));
  ASSERT_FALSE(step.passes.empty());
  for (const PassSpan& span : step.passes) EXPECT_EQ(span.step, 9);
  EXPECT_EQ(step.stages.size(), 4U);
}

TEST(PipelinePicture, RowsAreStagesAndTheSidesShareAScale) {
  const std::string picture = pipeline_picture(
      {{"predicted", pipeline({10})}, {"measured", usual_step(pipeline({10, 30, 15}))}});
  EXPECT_THAT(picture, HasSubstr("predicted: 20.00 ms"));
  EXPECT_THAT(picture, HasSubstr("measured: 30.00 ms"));
  EXPECT_LT(picture.find("predicted: 20.00 ms"), picture.find("measured: 30.00 ms"));
  EXPECT_EQ(count(picture, ">stage 0<"), 2U);
  EXPECT_EQ(count(picture, ">stage 1<"), 2U);
  EXPECT_THAT(picture, Not(HasSubstr(">stage 2<")));
  // One rank of each stage, whatever the number of them.
  EXPECT_EQ(count(picture, "forward 5: 10.00 ms"), 2U);
  EXPECT_EQ(count(picture, "forward 5: 15.00 ms"), 2U);
  EXPECT_EQ(count(picture, "bubble: 15.00 ms"), 1U);
  // Both axes reach to the longer step.
  EXPECT_EQ(count(picture, ">28 ms<") + count(picture, ">30 ms<"), 2U) << picture;
}

TEST(PipelinePicture, ScalesAreOwnWhereOneSideWouldVanish) {
  const std::string picture =
      pipeline_picture({{"predicted", pipeline({10})}, {"measured", pipeline({400})}});
  EXPECT_THAT(picture, HasSubstr(">20 ms<"));
  EXPECT_THAT(picture, HasSubstr(">800 ms<"));
}

}  // namespace
}  // namespace shardwright::cli::html
