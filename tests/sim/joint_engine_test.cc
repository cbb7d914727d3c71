// SPDX-License-Identifier: Apache-2.0
// The recurrence of sim/pipeline against all ranks of all stages, event by event
// (joint_engine.h): equal to the nanosecond, for every schedule and random durations.
#include "tests/sim/joint_engine.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <random>

#include "sim/pipeline/recurrence.h"
#include "sim/schedules/stage_actions.h"
#include "tests/support/refusal.h"

namespace shardwright::sim {
namespace {

using reference::Instruction;
using reference::JointEngine;
using shardwright::testing::refusal_of;
using Kind = Instruction::Kind;

constexpr int kMembers = 2;  // ranks of a stage

std::string message_key(PassKind kind, ChunkPlace to, std::int32_t micro, int member) {
  return fmt::format("{} s{} c{} m{} r{}", kind == PassKind::kForward ? "F" : "B", to.stage,
                     to.chunk, micro, member);
}

std::string pass_key(const Action& action) {
  return fmt::format("{} c{} m{}", letter_of(action.kind), action.chunk, action.micro_batch);
}

Nanoseconds duration_of(const ChunkTimes& t, PassKind kind) {
  switch (kind) {
    case PassKind::kForward:
      return t.forward;
    case PassKind::kBackward:
      return t.input_gradient + t.weight_gradient;
    case PassKind::kBackwardInput:
      return t.input_gradient;
    case PassKind::kBackwardWeight:
      break;
  }
  return t.weight_gradient;
}

/// Writes what a rank of a stage does for a program.
class RankWriter {
 public:
  RankWriter(const PipelineShape& shape, const PipelineTimes& times, std::int32_t stage, int member)
      : shape_(shape), times_(times), stage_(stage), member_(member) {}

  /// Transfers that overlap: each pass receives its input and sends its output.
  std::vector<Instruction> overlapped(const Actions& program) {
    for (std::size_t i = 0; i < program.size(); ++i) {
      const std::size_t last = program[i].overlaps_next ? i + 1 : i;
      for (std::size_t k = i; k <= last; ++k) receive(program[k]);
      for (std::size_t k = i; k <= last; ++k) compute(program[k]);
      for (std::size_t k = i; k <= last; ++k) send(program[k]);
      i = last;
    }
    return std::move(out_);
  }

  /// Megatron's 1F1B, as its schedules.py calls its transfers.
  std::vector<Instruction> blocking_1f1b() {
    const std::int32_t m = shape_.micro_batches;
    const std::int32_t warm_up = std::min(shape_.stages - stage_ - 1, m), rest = m - warm_up;
    for (std::int32_t i = 0; i < warm_up; ++i) {
      meet_before();
      forward(i);
      meet_behind();
    }
    if (rest > 0) meet_before();
    for (std::int32_t i = 0; i < rest; ++i) {
      forward(i + warm_up);
      meet_behind();  // send_forward_recv_backward
      backward(i);
      meet_before();  // send_backward_recv_forward, at last send_backward
    }
    for (std::int32_t i = rest; i < m; ++i) {
      meet_behind();
      backward(i);
      meet_before();
    }
    return std::move(out_);
  }

  std::vector<Instruction> blocking_gpipe() {
    for (std::int32_t i = 0; i < shape_.micro_batches; ++i) {
      meet_before();
      forward(i);
      meet_behind();
    }
    for (std::int32_t i = 0; i < shape_.micro_batches; ++i) {
      meet_behind();
      backward(i);
      meet_before();
    }
    return std::move(out_);
  }

 private:
  const ChunkTimes& times_of(std::int32_t chunk) const {
    return times_.chunks[static_cast<std::size_t>(stage_ * shape_.chunks + chunk)];
  }
  Nanoseconds transfer(std::int32_t other) const {
    if (other == stage_) return 0;
    const bool wraps = std::abs(other - stage_) != 1;
    return times_
        .transfer[static_cast<std::size_t>(wraps ? shape_.stages - 1 : std::min(other, stage_))];
  }

  void receive(const Action& action) {
    const ChunkPlace here{stage_, action.chunk};
    const bool forward = action.kind == PassKind::kForward;
    if (action.kind == PassKind::kBackwardWeight) return;
    if (forward ? previous_chunk(shape_, here) : next_chunk(shape_, here)) {
      out_.push_back(
          {Kind::kReceive, 0, message_key(action.kind, here, action.micro_batch, member_)});
    }
  }

  void send(const Action& action) {
    const ChunkPlace here{stage_, action.chunk};
    const bool forward = action.kind == PassKind::kForward;
    if (action.kind == PassKind::kBackwardWeight) return;
    const auto to = forward ? next_chunk(shape_, here) : previous_chunk(shape_, here);
    if (!to) return;
    out_.push_back({Kind::kSend, transfer(to->stage),
                    message_key(action.kind, *to, action.micro_batch, member_)});
  }

  /// Half of it computes, the other half is a collective of the stage.
  void compute(const Action& action) {
    const Nanoseconds takes = duration_of(times_of(action.chunk), action.kind);
    out_.push_back({Kind::kCompute, takes / 2});
    out_.push_back({Kind::kCollective, takes - takes / 2,
                    fmt::format("stage {} pass {}", stage_, pass_key(action)), kMembers});
    out_.push_back({Kind::kMark, 0, pass_key(action)});
  }
  void forward(std::int32_t micro) { compute({PassKind::kForward, false, 0, micro}); }
  void backward(std::int32_t micro) { compute({PassKind::kBackward, false, 0, micro}); }

  void meet(std::int32_t edge, int& count) {
    out_.push_back({Kind::kMeet, times_.transfer[static_cast<std::size_t>(edge)] + times_.restart,
                    fmt::format("edge {} number {} r{}", edge, count++, member_), 2});
  }
  void meet_before() {
    if (stage_ > 0) meet(stage_ - 1, met_before_);
  }
  void meet_behind() {
    if (stage_ + 1 < shape_.stages) meet(stage_, met_behind_);
  }

  const PipelineShape& shape_;
  const PipelineTimes& times_;
  std::int32_t stage_;
  int member_;
  int met_before_ = 0, met_behind_ = 0;
  std::vector<Instruction> out_;
};

PipelineTimes random_times(const PipelineShape& shape, std::mt19937& random) {
  std::uniform_int_distribution<int> pass(0, 3000), message(0, 700);
  PipelineTimes times;
  times.chunks.resize(static_cast<std::size_t>(shape.stages * shape.chunks));
  for (ChunkTimes& c : times.chunks) c = {pass(random), pass(random), pass(random)};
  times.transfer.resize(static_cast<std::size_t>(shape.stages));
  for (Nanoseconds& t : times.transfer) t = message(random);
  return times;
}

std::vector<PipelineShape> shapes() {
  std::vector<PipelineShape> all;
  for (const std::int32_t p : {1, 2, 3, 4, 6}) {
    for (const std::int32_t m : {1, 2, 5, 8, 13, 24}) {
      for (const PipelineInfo& info : kPipelineInfos) {
        const bool asked = info.takes_virtual_stages();
        for (std::int32_t v = asked ? 2 : info.chunks; v <= (asked ? 3 : info.chunks); ++v) {
          for (const std::int32_t group : {0, p + 2}) {
            const PipelineShape shape{info.id, p, v, m, group};
            const bool exists = (group == 0 || info.groups_micro_batches) &&
                                refusal_of([&] { check_shape(shape); }) == "accepted";
            if (exists) all.push_back(shape);
          }
        }
      }
    }
  }
  return all;
}

/// Runs both and compares every pass.
void expect_equal(const PipelineShape& shape, const PipelineTimes& times) {
  JointEngine engine;
  for (std::int32_t s = 0; s < shape.stages; ++s) {
    for (int member = 0; member < kMembers; ++member) {
      RankWriter writer(shape, times, s, member);
      engine.add_rank(!times.blocking ? writer.overlapped(stage_actions(shape, s))
                      : shape.kind == PipelineKind::kGpipe ? writer.blocking_gpipe()
                                                           : writer.blocking_1f1b());
    }
  }
  ASSERT_TRUE(engine.run()) << "stages wait for one another for ever";
  ASSERT_EQ(engine.messages_left(), 0) << "something was sent that nobody received";
  const PipelineResult result = run_pipeline(shape, times, StepLength::kWhole, true);
  for (std::int32_t s = 0; s < shape.stages; ++s) {
    for (int member = 0; member < kMembers; ++member) {
      const auto rank = static_cast<std::size_t>(s * kMembers + member);
      ASSERT_EQ(engine.end_of(rank), result.stages[static_cast<std::size_t>(s)].end);
    }
  }
  for (const ActionSpan& span : result.spans) {
    const auto rank = static_cast<std::size_t>(span.stage * kMembers);
    const Nanoseconds done = engine.mark(rank, pass_key(span.action));
    // The first of a pair is done within its block.
    if (span.action.overlaps_next) {
      ASSERT_LE(done, span.end);
    } else {
      ASSERT_EQ(done, span.end) << "stage " << span.stage << " pass " << pass_key(span.action);
    }
  }
}

std::string words(const PipelineShape& shape) {
  return fmt::format("{} p{} v{} m{} group {}", name_of(shape.kind), shape.stages, shape.chunks,
                     shape.micro_batches, shape.group);
}

TEST(JointEngineTest, TheRecurrenceEqualsAllRanksEventByEvent) {
  std::mt19937 random(11);
  for (const PipelineShape& shape : shapes()) {
    for (int trial = 0; trial < 3; ++trial) {
      SCOPED_TRACE(words(shape));
      ASSERT_NO_FATAL_FAILURE(expect_equal(shape, random_times(shape, random)));
    }
  }
}

TEST(JointEngineTest, BlockingTransfersMeetAsMegatronCallsThem) {
  std::mt19937 random(12);
  for (const PipelineShape& shape : shapes()) {
    if (shape.info().blocking == BlockingTransfers::kNever) continue;
    for (int trial = 0; trial < 3; ++trial) {
      SCOPED_TRACE(words(shape));
      PipelineTimes times = random_times(shape, random);
      times.blocking = true;
      times.restart = 40;
      ASSERT_NO_FATAL_FAILURE(expect_equal(shape, times));
    }
  }
}

TEST(JointEngineTest, MessagesAreAsManyAsChunksHaveNeighbours) {
  for (const PipelineShape& shape : shapes()) {
    SCOPED_TRACE(words(shape));
    PipelineTimes times;
    times.chunks.assign(static_cast<std::size_t>(shape.stages * shape.chunks), {3, 4, 5});
    times.transfer.assign(static_cast<std::size_t>(shape.stages), 1);
    JointEngine engine;
    for (std::int32_t s = 0; s < shape.stages; ++s) {
      for (int member = 0; member < kMembers; ++member) {
        engine.add_rank(RankWriter(shape, times, s, member).overlapped(stage_actions(shape, s)));
      }
    }
    ASSERT_TRUE(engine.run());
    EXPECT_EQ(engine.messages_left(), 0);
    // Every micro-batch crosses every border between parts of the model twice.
    EXPECT_EQ(engine.messages_sent(),
              std::int64_t{2} * kMembers * shape.micro_batches * (model_parts(shape) - 1));
  }
}

// The check must be able to fail: a stage that begins with a backward waits for a gradient that
// nobody can make before its own forward.
TEST(JointEngineTest, AProgramThatDoesNotMatchStandsStill) {
  const PipelineShape shape{PipelineKind::kOneForwardOneBackward, 2, 1, 4, 0};
  PipelineTimes times;
  times.chunks.assign(2, {3, 4, 5});
  times.transfer.assign(2, 1);
  JointEngine engine;
  for (std::int32_t s = 0; s < shape.stages; ++s) {
    Actions program = stage_actions(shape, s);
    if (s == 0) std::swap(program[0], program[2]);
    for (int member = 0; member < kMembers; ++member) {
      engine.add_rank(RankWriter(shape, times, s, member).overlapped(program));
    }
  }
  EXPECT_FALSE(engine.run());
}

}  // namespace
}  // namespace shardwright::sim
