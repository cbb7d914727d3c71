// SPDX-License-Identifier: Apache-2.0
// Guards how a tracer takes the place of clock readings in the recorder: it hears of every
// operation in the order of the schedule, only in the steps that it watches, and its spans reach
// the timeline of all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "exec/trace/activity.h"
#include "exec/train/metrics.h"
#include "tests/exec/training.h"

namespace shardwright::exec {
namespace {

using namespace testing;

/// Watches step 2; every operation becomes one kernel, named after the rank.
class Watcher final : public StepTracer {
 public:
  explicit Watcher(int rank) : rank_(rank) {}
  bool begin_step(std::int32_t step) override {
    steps.push_back(step);
    return step == 2;
  }
  void begin_op(OpId id) override {
    EXPECT_FALSE(open_) << "operations do not nest";
    open_ = true;
    ops.push_back(id);
  }
  void end_op() override { open_ = false; }
  TracedStep take_step() override {
    TracedStep step;
    step.names = {"kernel of all", "kernel of rank " + std::to_string(rank_)};
    step.streams = {"compute", "communication", "stream 99 of the driver"};
    for (const OpId id : ops) step.spans.push_back({.id = id, .rank = rank_, .name = 1});
    step.host.push_back({.id = -1, .rank = rank_, .name = 0});
    return step;
  }
  std::string report() const override { return "watched"; }

  std::vector<std::int32_t> steps;
  std::vector<OpId> ops;

 private:
  int rank_;
  bool open_ = false;
};

TEST(StepTracer, SeesTheOperationsOfItsStepsAndGivesTheSpans) {
  Training training;
  training.model = uneven_llama();
  training.plan = tiny_plan(Strategy::kYafsdp, 2);
  const Schedule schedule =
      sim::executed_step(training.model, training.plan, native_stack(), 2).stages.front();
  kernels::host::Parallel parallel(1);
  LocalWorld world(2, 2);
  world.run([&](int rank) {
    HostDevice device(parallel, StreamMode::kInline);
    Watcher watcher(rank);
    ExecutorOptions options;
    options.trace = true;
    options.tracer = &watcher;
    Executor executor(training.model, training.plan, schedule, device, world.groups(rank, device),
                      options);
    executor.initialize(3);
    for (int step = 1; step <= 3; ++step) {
      executor.step(batch_of(training, step, rank), step_options(training, step));
      const Timeline timeline = gather_timeline(executor.world(), executor.timeline());
      if (step != 2) {
        EXPECT_TRUE(timeline.spans.empty()) << "step " << step;
        continue;
      }
      EXPECT_EQ(timeline.spans.size(), 2 * watcher.ops.size());
      EXPECT_THAT(timeline.names,
                  ::testing::ElementsAre("kernel of all", "kernel of rank 0", "kernel of rank 1"));
      for (const Span& span : timeline.spans) {
        EXPECT_EQ(span.name, 1 + span.rank);
        EXPECT_EQ(span.step, 2);
      }
      EXPECT_EQ(timeline.streams.size(), 3U);
      // The issue of every operation, and what the tracer saw of the host.
      EXPECT_EQ(timeline.host.size(), 2 * watcher.ops.size() + 2);
    }
    executor.evaluate(batch_of(training, 4, rank));
    EXPECT_THAT(watcher.steps, ::testing::ElementsAre(1, 2, 3, 0));
    std::vector<OpId> seen = watcher.ops;
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    EXPECT_GT(seen.size(), 50U);
  });
}

}  // namespace
}  // namespace shardwright::exec
