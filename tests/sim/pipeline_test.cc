// SPDX-License-Identifier: Apache-2.0
// Programs and recurrence of pipelines: the closed forms of the literature to the nanosecond,
// memory in flight, and that every schedule's sends and receives meet.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

#include "sim/core/parallelism.h"
#include "sim/pipeline/recurrence.h"
#include "sim/schedules/stage_actions.h"
#include "tests/support/refusal.h"

namespace shardwright::sim {
namespace {

constexpr Nanoseconds kForward = 1000, kInput = 1100, kWeight = 900;

PipelineTimes equal_times(const PipelineShape& shape, Nanoseconds f = kForward,
                          Nanoseconds b = kInput, Nanoseconds w = kWeight) {
  PipelineTimes times;
  times.chunks.assign(static_cast<std::size_t>(shape.stages * shape.chunks), {f, b, w});
  times.transfer.assign(static_cast<std::size_t>(shape.stages), 0);
  return times;
}

PipelineShape shape_of(PipelineKind kind, std::int32_t p, std::int32_t v, std::int32_t m) {
  return {kind, p, v, m, 0};
}

/// Of every registered schedule those that exist.
std::vector<PipelineShape> all_shapes() {
  std::vector<PipelineShape> shapes;
  for (const std::int32_t p : {1, 2, 4, 6, 8}) {
    for (const std::int32_t m : {1, 3, 8, 17, 32}) {
      for (const PipelineInfo& info : kPipelineInfos) {
        const bool asked = info.takes_virtual_stages();
        for (std::int32_t v = asked ? 2 : info.chunks; v <= (asked ? 3 : info.chunks); ++v) {
          const PipelineShape shape = shape_of(info.id, p, v, m);
          const bool exists =
              shardwright::testing::refusal_of([&] { check_shape(shape); }) == "accepted";
          if (exists) shapes.push_back(shape);
        }
      }
    }
  }
  return shapes;
}

std::string words_of(const PipelineShape& shape) {
  return std::string(name_of(shape.kind)) + " p" + std::to_string(shape.stages) + " v" +
         std::to_string(shape.chunks) + " m" + std::to_string(shape.micro_batches);
}

TEST(PipelineScheduleTest, EveryPassHappensOnceAndGradientsFollowTheirForward) {
  for (const PipelineShape& shape : all_shapes()) {
    SCOPED_TRACE(words_of(shape));
    const std::int32_t each = shape.passes();
    for (std::int32_t s = 0; s < shape.stages; ++s) {
      std::map<std::pair<int, int>, int> forward, input, weight;
      for (const Action& a : stage_actions(shape, s)) {
        const std::pair<int, int> pass{a.chunk, a.micro_batch};
        ASSERT_GE(a.chunk, 0);
        ASSERT_LT(a.chunk, shape.chunks);
        ASSERT_GE(a.micro_batch, 0);
        ASSERT_LT(a.micro_batch, each);
        if (a.kind == PassKind::kForward) ++forward[pass];
        if (makes_input_gradient(a.kind)) {
          ASSERT_EQ(forward[pass], 1);
          ++input[pass];
        }
        if (makes_weight_gradient(a.kind)) {
          ASSERT_EQ(input[pass], 1);
          ++weight[pass];
        }
      }
      ASSERT_EQ(forward.size(), static_cast<std::size_t>(each * shape.chunks));
      for (const auto& [pass, times] : forward) {
        ASSERT_EQ(times, 1);
        ASSERT_EQ(input[pass], 1);
        ASSERT_EQ(weight[pass], 1);
      }
    }
  }
}

/// As PyTorch prints them, without the stage: "F0 F1 B0 B1", chunks behind a colon.
std::string printed(const Actions& actions) {
  std::string text;
  for (const Action& action : actions) {
    if (!text.empty()) text += ' ';
    text += letter_of(action.kind) + std::to_string(action.micro_batch);
    if (action.chunk > 0) text += ':' + std::to_string(action.chunk);
  }
  return text;
}

TEST(PipelineScheduleTest, ActionsReadAsInPyTorch) {
  const auto first_of = [](PipelineKind kind, std::int32_t v, std::int32_t m) {
    return printed(stage_actions(shape_of(kind, 2, v, m), 0));
  };
  EXPECT_EQ(first_of(PipelineKind::kGpipe, 1, 3), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(first_of(PipelineKind::kOneForwardOneBackward, 1, 3), "F0 F1 B0 F2 B1 B2");
  EXPECT_EQ(first_of(PipelineKind::kInterleaved, 2, 2), "F0 F1 F0:1 F1:1 B0:1 B1:1 B0 B1");
  EXPECT_EQ(first_of(PipelineKind::kZb1p, 1, 3), "F0 F1 I0 W0 F2 I1 W1 I2 W2");
  EXPECT_EQ(first_of(PipelineKind::kZbv, 2, 2), "F0 F1 F0:1 I0:1 W0:1 F1:1 I1:1 W1:1 I0 W0 I1 W1");
}

// Gradients of a stage add up in the order of one rank that accumulates the same micro-batches.
TEST(PipelineScheduleTest, WeightGradientsOfAChunkComeInTheOrderOfMicroBatches) {
  for (const PipelineShape& shape : all_shapes()) {
    SCOPED_TRACE(words_of(shape));
    for (std::int32_t s = 0; s < shape.stages; ++s) {
      std::vector<std::int32_t> next(static_cast<std::size_t>(shape.chunks), 0);
      for (const Action& action : stage_actions(shape, s)) {
        if (!makes_weight_gradient(action.kind)) continue;
        ASSERT_EQ(action.micro_batch, next[static_cast<std::size_t>(action.chunk)]++);
      }
    }
  }
}

TEST(PipelineScheduleTest, BackwardIsSplitWhereTheFactsSaySo) {
  std::map<PipelineKind, bool> splits;
  for (const PipelineShape& shape : all_shapes()) {
    for (std::int32_t s = 0; s < shape.stages; ++s) {
      for (const Action& action : stage_actions(shape, s)) {
        splits[shape.kind] |= action.kind == PassKind::kBackwardInput;
      }
    }
  }
  for (const PipelineInfo& info : kPipelineInfos) {
    EXPECT_EQ(splits.at(info.id), info.splits_backward) << info.name;
  }
}

TEST(PipelineScheduleTest, ChunksAreLinkedBothWaysAndCoverTheModel) {
  for (const PipelineShape& shape : all_shapes()) {
    SCOPED_TRACE(words_of(shape));
    std::map<std::int32_t, int> holders;
    for (std::int32_t s = 0; s < shape.stages; ++s) {
      for (std::int32_t c = 0; c < shape.chunks; ++c) {
        const ChunkPlace here{s, c};
        ++holders[model_part(shape, here)];
        const std::optional<ChunkPlace> next = next_chunk(shape, here);
        if (next) {
          EXPECT_EQ(previous_chunk(shape, *next), here);
          EXPECT_EQ(model_part(shape, *next), model_part(shape, here) + 1);
        } else {
          EXPECT_EQ(model_part(shape, here), model_parts(shape) - 1);
        }
      }
    }
    EXPECT_EQ(std::ssize(holders), model_parts(shape));
  }
}

TEST(PipelineTest, GpipeAnd1f1bTakeTheirClosedForm) {
  for (const PipelineKind kind : {PipelineKind::kGpipe, PipelineKind::kOneForwardOneBackward}) {
    for (const std::int32_t p : {1, 2, 4, 8, 16}) {
      for (const std::int32_t m : {1, 2, 7, 16, 300}) {
        const PipelineShape shape = shape_of(kind, p, 1, m);
        SCOPED_TRACE(words_of(shape));
        EXPECT_EQ(run_pipeline(shape, equal_times(shape)).makespan,
                  (m + p - 1) * (kForward + kInput + kWeight));
      }
    }
  }
}

TEST(PipelineTest, InterleavingDividesTheBubbleByTheChunks) {
  for (const std::int32_t p : {2, 4, 8}) {
    for (const std::int32_t v : {2, 3, 4}) {
      for (const std::int32_t rounds : {1, 2, 5, 60}) {
        const PipelineShape shape = shape_of(PipelineKind::kInterleaved, p, v, rounds * p);
        SCOPED_TRACE(words_of(shape));
        EXPECT_EQ(run_pipeline(shape, equal_times(shape)).makespan,
                  (rounds * p * v + p - 1) * (kForward + kInput + kWeight));
      }
    }
  }
}

TEST(PipelineTest, Zb1pHidesWeightGradientsInTheBubble) {
  const Nanoseconds t = 1000;
  for (const std::int32_t p : {2, 4, 8}) {
    for (const std::int32_t m : {16, 17, 64, 500}) {
      const PipelineShape shape = shape_of(PipelineKind::kZb1p, p, 1, m);
      SCOPED_TRACE(words_of(shape));
      EXPECT_EQ(run_pipeline(shape, equal_times(shape, t, t, t)).makespan, 3 * m * t + (p - 1) * t);
    }
  }
}

TEST(PipelineTest, ZbvHasNoBubbleButItsStart) {
  const Nanoseconds t = 1000;
  for (const std::int32_t p : {2, 4, 8}) {
    const PipelineShape shape = shape_of(PipelineKind::kZbv, p, 2, 4 * p);
    SCOPED_TRACE(words_of(shape));
    const PipelineResult result = run_pipeline(shape, equal_times(shape, t, t, t));
    for (std::int32_t s = 0; s < p; ++s) {
      const StageTimes& stage = result.stages[static_cast<std::size_t>(s)];
      EXPECT_EQ(stage.first_start, s * t);
      EXPECT_EQ(stage.end - stage.first_start, stage.busy);
    }
  }
}

TEST(PipelineTest, DualpipeHasTheBubbleOfItsAuthors) {
  // (p/2 - 1)(F&B + B - 3W), B being both gradients, F&B an overlapped forward and backward.
  const Nanoseconds f = 1000, b = 1000, w = 1000, both = 3000;
  for (const std::int32_t p : {2, 4, 8}) {
    const std::int32_t m = 4 * p;
    const PipelineShape shape = shape_of(PipelineKind::kDualpipe, p, 2, m);
    SCOPED_TRACE(words_of(shape));
    PipelineTimes times = equal_times(shape, f, b, w);
    for (ChunkTimes& chunk : times.chunks) chunk.paired = both;
    EXPECT_EQ(run_pipeline(shape, times).makespan,
              m * (f + b + w) + (p / 2 - 1) * (both + (b + w) - 3 * w));
  }
}

/// The most forward passes of chunks whose activations a stage holds at once. Activations of a pass
/// live until its weight gradients are done.
std::int32_t peak_in_flight(const Actions& actions) {
  std::int32_t held = 0, peak = 0;
  for (const Action& action : actions) {
    if (action.kind == PassKind::kForward) peak = std::max(peak, ++held);
    if (makes_weight_gradient(action.kind)) --held;
  }
  return peak;
}

TEST(PipelineTest, ActivationsInFlightAreThoseOfTheLiterature) {
  for (const std::int32_t p : {2, 4, 8}) {
    const std::int32_t m = 4 * p;
    for (std::int32_t s = 0; s < p; ++s) {
      const auto peak = [&](PipelineKind kind, std::int32_t v) {
        return peak_in_flight(stage_actions(shape_of(kind, p, v, m), s));
      };
      EXPECT_EQ(peak(PipelineKind::kGpipe, 1), m);
      EXPECT_EQ(peak(PipelineKind::kOneForwardOneBackward, 1), p - s);
      EXPECT_EQ(peak(PipelineKind::kZb1p, 1), p);
      for (const std::int32_t v : {2, 4}) {
        EXPECT_EQ(peak(PipelineKind::kInterleaved, v), 2 * (p - s - 1) + (v - 1) * p + 1);
      }
      EXPECT_EQ(peak(PipelineKind::kZbv, 2), 2 * p);
      EXPECT_LE(peak(PipelineKind::kDualpipe, 2), p + 1);
    }
  }
}

TEST(PipelineTest, EveryScheduleEndsWhateverTheTimes) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int> time(1, 2000);
  for (const PipelineShape& shape : all_shapes()) {
    SCOPED_TRACE(words_of(shape));
    PipelineTimes times = equal_times(shape);
    for (ChunkTimes& c : times.chunks) c = {time(random), time(random), time(random)};
    for (Nanoseconds& t : times.transfer) t = time(random);
    const bool blocks = shape.info().blocking != BlockingTransfers::kNever;
    for (const bool blocking : {false, true}) {
      if (blocking && !blocks) continue;
      times.blocking = blocking;
      const PipelineResult result = run_pipeline(shape, times, StepLength::kWhole, true);
      ASSERT_FALSE(result.spans.empty());
      std::vector<Nanoseconds> free(static_cast<std::size_t>(shape.stages), 0);
      for (const ActionSpan& span : result.spans) {
        ASSERT_GE(span.end, span.start);
        if (span.action.overlaps_next) continue;
        Nanoseconds& at = free[static_cast<std::size_t>(span.stage)];
        ASSERT_GE(span.start, at);
        at = span.end;
      }
    }
  }
}

TEST(PipelineTest, ShortenedStepsEqualWholeOnes) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> time(100, 2000), small(0, 120);
  int shortened = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const bool interleaved = trial % 3 == 0;
    const std::int32_t p = 1 << (1 + trial % 3), v = interleaved ? 2 + trial % 2 : 1;
    const PipelineKind kind = interleaved      ? PipelineKind::kInterleaved
                              : trial % 3 == 1 ? PipelineKind::kOneForwardOneBackward
                                               : PipelineKind::kZb1p;
    const PipelineShape shape = shape_of(kind, p, v, p * (40 + trial % 60));
    SCOPED_TRACE(words_of(shape));
    PipelineTimes times = equal_times(shape, time(random), time(random), time(random));
    times.chunks.front().forward += small(random);
    times.chunks.back().input_gradient += small(random);
    std::fill(times.transfer.begin(), times.transfer.end(), small(random));
    times.blocking = kind == PipelineKind::kOneForwardOneBackward && trial % 2 == 0;
    const PipelineResult whole = run_pipeline(shape, times, StepLength::kWhole);
    const PipelineResult quick = run_pipeline(shape, times, StepLength::kShortened);
    shortened += quick.simulated_micro_batches < shape.micro_batches;
    ASSERT_EQ(quick.makespan, whole.makespan);
    for (std::size_t s = 0; s < whole.stages.size(); ++s) {
      ASSERT_EQ(quick.stages[s].busy, whole.stages[s].busy);
      ASSERT_EQ(quick.stages[s].end, whole.stages[s].end);
      ASSERT_EQ(quick.stages[s].transfers, whole.stages[s].transfers);
      ASSERT_EQ(quick.stages[s].last_backward, whole.stages[s].last_backward);
    }
  }
  EXPECT_GT(shortened, 200);
}

TEST(PipelineTest, BlockingTransfersStopBothSides) {
  // Two stages, two micro-batches: stage 0 runs F0 F1 B0 B1 and meets stage 1 after F0, after F1
  // (with the gradient of 0) and before B1.
  const PipelineShape shape = shape_of(PipelineKind::kOneForwardOneBackward, 2, 1, 2);
  PipelineTimes times = equal_times(shape, 100, 100, 100);
  times.transfer.assign(2, 10);
  EXPECT_EQ(run_pipeline(shape, times).makespan, 100 + 10 + 300 + 300 + 10 + 200);
  times.blocking = true;
  times.restart = 5;
  EXPECT_EQ(run_pipeline(shape, times).makespan, 100 + 15 + 300 + 15 + 300 + 15 + 200);
}

TEST(PipelineShapeTest, ImpossibleNumbersAreRefusedWithTheNumbersThatAreNot) {
  const auto message = [](PipelineShape shape) {
    return shardwright::testing::refusal_of([&] { check_shape(shape); });
  };
  EXPECT_EQ(message(shape_of(PipelineKind::kInterleaved, 4, 1, 8)),
            "virtual_stages is 1, but the pipeline schedule interleaved with 4 stages expects at "
            "least 2");
  EXPECT_EQ(message(shape_of(PipelineKind::kInterleaved, 4, 2, 3)),
            "grad_accum is 3, but the pipeline schedule interleaved with 4 stages expects a "
            "multiple of 4, or a remainder of at least 4");
  EXPECT_EQ(
      message(shape_of(PipelineKind::kDualpipe, 4, 2, 9)),
      "grad_accum is 9, but the pipeline schedule dualpipe with 4 stages expects an even number "
      "of at least 8");
  EXPECT_EQ(message(shape_of(PipelineKind::kOneForwardOneBackward, 4, 2, 9)),
            "virtual_stages is 2, but the pipeline schedule 1f1b with 4 stages expects 1");
  EXPECT_EQ(message(shape_of(PipelineKind::kZbv, 4, 2, 9)), "accepted");
}

}  // namespace
}  // namespace shardwright::sim
