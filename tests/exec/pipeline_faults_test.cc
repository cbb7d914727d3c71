// SPDX-License-Identifier: Apache-2.0
// A rank of tensor ranks x stages x replicas fails at every operation of a step: all ranks end, and
// one sentence says at which stage, pass and operation, and with whom.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "exec/recorder.h"
#include "exec/train/hang_watch.h"
#include "sim/core/base/error.h"
#include "sim/pipeline/step_program.h"
#include "tests/exec/training.h"

namespace shardwright::exec {
namespace {

using namespace testing;

/// Two tensor ranks x two stages x two replicas.
struct Cluster {
  explicit Cluster(PipelineKind kind) {
    training.model.layers = 2;
    training.model.tied_head = false;
    training.plan = tiny_plan(Strategy::kYafsdp, 8, 2);
    training.plan.seq_len = 8;
    training.plan.parallel.tp = training.plan.parallel.pp = 2;
    training.plan.parallel.pp_schedule = kind;
    stages = sim::executed_step(training.model, training.plan, native_stack(), 8).stages;
    mesh = RankMesh(training.plan, stages.front().shard_ranks());
  }
  const Schedule& schedule(int rank) const {
    return stages[static_cast<std::size_t>(mesh.place_of(rank).pp)];
  }

  Training training;
  std::vector<Schedule> stages;
  RankMesh mesh;
};

/// Operations that a marker hears of, in its order; those of the head run as one.
std::vector<OpInstance> marked(const Schedule& schedule) {
  std::vector<OpInstance> all;
  bool of_head = false;
  for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
    const bool is_message = op.kind == OpKind::kSend || op.kind == OpKind::kReceive;
    const bool is_mark = op.kind == OpKind::kHostWork || (is_message && op.peer < 0);
    if (!of_head && !is_mark && op.kind != OpKind::kSynchronize) all.push_back(at);
    if (op.kind == OpKind::kHeadProjection) of_head = true;
    if (op.kind == OpKind::kWeightGradient && op.weight == Weight::kHead) of_head = false;
  });
  return all;
}

/// Calls `act` where the rank has come to its n-th operation.
class ActingMarker final : public RangeMarker {
 public:
  ActingMarker(std::size_t operation, std::function<void()> act)
      : left_(operation + 1), act_(std::move(act)) {}
  void begin(const std::string&) override {
    if (left_ > 0 && --left_ == 0) act_();
  }
  void end() override {}

 private:
  std::size_t left_;
  std::function<void()> act_;
};

constexpr std::size_t kNowhere = ~std::size_t{0} / 2;

struct Fault {
  int rank = 0;
  std::size_t operation = kNowhere;
  bool in_stream = false;
};

/// What the world tells of the fault; all ranks have ended then.
std::string told(const Cluster& cluster, const Fault& fault, StreamMode mode) {
  kernels::host::Parallel parallel(1);
  LocalWorld world(cluster.mesh);
  const OpInstance at = marked(cluster.schedule(fault.rank))[fault.operation];
  const StreamId stream = cluster.schedule(fault.rank).ops[at.op].stream;
  try {
    world.run([&](int own) {
      HostDevice device(parallel, mode, 1);
      const auto fail = [] { throw Error("out of paper", ExitCode::kFailed); };
      ActingMarker marker(own == fault.rank ? fault.operation : kNowhere,
                          [&] { fault.in_stream ? device.call(stream, fail) : fail(); });
      ExecutorOptions options;
      options.ranges = &marker;
      Executor executor(cluster.training.model, cluster.training.plan, cluster.schedule(own),
                        device, world.groups(own, device), options);
      executor.initialize(3);
      executor.step(batch_of(cluster.training, 1, own), step_options(cluster.training, 1));
    });
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kFailed);
    EXPECT_EQ(world.failed_rank(), fault.rank);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

/// Stage, pass, operation and peers as a reader of the schedule finds them.
std::string expected(const Cluster& cluster, int rank, const OpInstance& at) {
  const Schedule& schedule = cluster.schedule(rank);
  const Op& op = schedule.ops[at.op];
  const std::int64_t stage = cluster.mesh.place_of(rank).pp;
  std::string words = fmt::format("out of paper, at stage {} of 2, ", stage);
  if (const auto& pass = schedule.sections[at.section].pass) {
    const std::map<char, std::string> passes = {
        {'F', "forward"}, {'B', "backward"}, {'I', "input gradients"}, {'W', "weight gradients"}};
    words += fmt::format("{} of micro-batch {}, chunk 0, ", passes.at(letter_of(pass->kind)),
                         pass->micro_batch);
  }
  words += name_of(op.kind);
  if (op.of != OpKind::kHostWork) words += fmt::format(" of {}", name_of(op.of));
  words += fmt::format(" of unit {} of 5 on stream {}", schedule.target(op, at.unit),
                       schedule.streams[op.stream].name);
  if (op.peer >= 0) {
    RankPlace there = cluster.mesh.place_of(rank);
    there.pp = op.peer;
    return words + fmt::format(" {} rank {} of stage {}", op.kind == OpKind::kSend ? "to" : "from",
                               cluster.mesh.rank_of(there), op.peer);
  }
  if (op.kind == OpKind::kGradientNorm) return words + " between ranks 0, 1, 2, 3, 4, 5, 6, 7";
  if (!is_collective(op.kind)) return words;
  // Ranks are numbered along tensor ranks, then replicas.
  const std::int64_t own = rank % 4, first = 4 * stage;
  if (op.work.group == CommGroup::kTensor)
    return words +
           fmt::format(" between ranks {}, {}", first + own / 2 * 2, first + own / 2 * 2 + 1);
  return words + fmt::format(" between ranks {}, {}", first + own % 2, first + own % 2 + 2);
}

/// Each `every`-th operation of both stages, on one of the ranks that do it.
template <class F>
void for_each_fault(const Cluster& cluster, std::size_t every, const F& f) {
  std::size_t number = 0;
  for (const std::int64_t stage : {0, 1}) {
    const std::vector<OpInstance> all = marked(cluster.stages[static_cast<std::size_t>(stage)]);
    for (std::size_t i = 0; i < all.size() && !::testing::Test::HasFailure(); i += every) {
      const auto place = static_cast<std::int64_t>(number++ % 4);
      const auto rank =
          static_cast<int>(cluster.mesh.rank_of({.tp = place % 2, .dp = place / 2, .pp = stage}));
      SCOPED_TRACE(fmt::format("rank {}, operation {}", rank, i));
      f(Fault{rank, i, number % 3 == 0}, all[i]);
    }
  }
}

TEST(PipelineFaults, AnErrorAtAnyOperationEndsAllAndIsPlaced) {
  const Cluster cluster(PipelineKind::kZb1p);
  for_each_fault(cluster, 1, [&](const Fault& fault, const OpInstance& at) {
    EXPECT_EQ(told(cluster, fault, StreamMode::kInline), expected(cluster, fault.rank, at));
  });
}

// The host may be far ahead of an operation that fails on a stream's thread.
TEST(PipelineFaults, OfStreamsThatAreThreadsTheOperationIsTold) {
  const Cluster cluster(PipelineKind::kOneForwardOneBackward);
  for_each_fault(cluster, 7, [&](const Fault& fault, const OpInstance& at) {
    EXPECT_EQ(told(cluster, fault, StreamMode::kThreads), expected(cluster, fault.rank, at));
  });
}

/// What is told where a rank hangs until then.
std::string told_of_hang(const Cluster& cluster, const Fault& fault) {
  kernels::host::Parallel parallel(1);
  LocalWorld world(cluster.mesh);
  std::promise<std::string> told;
  const std::shared_future<std::string> sentence = told.get_future().share();
  HangWatch watch(8, 0.5, [&](const std::string& said) { told.set_value(said); });
  EXPECT_THROW(world.run([&](int own) {
    HostDevice device(parallel, StreamMode::kInline);
    ActingMarker marker(own == fault.rank ? fault.operation : kNowhere, [&] {
      EXPECT_EQ(sentence.wait_for(std::chrono::seconds(120)), std::future_status::ready);
      throw Error("woken");
    });
    ExecutorOptions options;
    options.ranges = &marker;
    Executor executor(cluster.training.model, cluster.training.plan, cluster.schedule(own), device,
                      world.groups(own, device), options);
    const HangWatch::Member member(watch, own, executor);
    executor.initialize(3);
    executor.step(batch_of(cluster.training, 1, own), step_options(cluster.training, 1));
  }),
               Error);
  return sentence.get();
}

// However long it lasts: its ranks may write what they have.
TEST(PipelineFaults, BetweenStepsNobodyIsWatched) {
  const Cluster cluster(PipelineKind::kOneForwardOneBackward);
  kernels::host::Parallel parallel(1);
  LocalWorld world(cluster.mesh);
  HangWatch watch(8, 0.1, [](const std::string& said) { ADD_FAILURE() << said; });
  world.run([&](int own) {
    HostDevice device(parallel, StreamMode::kInline);
    Executor executor(cluster.training.model, cluster.training.plan, cluster.schedule(own), device,
                      world.groups(own, device));
    executor.initialize(3);
    executor.step(batch_of(cluster.training, 1, own), step_options(cluster.training, 1));
    executor.world().barrier();
    const HangWatch::Member member(watch, own, executor);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  });
}

TEST(PipelineFaults, AHangEndsAllAndOneSentenceNamesWhoIsWaitedFor) {
  const Cluster cluster(PipelineKind::kZb1p);
  for_each_fault(cluster, 41, [&](const Fault& fault, const OpInstance& at) {
    const std::string said = told_of_hang(cluster, fault);
    // Stages come to it together, each with its own words for it.
    const bool is_of_all = cluster.schedule(fault.rank).ops[at.op].kind == OpKind::kGradientNorm;
    const std::string where = expected(cluster, fault.rank, at).substr(17);
    EXPECT_NE(said.find(is_of_all ? "gradient_norm" : where), std::string::npos)
        << said << "\nexpected " << where;
    EXPECT_EQ(said.find("no rank has begun an operation for 0.5 s (--rank-timeout): "), 0u) << said;
    EXPECT_EQ(said.find('\n'), std::string::npos);
  });
}

}  // namespace
}  // namespace shardwright::exec
