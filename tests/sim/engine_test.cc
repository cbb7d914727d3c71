// SPDX-License-Identifier: Apache-2.0
// Semantics of the event engine on hand-written schedules of a few operations, and the promise that
// skipping repeated layers changes nothing, on the schedules of every strategy.
#include "sim/engine/engine.h"

#include "sim/cost/cost.h"
#include "tests/sim/prediction.h"

namespace shardwright::sim {
namespace {

/// A schedule of one section and one block that repeats, with the cost of each operation beside it.
class Step {
 public:
  explicit Step(std::int32_t repeats = 1, std::int32_t layers = 8) {
    schedule_.layers = layers;
    schedule_.event_names.assign(8, "event");
    schedule_.event_names[0] = "";
    schedule_.streams = {{"compute", StreamRole::kCompute, 0, 0}};
    schedule_.blocks.emplace_back();
    schedule_.blocks[0].repeats = repeats;
    schedule_.sections.push_back({0, 1, 1});
  }
  std::uint8_t stream(int priority = 0, int collective_priority = 0) {
    schedule_.streams.push_back({"stream", StreamRole::kSide, priority, collective_priority});
    return static_cast<std::uint8_t>(schedule_.streams.size() - 1);
  }
  /// A kernel; the reference lives until the next operation is added.
  Op& kernel(std::uint8_t stream, Nanoseconds alone, Nanoseconds contended = 0,
             Nanoseconds host = 0) {
    return add(OpKind::kNorm, WorkKind::kMemory, stream, alone, contended, host);
  }
  Op& collective(std::uint8_t stream, Nanoseconds alone, Nanoseconds contended = 0,
                 Nanoseconds host = 0) {
    return add(OpKind::kAllGather, WorkKind::kCollective, stream, alone, contended, host);
  }
  Op& host_work(Nanoseconds duration) {
    return add(OpKind::kHostWork, WorkKind::kHost, 0, 0, 0, duration);
  }
  /// The host blocks until the event has completed, or until the device is idle.
  void host_wait(EventRef event = {}, Nanoseconds wakeup = 0) {
    Op& op = add(OpKind::kSynchronize, WorkKind::kHost, 0, 0, 0, wakeup);
    op.host_waits = true;
    op.waits[0] = event;
  }

  StepTime run(bool skip_repeats = true) {
    schedule_.blocks[0].op_count = static_cast<std::uint32_t>(schedule_.ops.size());
    return engine_.run(schedule_, costs_, {.skip_repeats = skip_repeats});
  }
  /// Begin and end of every device operation, by OpId.
  std::map<OpId, std::pair<Nanoseconds, Nanoseconds>> spans(EngineOptions options = {}) {
    schedule_.blocks[0].op_count = static_cast<std::uint32_t>(schedule_.ops.size());
    Timeline timeline;
    options.timeline = &timeline;
    engine_.run(schedule_, costs_, options);
    std::map<OpId, std::pair<Nanoseconds, Nanoseconds>> result;
    for (const Span& span : timeline.spans) result[span.id] = {span.begin_ns, span.end_ns};
    return result;
  }
  Schedule& schedule() { return schedule_; }

 private:
  Op& add(OpKind kind, WorkKind work, std::uint8_t stream, Nanoseconds alone, Nanoseconds contended,
          Nanoseconds host) {
    Op& op = schedule_.ops.emplace_back();
    op.kind = kind;
    op.stream = stream;
    op.work.kind = work;
    costs_.push_back({alone, contended == 0 ? alone : contended, host});
    return op;
  }

  Schedule schedule_;
  std::vector<OpCost> costs_;
  Engine engine_;
};

using Span2 = std::pair<Nanoseconds, Nanoseconds>;

TEST(Engine, KernelsOfAStreamRunInOrder) {
  Step step;
  step.kernel(0, 30);
  step.kernel(0, 50);
  EXPECT_EQ(step.run().step_ns, 80);
  EXPECT_EQ(step.spans()[1], Span2(30, 80));
}

TEST(Engine, KernelsOfTwoStreamsShareOneGpu) {
  Step step;
  const std::uint8_t side = step.stream();
  step.kernel(0, 30);
  step.kernel(side, 50);
  EXPECT_EQ(step.run().step_ns, 80);
  EXPECT_EQ(step.run().time.compute_ns, 80);
}

TEST(Engine, EqualPrioritiesAlternateComputeFirst) {
  Step step;
  const std::uint8_t side = step.stream();
  step.kernel(side, 10);
  step.kernel(side, 10);
  step.kernel(0, 30);
  step.kernel(0, 30);
  auto spans = step.spans();
  EXPECT_EQ(spans[2], Span2(0, 30));
  EXPECT_EQ(spans[0], Span2(30, 40));
  EXPECT_EQ(spans[3], Span2(40, 70));
  EXPECT_EQ(spans[1], Span2(70, 80));
}

TEST(Engine, EqualPrioritiesLetSideStreamsGoFirstWhereAsked) {
  Step step;
  const std::uint8_t side = step.stream();
  step.kernel(0, 30);
  step.kernel(side, 50);
  EngineOptions options;
  options.side_streams_first = true;
  EXPECT_EQ(step.spans(options)[1], Span2(0, 50));
  EXPECT_EQ(step.spans(options)[0], Span2(50, 80));
  EXPECT_EQ(step.spans()[0], Span2(0, 30));
}

TEST(Engine, AnAllocatorThatEmptiesItsCacheDrainsDeviceAndRunAhead) {
  Step step;
  step.kernel(0, 100, 0, 1);
  step.kernel(0, 100, 0, 1);
  step.kernel(0, 100, 0, 1);
  EXPECT_EQ(step.spans()[2], Span2(201, 301));
  const std::vector<Nanoseconds> drains = {0, 40};
  EngineOptions options;
  options.allocation_ns = &drains;
  const auto drained = step.spans(options);
  EXPECT_EQ(drained.at(0), Span2(1, 101));
  EXPECT_EQ(drained.at(1), Span2(142, 242));  // idle at 101, 40 in the allocator, 1 to issue
  EXPECT_EQ(drained.at(2), Span2(242, 342));
  const std::vector<Nanoseconds> more = {0, -40};
  options.allocation_ns = &more;
  EXPECT_EQ(step.spans(options).at(1), Span2(101, 201));  // the host is ahead
}

TEST(Engine, AKernelOfHigherPriorityDisplacesTheRunningOne) {
  Step step;
  const std::uint8_t urgent = step.stream(-1);
  step.kernel(0, 100);
  step.kernel(urgent, 20, 0, /*host=*/40);  // issued at 40, while the first runs
  auto spans = step.spans();
  EXPECT_EQ(spans[1], Span2(40, 60));
  EXPECT_EQ(spans[0], Span2(0, 120));
}

TEST(Engine, ACollectiveOverlapsKernelsAtContendedRates) {
  Step step;
  const std::uint8_t comm = step.stream(0, -1);
  step.collective(comm, 50, 80);
  step.kernel(0, 100, 200);
  auto spans = step.spans();
  // The collective takes 80 beside the kernel, which does 40 of its 100 meanwhile.
  EXPECT_EQ(spans[0], Span2(0, 80));
  EXPECT_EQ(spans[1], Span2(0, 140));
  EXPECT_EQ(step.run().communication_ns, 80);
}

TEST(Engine, ACollectiveGoesBackToItsOwnRateWhenKernelsEnd) {
  Step step;
  const std::uint8_t comm = step.stream(0, -1);
  step.collective(comm, 100, 200);
  step.kernel(0, 60);
  const StepTime time = step.run();
  EXPECT_EQ(time.step_ns, 60 + 70);  // 60 beside the kernel are 30 of the 100
  EXPECT_EQ(time.time.exposed_ns, 70);
  EXPECT_EQ(time.time.compute_ns, 60);
}

TEST(Engine, ACollectiveWithoutPriorityWaitsForTheRunningKernel) {
  for (const int priority : {0, -1}) {
    Step step;
    const std::uint8_t comm = step.stream(0, priority);
    step.kernel(0, 100);
    step.collective(comm, 30, 0, /*host=*/10);
    const Nanoseconds begin = priority < 0 ? 10 : 100;
    EXPECT_EQ(step.spans()[1], Span2(begin, begin + 30)) << "priority " << priority;
  }
}

TEST(Engine, AnOperationWaitsForTheEventsItNames) {
  Step step;
  const std::uint8_t comm = step.stream(0, -1);
  step.collective(comm, 70).record = {1, 0};
  step.kernel(0, 20);
  step.kernel(0, 20).waits[0] = {1, 0};
  EXPECT_EQ(step.spans()[2], Span2(70, 90));
}

TEST(Engine, AnEventThatWasNeverRecordedIsNoWait) {
  Step step;
  step.kernel(0, 20).waits[0] = {3, 0};
  EXPECT_EQ(step.run().step_ns, 20);
}

TEST(Engine, AWaitMeansTheLastRecordAtTheTimeItIsIssued) {
  Step step;
  const std::uint8_t comm = step.stream(0, -1);
  step.collective(comm, 10).record = {1, 0};
  step.kernel(0, 5).waits[0] = {1, 0};  // the first record, not the second
  step.collective(comm, 90).record = {1, 0};
  EXPECT_EQ(step.spans()[1], Span2(10, 15));
}

TEST(Engine, EventsOfOtherUnitsAreNamedByOffset) {
  Step step(/*repeats=*/3);
  const std::uint8_t comm = step.stream(0, -1);
  Op& gather = step.collective(comm, 40);
  gather.waits[0] = {2, -1};  // the compute of the unit before
  gather.record = {1, 0};
  Op& compute = step.kernel(0, 10);
  compute.waits[0] = {1, 0};
  compute.record = {2, 0};
  EXPECT_EQ(step.run().step_ns, 3 * (40 + 10));
}

TEST(Engine, TheDeviceWaitsForASlowHost) {
  Step step;
  for (int i = 0; i < 4; ++i) step.kernel(0, 10, 0, /*host=*/25);
  const StepTime time = step.run();
  EXPECT_EQ(time.step_ns, 4 * 25 + 10);
  EXPECT_EQ(time.time.host_ns, 25 + 3 * 15);
}

TEST(Engine, TheHostRunsAheadUntilTheScheduleBlocksIt) {
  Step step;
  step.kernel(0, 100, 0, 5).record = {1, 0};
  step.host_wait({1, 0}, /*wakeup=*/7);
  step.kernel(0, 10, 0, 5);
  EXPECT_EQ(step.spans()[2], Span2(5 + 100 + 7 + 5, 127));
}

TEST(Engine, AHostThatFindsTheEventDoneDoesNotBlock) {
  Step step;
  step.kernel(0, 10, 0, 5).record = {1, 0};
  step.host_work(100);
  step.host_wait({1, 0}, /*wakeup=*/7);
  step.kernel(0, 10, 0, 5);
  EXPECT_EQ(step.spans()[3], Span2(110, 120));
}

TEST(Engine, SynchronizeDrainsEveryStream) {
  Step step;
  const std::uint8_t comm = step.stream(0, -1);
  step.kernel(0, 10);
  step.collective(comm, 300);
  step.host_wait();
  step.kernel(0, 10, 0, 20);
  EXPECT_EQ(step.run().step_ns, 300 + 20 + 10);
}

TEST(Engine, ReusedEnginesAnswerTheSame) {
  Step step(/*repeats=*/6);
  const std::uint8_t comm = step.stream(0, -1);
  step.collective(comm, 31, 47).record = {1, 0};
  step.kernel(0, 53, 71).waits[0] = {1, 0};
  const StepTime first = step.run();
  EXPECT_EQ(step.run().step_ns, first.step_ns);
  step.spans();
  EXPECT_EQ(step.run().step_ns, first.step_ns);
}

TEST(Engine, SkippingSimulatesFewOfManyRepeats) {
  Step step(/*repeats=*/200, /*layers=*/200);
  const std::uint8_t comm = step.stream(0, -1);
  Op& gather = step.collective(comm, 31, 47);
  gather.waits[0] = {2, -2};
  gather.record = {1, 0};
  Op& compute = step.kernel(0, 53, 71);
  compute.waits[0] = {1, 0};
  compute.record = {2, 0};
  const StepTime skipped = step.run(true);
  const StepTime full = step.run(false);
  EXPECT_EQ(skipped.step_ns, full.step_ns);
  EXPECT_EQ(full.simulated_ops, 400);
  EXPECT_LT(skipped.simulated_ops, 40);
}

TEST(Engine, SkippingLooksAsFarBackAsEventsReach) {
  // The gather of a unit waits for a buffer that was released twelve units ago.
  Step step(/*repeats=*/60, /*layers=*/60);
  const std::uint8_t comm = step.stream(0, -1);
  Op& gather = step.collective(comm, 10);
  gather.waits[0] = {2, -12};
  gather.record = {1, 0};
  Op& compute = step.kernel(0, 25);
  compute.waits[0] = {1, 0};
  compute.record = {2, 0};
  EXPECT_EQ(step.run(true).step_ns, step.run(false).step_ns);
}

/// Equal in every number that a prediction shows.
void expect_same(const StepTime& skipped, const StepTime& full, const std::string& what) {
  EXPECT_EQ(skipped.step_ns, full.step_ns) << what;
  EXPECT_EQ(skipped.time.compute_ns, full.time.compute_ns) << what;
  EXPECT_EQ(skipped.time.exposed_ns, full.time.exposed_ns) << what;
  EXPECT_EQ(skipped.time.host_ns, full.time.host_ns) << what;
  EXPECT_EQ(skipped.time.optimizer_ns, full.time.optimizer_ns) << what;
  EXPECT_EQ(skipped.communication_ns, full.communication_ns) << what;
  EXPECT_EQ(skipped.phase_ns, full.phase_ns) << what;
  EXPECT_LE(skipped.simulated_ops, full.simulated_ops) << what;
}

TEST(Engine, SkippingRepeatsChangesNothingForAnyStrategy) {
  std::mt19937 random(20240611);
  const auto pick = [&](auto values) { return values[random() % values.size()]; };
  Model model = shipped("llama-3-8b");
  Engine engine;
  std::vector<OpCost> costs;
  std::int64_t simulated = 0, expanded = 0;
  for (const char* stack : {"native", "hf-eager", "torch-eager", "torch-compile", "mpt-eager"}) {
    const profiles::Profile profile = profiles::load_profile(
        pick(std::vector<std::string>{"a100-80g-4xhdr200", "dgx-h100", "h100-pcie8"}), stack);
    CostModel cost_model(profile);
    for (int trial = 0; trial < 60; ++trial) {
      model.layers = 8 + static_cast<std::int64_t>(random() % 40);
      Plan plan;
      plan.stack = stack;
      do {
        plan.strategy = static_cast<Strategy>(random() % kStrategyCount);
      } while (info_of(plan.strategy).software == Software::kMegatron);
      plan.gpus = pick(std::vector<std::int64_t>{2, 8, 16, 64, 512});
      if (profile.cluster.nics_per_node == 0) plan.gpus = std::min<std::int64_t>(plan.gpus, 8);
      if (plan.strategy == Strategy::kSingle) plan.gpus = 1;
      plan.seq_len = pick(std::vector<std::int64_t>{256, 2048});
      plan.micro_batch = 1 + static_cast<std::int64_t>(random() % 3);
      plan.grad_accum = pick(std::vector<std::int64_t>{1, 2, 3, 5, 9, 17});
      plan.ckpt_layers =
          static_cast<std::int64_t>(random()) % (model.layers + 1);  // a prefix of any length
      plan.recompute = pick(std::vector<Recompute>{Recompute::kFull, Recompute::kSelectiveOp});
      plan.reduce_dtype = pick(std::vector<DType>{DType::kFp32, DType::kBf16});
      plan.buffers = pick(std::vector<int>{2, 3, 5, 12});
      Schedule schedule;
      try {
        schedule =
            executed_step(model, plan, profile.stack, profile.cluster.gpus_per_node).stages.front();
        cost_model.cost(schedule, costs);
      } catch (const Error&) {
        continue;  // not a plan for this cluster
      }
      const StepTime skipped = engine.run(schedule, costs, {.skip_repeats = true});
      const StepTime full = engine.run(schedule, costs, {.skip_repeats = false});
      expect_same(skipped, full,
                  std::string(stack) + " " + std::string(name_of(plan.strategy)) + " layers " +
                      std::to_string(model.layers) + " k " + std::to_string(plan.ckpt_layers) +
                      " accum " + std::to_string(plan.grad_accum) + " gpus " +
                      std::to_string(plan.gpus) + " buffers " + std::to_string(plan.buffers));
      simulated += skipped.simulated_ops;
      expanded += full.simulated_ops;
    }
  }
  EXPECT_LT(simulated, expanded / 2);  // and it does skip
}

}  // namespace
}  // namespace shardwright::sim
