// SPDX-License-Identifier: Apache-2.0
// Guards tensor ranks and pipeline stages over NCCL: they train as local ranks do, each message
// goes by a queue of its sender, receiver and direction, and what would hang over NCCL hangs here,
// is named and ends. Not yet run on a GPU.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "exec/libraries/rules.h"
#include "sim/pipeline/completes.h"
#include "tests/exec/staged_training.h"
#include "tests/exec_nccl/nccl_training.h"
#include "tests/support/parameter_name.h"

namespace shardwright::exec {
namespace {

using namespace testing;
using shardwright::testing::nccl_calls;
using shardwright::testing::NcclCall;
using shardwright::testing::reset_fake_nccl;
using enum PipelineKind;

Training divided(const StagedLayout& layout, bool tied = false) {
  Training training = staged(tiny_llama(), Strategy::kYafsdp, layout, tied);
  training.mode = StreamMode::kThreads;
  return training;
}

std::vector<StagedLayout> divided_layouts() {
  return {{kOneForwardOneBackward, 2, 1, 1, 1, 2},
          {kOneForwardOneBackward, 1, 2},
          {kOneForwardOneBackward, 1, 4, 1, 1, 6},
          {kOneForwardOneBackward, 2, 2, 1, 2, 2},
          {kGpipe, 1, 2},
          {kInterleaved, 1, 2, 2},
          {kInterleaved, 1, 3, 2, 1, 3},
          {kInterleaved, 2, 2, 2, 1},
          {kZb1p, 1, 2},
          {kZb1p, 1, 4, 1, 1, 6},
          {kZbv, 1, 2, 2}};
}

class NcclPipelines : public ::testing::TestWithParam<StagedLayout> {};

// Without sums between ranks the bits are those of local ranks.
TEST_P(NcclPipelines, TrainAsLocalRanksDo) {
  const StagedLayout& layout = GetParam();
  for (const bool in_order : {false, true}) {
    SCOPED_TRACE(in_order ? "kernels begin as launched" : "kernels begin when they can");
    Training training = divided(layout);
    training.mode = in_order ? StreamMode::kThreads : StreamMode::kShuffled;
    reset_fake_nccl({.starts_in_order = in_order});
    const auto local = train(training), nccl = train_over_nccl(training);
    if (layout.tp * layout.dp == 1) {
      expect_same_training(local, nccl);
    } else {
      expect_near_training(local, nccl, 2e-5);
    }
  }
}

/// The messages of a rank's step, by queue and end: their bytes, in order.
using Messages = std::map<std::tuple<std::string, bool, int>, std::vector<Bytes>>;

Messages messages_of(const Schedule& schedule, std::int32_t stage) {
  Messages all;
  for_each_op(schedule, [&](const OpInstance&, const Op& op) {
    if (op.peer < 0) return;
    const MessageQueue queue = queue_of(op, stage);
    const bool sends = op.kind == OpKind::kSend;
    all[{queue.backward ? "backward messages" : "forward messages", sends,
         sends ? queue.to : queue.from}]
        .push_back(op.work.bytes);
  });
  return all;
}

// Each queue has one communicator of two ranks and one stream, which is nobody else's.
TEST_P(NcclPipelines, CallsAreTheMessagesOfTheSchedule) {
  Training training = divided(GetParam());
  training.steps = 1;
  reset_fake_nccl();
  train_over_nccl(training);
  const std::vector<Schedule> stages = stages_of(training);
  const RankMesh mesh(training.plan, stages.front().shard_ranks());
  for (int rank = 0; rank < training.plan.gpus; ++rank) {
    SCOPED_TRACE(fmt::format("rank {}", rank));
    const auto stage = static_cast<std::int32_t>(mesh.place_of(rank).pp);
    std::map<std::pair<std::string, bool>, std::multiset<std::vector<Bytes>>> expected, found;
    for (const auto& [key, bytes] : messages_of(stages[static_cast<std::size_t>(stage)], stage))
      expected[{std::get<0>(key), std::get<1>(key)}].insert(bytes);
    std::map<StreamId, std::vector<NcclCall>> by_stream;
    for (const NcclCall& call : nccl_calls(rank)) by_stream[call.stream].push_back(call);
    for (const auto& [stream, calls] : by_stream) {
      const auto is_message = [](const NcclCall& call) {
        return call.name == "ncclSend" || call.name == "ncclRecv";
      };
      if (std::none_of(calls.begin(), calls.end(), is_message)) continue;
      const NcclCall& first = calls.front();
      EXPECT_EQ(first.count, 1u) << "it connects";
      std::vector<Bytes> bytes;
      for (const NcclCall& call : calls) {
        EXPECT_EQ(call.name + call.comm, first.name + first.comm) << "on one stream";
        EXPECT_EQ(call.ranks, 2);
        if (&call != &first)
          bytes.push_back(static_cast<Bytes>(call.count * (call.type == ncclBfloat16 ? 2 : 4)));
      }
      found[{first.comm, first.name == "ncclSend"}].insert(bytes);
    }
    EXPECT_EQ(found, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, NcclPipelines, ::testing::ValuesIn(divided_layouts()),
                         parameter_name);

TEST(NcclPipeline, TiedEmbeddingsAreSummedBetweenTheStages) {
  for (const StagedLayout& layout :
       {StagedLayout{kOneForwardOneBackward, 1, 2}, StagedLayout{kZb1p, 1, 3, 1, 1, 3},
        StagedLayout{kZbv, 1, 2, 2}}) {
    SCOPED_TRACE(words_of(layout));
    const Training training = divided(layout, true);
    reset_fake_nccl({.starts_in_order = true});
    expect_same_training(train(training), train_over_nccl(training));
  }
}

TEST(NcclPipeline, EvaluatesAsLocalRanksDo) {
  for (const StagedLayout& layout :
       {StagedLayout{kInterleaved, 1, 2, 2}, StagedLayout{kZbv, 1, 2, 2}}) {
    SCOPED_TRACE(words_of(layout));
    Training training = divided(layout);
    std::vector<double> losses;
    training.inspect = [&](int rank, Executor& executor) {
      Training one = training;
      one.plan.grad_accum = 1;
      const LossSums sums = executor.evaluate(batch_of(one, 9, rank));
      if (rank == 0) losses.push_back(sums.loss);
    };
    reset_fake_nccl({.starts_in_order = true});
    train(training);
    train_over_nccl(training);
    ASSERT_EQ(losses.size(), 2u);
    EXPECT_EQ(losses[0], losses[1]);
  }
}

// None is made in a step; those of messages leave the multiprocessors to kernels.
TEST(NcclPipeline, CommunicatorsAreMadeBeforeTheFirstStep) {
  Training training = divided({kInterleaved, 2, 2, 2, 1});
  training.steps = 1;
  reset_fake_nccl();
  std::mutex mutex;
  std::set<std::size_t> counts;
  on_nccl_ranks(training, [&](Bootstrap& bootstrap, Executor& executor) {
    const auto count = [&] {
      executor.world().barrier();
      const std::lock_guard lock(mutex);
      counts.insert(shardwright::testing::nccl_blocks().size());
    };
    count();
    const Batch batch = batch_of(training, 1, bootstrap.rank());
    executor.rehearse(batch);
    executor.initialize(3);
    executor.step(batch, step_options(training, 1));
    count();
  });
  // World, shard, replicate, tensor, pipeline, and of messages two each way.
  EXPECT_THAT(counts, ::testing::ElementsAre(4u * (5 + 4)));
  std::map<int, int> most;
  for (const auto& [ctas, policy] : shardwright::testing::nccl_blocks()) ++most[ctas];
  EXPECT_THAT(most,
              ::testing::ElementsAre(std::pair(NCCL_CONFIG_UNDEF_INT, 4 * 5), std::pair(8, 4 * 4)));
  // Of an H100's 18 links NCCL uses as many channels as the communicator may have thread blocks.
  EXPECT_EQ(libraries::message_channels(18, 8), 8);
}

/// Two ranks that send to each other before they receive, on a stream each.
void send_first(const shardwright::testing::FakeNccl& fake, bool by_queues) {
  reset_fake_nccl(fake);
  Plan plan;
  plan.gpus = plan.parallel.pp = 2;
  kernels::host::Parallel parallel(1);
  std::barrier looked(2);
  LocalBootstrapRoom(2).run([&](Bootstrap& bootstrap) {
    const int rank = bootstrap.rank(), other = 1 - rank;
    HostDevice device(parallel, StreamMode::kThreads);
    FakeStreams streams(device);
    NcclOptions options;
    // Only ranks that are not connected come to the end of it.
    options.call_timeout_s = by_queues || fake.polls == 0 ? 60 : 0.5;
    NcclWorld world(bootstrap, options);
    const StreamId stream = device.make_stream("communication", 0);
    const RankGroups groups =
        world.groups(RankMesh(plan, 1), {{0, 1, false}, {1, 0, true}}, device, streams.native());
    std::vector<float> sent(4, static_cast<float>(rank)), taken(4, -1.0f), first(1);
    const Array from{sent.data(), DType::kFp32, 4}, to{taken.data(), DType::kFp32, 4};
    Communicator& pair = *groups.pipeline;
    if (by_queues) {
      pair.connect_messages({first.data(), DType::kFp32, 1});
      pair.post(pair.message_stream(stream, other, rank, true), from, other, rank);
      pair.fetch(pair.message_stream(stream, other, other, false), to, other, other);
    } else {
      pair.send(stream, from, other);
      pair.receive(stream, to, other);
    }
    const auto event = device.make_event();
    device.record(stream, *event);
    if (!by_queues) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      const bool hangs = !event->has_passed();
      looked.arrive_and_wait();  // a rank that fails ends what the other one waits for
      if (hangs) {
        bootstrap.fail(ExitCode::kFailed, "its message is not taken");
        device.drain();
        throw Aborted();
      }
    }
    device.synchronize();
    EXPECT_THAT(taken, ::testing::Each(static_cast<float>(other)));
    groups.leave();
  });
}

// What the fake is for: an order of calls that hangs over NCCL.
TEST(NcclPipeline, RanksThatBothSendFirstHangUnlessTheyHaveQueues) {
  send_first({}, true);
  send_first({.starts_in_order = true}, true);
  EXPECT_THAT([] { send_first({.polls = 0}, false); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("its message is not taken")));
  EXPECT_EQ(shardwright::testing::live_nccl_objects(), 0);
}

// The host waits with its first call between two ranks until both have made one.
TEST(NcclPipeline, RanksThatAreNotConnectedHangOnTheHost) {
  EXPECT_THAT([] { send_first({}, false); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr(
                  "ncclSend is not done after 0.5 s: expected all 2 ranks to call it")));
  EXPECT_EQ(shardwright::testing::live_nccl_objects(), 0);
}

/// The first stage takes the gradient of a micro-batch before it makes its output.
void take_too_early(Schedule& stage) {
  const auto pass = [&](PassKind kind) {
    return std::find_if(stage.sections.begin(), stage.sections.end(), [&](const Section& section) {
      return section.pass && section.pass->kind == kind && section.pass->micro_batch == 0;
    });
  };
  const auto backward = pass(PassKind::kBackward);
  Section receive = *backward;
  receive.block_count = 1;
  backward->first_block += 1;
  backward->block_count -= 1;
  stage.sections.insert(pass(PassKind::kForward), receive);
}

TEST(NcclPipeline, AStepThatHangsIsRefusedAndWhereItRunsNamedAndEnded) {
  Training training = divided({kOneForwardOneBackward, 1, 2});
  std::vector<Schedule> stages = stages_of(training);
  EXPECT_NO_THROW(sim::check_rendezvous(stages));
  take_too_early(stages.front());
  EXPECT_THAT([&] { sim::check_rendezvous(stages); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr(
                  "stage 0 waits for backward 0 of chunk 0 from stage 1, which "
                  "waits for forward 0 of chunk 0 from stage 0")));
  training.change = take_too_early;
  reset_fake_nccl();
  const auto said = hangs_of(training, {.least_s = 0.1, .first_s = 3, .collective_s = 3});
  ASSERT_FALSE(said.empty());
  EXPECT_THAT(said.front(), ::testing::HasSubstr("step 1 has not ended after 3 s"));
  EXPECT_THAT(said.front(), ::testing::ContainsRegex("the first that is not done is stage [01] of "
                                                     "2, [a-z]+ of micro-batch [0-3], chunk 0, "));
}

// Whatever a rank waits for, a message on any queue or a collective: all communicators are aborted.
TEST(NcclPipeline, ARankThatFailsEndsAll) {
  for (const int call : {12, 20, 27, 34, 41}) {
    SCOPED_TRACE(call);
    Training training = divided({kInterleaved, 2, 2, 2, 1});
    training.steps = 50;
    reset_fake_nccl({.failing_rank = 1,
                     .failing_collective = 100 + call,
                     .failure = ncclUnhandledCudaError,
                     .starts_in_order = call % 2 == 0});
    EXPECT_THAT([&] { train_over_nccl(training); },
                ::testing::ThrowsMessage<Error>(::testing::StartsWith("rank 1 of 4: ")));
    EXPECT_EQ(shardwright::testing::live_nccl_objects(), 0);
  }
}

}  // namespace
}  // namespace shardwright::exec
