// SPDX-License-Identifier: Apache-2.0
// Which ways to pass messages let a pipeline's step end, by schedule; and what check_completes()
// says of steps that would not.
#include "sim/pipeline/completes.h"

#include <array>
#include <deque>
#include <tuple>
#include <utility>

#include "sim/core/message_queue.h"
#include "sim/schedules/stage_actions.h"
#include "tests/sim/model_parallel_plans.h"

namespace shardwright::sim {

namespace {

/// One end of a message between two stages.
struct TransferCall {
  bool sends = false, backward = false;
  std::int32_t peer = 0;
};
/// Calls that start together and end together.
using CallGroup = std::vector<TransferCall>;

struct PassCalls {
  std::optional<TransferCall> input, output;
};

std::vector<PassCalls> calls_of(const PipelineShape& shape, std::int32_t stage) {
  std::vector<PassCalls> passes;
  for (const Action& action : stage_actions(shape, stage)) {
    const PassEnds ends = ends_of(shape, {stage, action.chunk}, action.kind);
    const bool backward = action.kind != PassKind::kForward;
    PassCalls& pass = passes.emplace_back();
    if (ends.from) pass.input = TransferCall{false, backward, ends.from->stage};
    if (ends.to) pass.output = TransferCall{true, backward, ends.to->stage};
  }
  return passes;
}

/// How a stage's host issues calls that hold it until the other end is there.
enum class Issue { kEachInTurn, kEvenRanksSendFirst, kGroupAfterPass };

std::deque<CallGroup> issued(const PipelineShape& shape, std::int32_t stage, Issue how) {
  std::deque<CallGroup> program;
  const auto issue = [&program](const std::optional<TransferCall>& call) {
    if (call) program.push_back({*call});
  };
  const std::vector<PassCalls> passes = calls_of(shape, stage);
  if (how == Issue::kEachInTurn) {
    for (const PassCalls& pass : passes) {
      issue(pass.input);
      issue(pass.output);
    }
    return program;
  }
  issue(passes.front().input);
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const std::optional<TransferCall>& output = passes[i].output;
    const auto next = i + 1 < passes.size() ? passes[i + 1].input : std::nullopt;
    if (how == Issue::kGroupAfterPass && output && next) {
      program.push_back({*output, *next});
    } else if (how == Issue::kEvenRanksSendFirst && stage % 2 == 1) {
      issue(next);
      issue(output);
    } else {
      issue(output);
      issue(next);
    }
  }
  return program;
}

/// Takes one message that both its stages have come to from their groups.
bool pass_one_message(std::vector<std::deque<CallGroup>>& programs, std::int32_t stage) {
  auto& own = programs[static_cast<std::size_t>(stage)];
  for (auto mine = own.front().begin(); mine != own.front().end(); ++mine) {
    auto& other = programs[static_cast<std::size_t>(mine->peer)];
    if (other.empty()) continue;
    CallGroup& group = other.front();
    const auto theirs = std::find_if(group.begin(), group.end(), [&](const TransferCall& call) {
      return call.peer == stage && call.sends != mine->sends && call.backward == mine->backward;
    });
    if (theirs == group.end()) continue;
    group.erase(theirs);
    own.front().erase(mine);
    if (group.empty()) other.pop_front();
    if (own.front().empty()) own.pop_front();
    return true;
  }
  return false;
}

/// Where a call ends when both stages have come to it.
bool blocking_completes(const PipelineShape& shape, Issue how) {
  std::vector<std::deque<CallGroup>> programs;
  for (std::int32_t s = 0; s < shape.stages; ++s) programs.push_back(issued(shape, s, how));
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::int32_t s = 0; s < shape.stages; ++s) {
      while (!programs[static_cast<std::size_t>(s)].empty() && pass_one_message(programs, s))
        moved = true;
    }
  }
  return std::all_of(programs.begin(), programs.end(),
                     [](const auto& program) { return program.empty(); });
}

/// Where each (from, to, direction) has a queue of its own, only passes wait: for their inputs.
bool own_queues_complete(const PipelineShape& shape) {
  std::vector<std::vector<PassCalls>> passes;
  for (std::int32_t s = 0; s < shape.stages; ++s) passes.push_back(calls_of(shape, s));
  std::map<std::tuple<std::int32_t, std::int32_t, bool>, int> in_queues;
  std::vector<std::size_t> next(passes.size());
  bool moved = true, done = false;
  while (moved && !done) {
    moved = false;
    done = true;
    for (std::int32_t s = 0; s < shape.stages; ++s) {
      std::size_t& at = next[static_cast<std::size_t>(s)];
      const auto& own = passes[static_cast<std::size_t>(s)];
      for (; at < own.size(); ++at, moved = true) {
        const auto& [input, output] = own[at];
        if (input) {
          int& arrived = in_queues[{input->peer, s, input->backward}];
          if (arrived == 0) break;
          --arrived;
        }
        if (output) ++in_queues[{s, output->peer, output->backward}];
      }
      done = done && at == own.size();
    }
  }
  return done;
}

/// Where a stage does one thing at a time, and a channel holds one message until it is taken.
bool one_message_completes(const PipelineShape& shape) {
  std::vector<std::deque<CallGroup>> programs;
  for (std::int32_t s = 0; s < shape.stages; ++s)
    programs.push_back(issued(shape, s, Issue::kEachInTurn));
  std::map<std::tuple<std::int32_t, std::int32_t, bool>, bool> full;
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::int32_t s = 0; s < shape.stages; ++s) {
      auto& own = programs[static_cast<std::size_t>(s)];
      for (; !own.empty(); own.pop_front(), moved = true) {
        const TransferCall& call = own.front().front();
        bool& is_full =
            full[{call.sends ? s : call.peer, call.sends ? call.peer : s, call.backward}];
        if (is_full == call.sends) break;
        is_full = call.sends;
      }
    }
  }
  return std::all_of(programs.begin(), programs.end(),
                     [](const auto& program) { return program.empty(); });
}

/// Stages that do nothing but pass messages, on a channel for each direction.
std::vector<Schedule> bare_stages(const PipelineShape& shape) {
  std::vector<Schedule> stages(static_cast<std::size_t>(shape.stages));
  for (std::int32_t s = 0; s < shape.stages; ++s) {
    Schedule& stage = stages[static_cast<std::size_t>(s)];
    const auto add = [&stage](OpKind kind, std::int32_t peer, bool backward) {
      Op& op = stage.ops.emplace_back();
      op.kind = kind;
      op.work.kind = WorkKind::kTransfer;
      op.work.bytes = 1;
      op.peer = static_cast<std::int16_t>(peer);
      op.channel = backward ? 1 : 0;
    };
    for (const Action& action : stage_actions(shape, s)) {
      const PassEnds ends = ends_of(shape, {s, action.chunk}, action.kind);
      Block& block = stage.blocks.emplace_back();
      block.first_op = static_cast<std::uint32_t>(stage.ops.size());
      const bool backward = action.kind != PassKind::kForward;
      if (ends.from) add(OpKind::kReceive, ends.from->stage, backward);
      if (ends.to) add(OpKind::kSend, ends.to->stage, backward);
      block.op_count = static_cast<std::uint32_t>(stage.ops.size()) - block.first_op;
      stage.sections.push_back({static_cast<std::uint32_t>(stage.blocks.size()) - 1, 1, 1, action});
    }
  }
  return stages;
}

std::string refusal(const std::vector<Schedule>& stages) {
  return refusal_of([&] { check_completes(stages); });
}

bool exists(const PipelineShape& shape) {
  return refusal_of([&] { check_shape(shape); }) == "accepted";
}

std::vector<PipelineShape> shapes_of(PipelineKind kind, const std::vector<std::int32_t>& stages,
                                     const std::vector<std::int32_t>& micro_batches) {
  std::vector<PipelineShape> shapes;
  for (const std::int32_t p : stages) {
    for (std::int32_t v = 1; v <= 4; ++v) {
      for (const std::int32_t m : micro_batches) {
        const PipelineShape shape{kind, p, v, m};
        if (exists(shape)) shapes.push_back(shape);
      }
    }
  }
  return shapes;
}

std::vector<std::int32_t> count_to(std::int32_t first, std::int32_t last) {
  std::vector<std::int32_t> numbers;
  for (std::int32_t n = first; n <= last; ++n) numbers.push_back(n);
  return numbers;
}

/// Of shapes, how many complete: in turn, even ranks first, grouped, own queues, one message a
/// channel.
std::array<int, 5> completing(const std::vector<PipelineShape>& shapes) {
  std::array<int, 5> counts{};
  for (const PipelineShape& shape : shapes) {
    counts[0] += blocking_completes(shape, Issue::kEachInTurn);
    counts[1] += blocking_completes(shape, Issue::kEvenRanksSendFirst);
    counts[2] += blocking_completes(shape, Issue::kGroupAfterPass);
    counts[3] += own_queues_complete(shape);
    counts[4] += one_message_completes(shape);
  }
  return counts;
}

// 306 shapes of 2 to 8 stages and 1 to 32 micro-batches, interleaved with 2 to 4 chunks.
TEST(Completes, WhichWaysToIssueMessagesComplete) {
  const auto counts = [](PipelineKind kind) {
    const auto shapes = shapes_of(kind, {2, 3, 4, 5, 8}, {1, 2, 3, 4, 5, 7, 8, 10, 12, 16, 20, 32});
    EXPECT_EQ(shapes.size(), kind == PipelineKind::kInterleaved ? 66U : 60U);
    return completing(shapes);
  };
  EXPECT_THAT(counts(PipelineKind::kGpipe), ElementsAre(60, 12, 60, 60, 60));
  EXPECT_THAT(counts(PipelineKind::kOneForwardOneBackward), ElementsAre(5, 49, 60, 60, 60));
  EXPECT_THAT(counts(PipelineKind::kInterleaved), ElementsAre(0, 3, 15, 66, 66));
  EXPECT_THAT(counts(PipelineKind::kZb1p), ElementsAre(5, 10, 60, 60, 60));
  EXPECT_THAT(counts(PipelineKind::kZbv), ElementsAre(5, 0, 5, 60, 60));
}

TEST(Completes, EveryShapeOfEverySchedule) {
  std::size_t shapes = 0;
  for (const PipelineInfo& info : kPipelineInfos) {
    for (const PipelineShape& shape : shapes_of(info.id, count_to(2, 8), count_to(1, 32))) {
      EXPECT_EQ(refusal(bare_stages(shape)), "accepted")
          << info.name << " " << shape.stages << " " << shape.chunks << " " << shape.micro_batches;
      EXPECT_TRUE(one_message_completes(shape));
      ++shapes;
    }
  }
  EXPECT_EQ(shapes, 4 * 7 * 32 + 159U + 48U);
}

// Groups of more micro-batches than stages need room for several messages of a channel. A last
// group of fewer, which check_shape() refuses, makes some shapes hang whatever the room.
TEST(Completes, LargerGroupsOfInterleaving) {
  int larger = 0, with_one_message = 0, refused = 0, hang = 0;
  for (const std::int32_t p : {2, 4, 6}) {
    for (std::int32_t group = p + 1; group <= 2 * p; ++group) {
      for (std::int32_t m = p; m <= 24; ++m) {
        const PipelineShape shape{PipelineKind::kInterleaved, p, 2, m, group};
        const bool completes = refusal(bare_stages(shape)) == "accepted";
        EXPECT_EQ(completes, own_queues_complete(shape));
        if (exists(shape)) {
          EXPECT_TRUE(completes) << p << " " << m << " " << group;
          ++larger;
          with_one_message += one_message_completes(shape);
        } else {
          ++refused;
          hang += !completes;
        }
      }
    }
  }
  EXPECT_EQ(larger, 142);
  EXPECT_EQ(with_one_message, 43);
  EXPECT_EQ(refused, 102);
  EXPECT_EQ(hang, 3);
}

std::vector<Schedule> steps_of(PipelineKind kind, std::int64_t pp, std::int64_t virtual_stages,
                               std::int64_t micro_batches = 8) {
  Model model = llama_70b();
  model.layers = pp * virtual_stages;
  Plan plan = plan_of(pp, 1, pp, micro_batches);
  plan.parallel.pp_schedule = kind;
  plan.parallel.virtual_stages = virtual_stages;
  plan.seq_len = 2048;
  return executed_step(model, plan, h100().stack, 8).stages;
}

/// What is said of real stages once they are changed.
std::string said_of(std::vector<Schedule> stages, void (*change)(std::vector<Schedule>&)) {
  EXPECT_EQ(refusal(stages), "accepted");
  change(stages);
  return refusal(stages);
}

/// Of two stages, by micro-batch F0 F1 B0 F2 B1 ... and F0 B0 F1 B1 ...
std::string said_of_1f1b(void (*change)(std::vector<Schedule>&)) {
  return said_of(steps_of(PipelineKind::kOneForwardOneBackward, 2, 1), change);
}

constexpr PassKind kF = PassKind::kForward, kB = PassKind::kBackward;

std::vector<Section>::iterator section_of_pass(Schedule& stage, PassKind kind,
                                               std::int32_t micro_batch, std::int16_t chunk = 0) {
  return std::find_if(stage.sections.begin(), stage.sections.end(), [&](const Section& section) {
    return section.pass && *section.pass == Action{kind, false, chunk, micro_batch};
  });
}

std::vector<Op*> message_ops(Schedule& stage, OpKind kind) {
  std::vector<Op*> found;
  for (Op& op : stage.ops) {
    if (op.kind == kind && op.peer >= 0) found.push_back(&op);
  }
  return found;
}

TEST(Completes, RealStagesOfEverySchedule) {
  for (const PipelineInfo& info : kPipelineInfos) {
    const std::int64_t chunks = info.takes_virtual_stages() ? 2 : info.chunks;
    for (const std::int64_t pp : {2, 4})
      EXPECT_EQ(refusal(steps_of(info.id, pp, chunks)), "accepted") << info.name;
  }
}

/// What is done to the stages of 1F1B, and what is then said to keep their step from ending.
struct Broken {
  const char* name;
  void (*change)(std::vector<Schedule>&);
  std::string said;
};

TEST(Completes, NamesWhatKeepsABrokenStepFromEnding) {
  using Stages = std::vector<Schedule>;
  const std::vector<Broken> all = {
      {"a pass meets another one's message",
       [](Stages& s) {
         std::iter_swap(section_of_pass(s[1], kF, 1), section_of_pass(s[1], kF, 2));
       },
       "stage 1 takes message 1 of channel 0, 33554432 bytes of forward 1 of chunk 0, for the "
       "33554432 bytes that forward 2 of chunk 0 expects from stage 0"},
      {"other bytes", [](Stages& s) { message_ops(s[0], OpKind::kReceive)[0]->work.bytes = 5; },
       "stage 0 takes message 0 of channel 1, 33554432 bytes of backward 0 of chunk 0, for the 5 "
       "bytes that backward 0 of chunk 0 expects from stage 1"},
      {"nobody takes from the channel",
       [](Stages& s) {
         for (Op* op : message_ops(s[1], OpKind::kReceive)) op->channel = 4;
       },
       "stage 1 never takes forward 0 of chunk 0 of stage 0, whose channel 0 has 8 messages where "
       "0 are taken"},
      {"inputs are sent elsewhere",
       [](Stages& s) {
         for (Op* op : message_ops(s[1], OpKind::kSend)) op->channel = 5;
       },
       "stage 0 waits for the input of backward 0 of chunk 0 from stage 1, which sends 0 messages "
       "on channel 1 and not 8"},
      {"the last input is not sent",
       [](Stages& s) { section_of_pass(s[0], kF, 7)->block_count -= 1; },
       "stage 1 waits for the input of forward 7 of chunk 0 from stage 0, which sends 7 messages "
       "on channel 0 and not 8"},
      {"the third input is not sent",
       [](Stages& s) { section_of_pass(s[0], kF, 2)->block_count -= 1; },
       "stage 1 takes message 2 of channel 0, 33554432 bytes of forward 3 of chunk 0, for the "
       "33554432 bytes that forward 2 of chunk 0 expects from stage 0"},
      {"a receive before the send that its message needs",
       [](Stages& s) {
         const auto backward = section_of_pass(s[0], kB, 0);
         Section receive = *backward;
         receive.block_count = 1;
         backward->first_block += 1;
         backward->block_count -= 1;
         s[0].sections.insert(section_of_pass(s[0], kF, 0), receive);
       },
       "stage 0 waits for backward 0 of chunk 0 from stage 1, which waits for forward 0 of chunk 0 "
       "from stage 0"},
  };
  for (const Broken& one : all) {
    EXPECT_EQ(said_of_1f1b(one.change), "a step of this pipeline would not end: " + one.said)
        << one.name;
  }
}

TEST(Completes, NamesTheCycleOfThreeStages) {
  const std::vector<Schedule> stages = steps_of(PipelineKind::kInterleaved, 3, 2, 6);
  const std::string said = said_of(stages, [](std::vector<Schedule>& changed) {
    const auto second_chunk = section_of_pass(changed[0], kF, 0, 1);
    std::rotate(section_of_pass(changed[0], kF, 0), second_chunk, second_chunk + 1);
  });
  EXPECT_EQ(said,
            "a step of this pipeline would not end: stage 0 waits for forward 0 of chunk 0 from "
            "stage 2, which waits for forward 0 of chunk 0 from stage 1, which waits for forward 0 "
            "of chunk 0 from stage 0");
}

// Backward passes behind all forward ones, on the first stage alone: messages wait to be taken.
TEST(Completes, APostWaitsForNobody) {
  const std::string said = said_of_1f1b([](std::vector<Schedule>& stages) {
    std::stable_partition(
        stages[0].sections.begin(), stages[0].sections.end(),
        [](const Section& section) { return !section.pass || section.pass->kind == kF; });
  });
  EXPECT_EQ(said, "accepted");
}

}  // namespace

// Steps of pipelines over a transport that holds a message until it is taken.

namespace {

std::vector<Schedule> walked_stages(PipelineKind kind, std::int64_t pp, std::int64_t virtual_stages,
                                    std::int64_t micro_batches, bool tied = false) {
  Model model = llama_70b();
  model.layers = pp * virtual_stages;
  model.tied_head = tied;
  Plan plan = plan_of(pp, 1, pp, micro_batches);
  plan.parallel.pp_schedule = kind;
  plan.parallel.virtual_stages = virtual_stages;
  plan.seq_len = 2048;
  plan.strategy = Strategy::kYafsdp;
  plan.stack = "native";
  static const Stack stack = profiles::load_stack("native").stack;
  return executed_step(model, plan, stack, 8).stages;
}

std::string rendezvous_refusal(const std::vector<Schedule>& stages) {
  return refusal_of([&] { check_rendezvous(stages); });
}

TEST(Rendezvous, EveryScheduleCompletes) {
  int steps = 0;
  for (const PipelineInfo& info : kPipelineInfos) {
    if (info.id == PipelineKind::kDualpipe) continue;  // which the executor does not run
    for (const std::int64_t pp : {2, 3, 4, 8}) {
      for (const std::int64_t chunks : {2, 3}) {
        const bool takes = info.takes_virtual_stages();
        if (!takes && chunks > 2) continue;
        for (const std::int64_t micro_batches : {1, 2, 3, 5, 8, 16, 24}) {
          if (takes && micro_batches % pp != 0) continue;
          const auto stages = walked_stages(info.id, pp, takes ? chunks : info.chunks,
                                            micro_batches, micro_batches % 2 == 0);
          EXPECT_EQ(rendezvous_refusal(stages), "accepted")
              << info.name << " " << pp << " " << micro_batches;
          ++steps;
        }
      }
    }
  }
  EXPECT_GT(steps, 100);
}

TEST(Rendezvous, QueuesAreOfASenderAReceiverAndADirection) {
  using Q = MessageQueue;
  EXPECT_THAT(message_queues(walked_stages(PipelineKind::kOneForwardOneBackward, 3, 1, 4)),
              ElementsAre(Q{0, 1, false}, Q{1, 0, true}, Q{1, 2, false}, Q{2, 1, true}));
  EXPECT_THAT(message_queues(walked_stages(PipelineKind::kInterleaved, 2, 3, 4)),
              ElementsAre(Q{0, 1, false}, Q{0, 1, true}, Q{1, 0, false}, Q{1, 0, true}));
  // The first and the last stage add up a tied table's gradients.
  EXPECT_THAT(message_queues(walked_stages(PipelineKind::kOneForwardOneBackward, 3, 1, 4, true)),
              ElementsAre(Q{0, 1, false}, Q{0, 2, false}, Q{1, 0, true}, Q{1, 2, false},
                          Q{2, 0, true}, Q{2, 1, true}));
}

// A buffer for every message would let it end (tests/sim/completes_test.cc).
TEST(Rendezvous, NamesTheStagesThatHoldMessagesOfOneAnother) {
  std::vector<Schedule> stages = walked_stages(PipelineKind::kOneForwardOneBackward, 2, 1, 8);
  std::stable_partition(stages[0].sections.begin(), stages[0].sections.end(),
                        [](const Section& section) {
                          return !section.pass || section.pass->kind == PassKind::kForward;
                        });
  EXPECT_EQ(
      rendezvous_refusal(stages),
      "over NCCL, which holds a message until it is taken, a step of this pipeline would not "
      "end: stage 0 waits until stage 1 takes forward 2 of chunk 0, which waits until stage 0 "
      "takes backward 0 of chunk 0");
}

TEST(Rendezvous, NamesMessagesOfAQueueThatAreTakenInAnotherOrder) {
  std::vector<Schedule> stages = walked_stages(PipelineKind::kInterleaved, 2, 2, 4);
  for (Op& op : stages[1].ops) {
    if (op.peer >= 0 && op.kind == OpKind::kReceive && op.channel % 2 == 0) op.channel += 2;
  }
  EXPECT_THAT(rendezvous_refusal(stages),
              ::testing::HasSubstr("stage 0 sends forward 0 of chunk 0 on channel 0 where stage 1 "
                                   "takes forward 0 of chunk 0 on channel 2"));
}

}  // namespace

}  // namespace shardwright::sim
