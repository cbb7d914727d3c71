// SPDX-License-Identifier: Apache-2.0
// Steps of pipelines over a transport that holds a message until it is taken.
#include "sim/pipeline/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/core/message_queue.h"
#include "sim/pipeline/step_program.h"
#include "tests/sim/model_parallel_plans.h"

namespace shardwright::sim {
namespace {

using ::testing::ElementsAre;

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
  try {
    check_rendezvous(stages);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
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
          EXPECT_EQ(rendezvous_refusal(stages), "")
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
