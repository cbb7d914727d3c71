// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "exec/train/trainer.h"
#include "tests/support/refusal.h"

namespace shardwright::exec {
namespace {

constexpr LrShape kShapes[] = {LrShape::kConstant, LrShape::kCosine, LrShape::kLinear,
                               LrShape::kWsd};

LrSchedule make(LrShape shape) {
  return {.shape = shape,
          .peak = 2.0,
          .total_steps = 100,
          .warmup_steps = 10,
          .final_fraction = 0.1,
          .decay_fraction = 0.3};
}

TEST(LrSchedule, WarmUpRisesInEqualStepsToThePeak) {
  for (const LrShape shape : kShapes) {
    const LrSchedule schedule = make(shape);
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 1), 0.2);
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 5), 1.0);
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 10), 2.0);
  }
}

TEST(LrSchedule, ReachesTheFinalRateAtTheLastStep) {
  EXPECT_DOUBLE_EQ(learning_rate(make(LrShape::kConstant), 100), 2.0);
  for (const LrShape shape : {LrShape::kCosine, LrShape::kLinear, LrShape::kWsd}) {
    EXPECT_DOUBLE_EQ(learning_rate(make(shape), 100), 0.2) << name_of(shape);
    EXPECT_DOUBLE_EQ(learning_rate(make(shape), 1000), 0.2) << name_of(shape);
  }
}

TEST(LrSchedule, ShapesInBetween) {
  EXPECT_DOUBLE_EQ(learning_rate(make(LrShape::kConstant), 55), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(make(LrShape::kLinear), 55), 1.1);  // half way from 10 to 100
  EXPECT_NEAR(learning_rate(make(LrShape::kCosine), 55), 1.1, 1e-12);
  EXPECT_NEAR(learning_rate(make(LrShape::kCosine), 40), 0.2 + 1.8 * 0.75, 1e-12);  // cos(pi/3)
  EXPECT_DOUBLE_EQ(learning_rate(make(LrShape::kWsd), 70), 2.0);
  EXPECT_DOUBLE_EQ(learning_rate(make(LrShape::kWsd), 85), 1.1);
}

TEST(LrSchedule, NeverRisesAfterWarmUp) {
  for (const LrShape shape : kShapes) {
    for (std::int64_t step = 10; step < 110; ++step) {
      EXPECT_GE(learning_rate(make(shape), step), learning_rate(make(shape), step + 1));
    }
  }
}

TEST(LrSchedule, EdgesAreFinite) {
  for (const LrShape shape : kShapes) {
    LrSchedule schedule = make(shape);
    schedule.warmup_steps = 0;
    EXPECT_GT(learning_rate(schedule, 1), 0.0);
    schedule.total_steps = schedule.warmup_steps = 1;
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 1), 2.0);
    schedule.total_steps = schedule.warmup_steps = 7;
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 7), 2.0);
    schedule = make(shape);
    schedule.decay_fraction = 1.0;  // longer than what warm-up leaves
    EXPECT_LE(learning_rate(schedule, 11), 2.0);
    schedule.decay_fraction = 0.0;
    EXPECT_TRUE(std::isfinite(learning_rate(schedule, 100)));
  }
}

TEST(LrSchedule, NamesAreRead) {
  for (const LrShape shape : kShapes) EXPECT_EQ(lr_shape_from(name_of(shape)), shape);
  EXPECT_FALSE(lr_shape_from("polynomial"));
}

TEST(LrSchedule, ErrorsNameTheFlag) {
  const auto message = [](auto change) {
    LrSchedule schedule = make(LrShape::kCosine);
    change(schedule);
    return shardwright::testing::refusal_of([&] { check_lr_schedule(schedule); });
  };
  EXPECT_EQ(message([](LrSchedule&) {}), "accepted");
  EXPECT_EQ(message([](LrSchedule& s) { s.peak = 0; }), "--lr is 0, expected a number above 0");
  EXPECT_EQ(message([](LrSchedule& s) { s.warmup_steps = 101; }),
            "--warmup is 101, expected 0 to 100, the number of steps");
  EXPECT_EQ(message([](LrSchedule& s) { s.total_steps = 0; }), "--steps is 0, expected at least 1");
  EXPECT_EQ(message([](LrSchedule& s) { s.final_fraction = NAN; }),
            "--final-lr-fraction is nan, expected 0 to 1");
  EXPECT_EQ(message([](LrSchedule& s) { s.decay_fraction = 2; }),
            "--decay-fraction is 2, expected 0 to 1");
}

}  // namespace
}  // namespace shardwright::exec
