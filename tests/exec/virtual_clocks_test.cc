// SPDX-License-Identifier: Apache-2.0
// With durations that are said, an executed step lies where the simulated one does, span by span,
// to the nanosecond.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "exec/host/host_device.h"
#include "sim/core/pipeline.h"
#include "sim/engine/engine.h"
#include "sim/pipeline/recurrence.h"
#include "sim/pipeline/step_program.h"
#include "sim/program/stages.h"
#include "sim/trace/observations.h"
#include "tests/exec/joint_walk.h"
#include "tests/exec/staged_training.h"
#include "tests/support/parameter_name.h"

namespace shardwright::exec {
namespace {

using namespace testing;

struct ClockedLayout {
  Strategy strategy = Strategy::kYafsdp;
  std::int64_t tp = 1, pp = 1, virtual_stages = 1, dp = 1, accum = 4;
  PipelineKind kind = PipelineKind::kOneForwardOneBackward;
  const char* recompute = "none";
};

void PrintTo(const ClockedLayout& layout, std::ostream* out) {
  *out << fmt::format("{} {} tp {} pp {} v {} dp {} accum {} {}", name_of(layout.strategy),
                      name_of(layout.kind), layout.tp, layout.pp, layout.virtual_stages, layout.dp,
                      layout.accum, layout.recompute);
}

std::vector<ClockedLayout> clocked_layouts() {
  using enum PipelineKind;
  using enum Strategy;
  std::vector<ClockedLayout> all;
  for (const Strategy strategy :
       {kDdp, kZero1, kZero2, kZero3, kFsdp1, kFsdp2, kFsdp2NoReshard, kYafsdp, kYafsdpZero2})
    all.push_back({strategy, 1, 1, 1, 4, 2});
  for (const std::int64_t accum : {1, 3}) all.push_back({kHsdp, 1, 1, 1, 4, accum});
  all.push_back({kHsdp, 2, 1, 1, 4, 2});
  all.push_back({kHsdp, 1, 2, 1, 4});
  for (const char* recompute : {"full", "selective-op"})
    all.push_back({kYafsdp, 1, 1, 1, 2, 2, kOneForwardOneBackward, recompute});
  for (const Strategy strategy : {kDdp, kZero3, kFsdp2, kYafsdp}) {
    all.push_back({strategy, 2, 1, 1, 2, 2});
    all.push_back({strategy, 1, 2, 1, 2});
    all.push_back({strategy, 2, 2, 1, 2});
  }
  for (const PipelineKind kind : {kGpipe, kOneForwardOneBackward, kZb1p}) {
    all.push_back({kFsdp2, 1, 2, 1, 1, 4, kind});
    all.push_back({kYafsdp, 2, 3, 1, 1, 7, kind});
  }
  all.push_back({kYafsdp, 1, 2, 3, 1, 4, kInterleaved});
  all.push_back({kYafsdp, 2, 2, 3, 2, 4, kInterleaved, "full"});
  all.push_back({kZero3, 1, 3, 2, 2, 6, kInterleaved});
  all.push_back({kYafsdp, 1, 3, 2, 1, 6, kZbv});
  all.push_back({kFsdp2, 2, 2, 2, 2, 5, kZbv, "full"});
  return all;
}

Training training_of(const ClockedLayout& layout) {
  Training training = staged(
      tiny_llama(), layout.strategy,
      {layout.kind, layout.tp, layout.pp, layout.virtual_stages, layout.dp, layout.accum}, false);
  training.options.poison = false;
  if (layout.strategy == Strategy::kHsdp) training.plan.shard_group = layout.dp / 2;
  set_recompute(training.plan, layout.recompute);
  training.plan.ckpt_layers = std::string_view(layout.recompute) == "none" ? 0 : 3;
  return training;
}

thread_local std::int64_t this_rank = 0;

/// Any number of nanoseconds, each time the same.
Nanoseconds drawn(std::uint64_t a, std::uint64_t b) {
  const kernels::RandomStream random{29, kernels::RandomSite::kDelay,
                                     static_cast<std::uint32_t>(b)};
  return static_cast<Nanoseconds>(random.below(a, 5000));
}

struct Executed {
  std::map<std::int64_t, Timeline> timelines;  // by rank
  double step_s = 0;
};

/// The last step of the training with these durations on clocks.
Executed execute(Training training, const JointWalk::Lasts& lasts) {
  static StreamClocks::Processors processors(2);
  static kernels::host::Parallel parallel(1);
  training.make_device = [](int rank) {
    this_rank = rank;
    return std::make_unique<HostDevice>(parallel, processors);
  };
  training.options.trace = true;
  training.options.lasts = [&](const OpInstance& at, const Op& op) {
    return lasts(this_rank, at, op);
  };
  Executed executed;
  std::mutex mutex;
  training.inspect = [&](int rank, Executor& executor) {
    const std::lock_guard lock(mutex);
    executed.timelines[rank] = executor.timeline();
  };
  executed.step_s = train(training).back().result.seconds;
  return executed;
}

std::vector<Schedule> stages_of(const Training& training) {
  return sim::executed_step(training.model, training.plan, native_stack(), training.gpus_per_node)
      .stages;
}

/// What is no work, so no span.
bool is_no_work(const Op& op) {
  const bool is_message = op.kind == OpKind::kSend || op.kind == OpKind::kReceive;
  return op.kind == OpKind::kHostWork || op.kind == OpKind::kSynchronize ||
         (is_message && op.peer < 0);
}

class VirtualClocks : public ::testing::TestWithParam<ClockedLayout> {};
class VirtualClocksOfOneStage : public VirtualClocks {};
class VirtualClocksOfStages : public VirtualClocks {};

std::vector<ClockedLayout> layouts_of(bool stages) {
  std::vector<ClockedLayout> some = clocked_layouts();
  std::erase_if(some, [=](const ClockedLayout& layout) { return (layout.pp > 1) != stages; });
  return some;
}
INSTANTIATE_TEST_SUITE_P(Layouts, VirtualClocks, ::testing::ValuesIn(clocked_layouts()),
                         parameter_name);
INSTANTIATE_TEST_SUITE_P(Layouts, VirtualClocksOfOneStage, ::testing::ValuesIn(layouts_of(false)),
                         parameter_name);
INSTANTIATE_TEST_SUITE_P(Layouts, VirtualClocksOfStages, ::testing::ValuesIn(layouts_of(true)),
                         parameter_name);

TEST_P(VirtualClocks, ExecuteEverySpanWhereTheJointSimulationHasIt) {
  const Training training = training_of(GetParam());
  const std::vector<Schedule> stages = stages_of(training);
  const RankMesh mesh(training.plan, stages.front().shard_ranks());
  const JointWalk::Lasts lasts = [](std::int64_t rank, const OpInstance& at, const Op& op) {
    if (op.kind == OpKind::kGradientNorm) return Nanoseconds{777};
    // Members of a collective agree; kernels are every rank's own.
    const bool meets = op.work.kind == WorkKind::kCollective;
    return drawn(static_cast<std::uint64_t>(at.id),
                 meets ? 0 : static_cast<std::uint64_t>(rank) + 1);
  };
  const Executed executed = execute(training, lasts);
  const JointWalk simulated(stages, mesh, lasts);
  ASSERT_TRUE(simulated.completes());
  ASSERT_EQ(std::ssize(executed.timelines), mesh.ranks);
  Nanoseconds end = 0;
  for (const auto& [rank, timeline] : executed.timelines) {
    std::int64_t operations = 0;
    for_each_op(stages[static_cast<std::size_t>(mesh.place_of(rank).pp)],
                [&](const OpInstance&, const Op& op) { operations += is_no_work(op) ? 0 : 1; });
    EXPECT_EQ(std::ssize(timeline.spans), operations) << "rank " << rank;
    for (const Span& span : timeline.spans) {
      const auto expected = simulated.span(rank, span.stream, span.id);
      ASSERT_EQ(std::pair(span.begin_ns, span.end_ns), expected)
          << "rank " << rank << " operation " << span.id;
      end = std::max(end, span.end_ns);
    }
  }
  EXPECT_NEAR(executed.step_s, static_cast<double>(end) * 1e-9, 1e-12);
}

/// Of an operation of the schedules, whichever rank and micro-batch it is for.
Nanoseconds drawn_by_place(std::int64_t, const OpInstance& at, const Op&) {
  return drawn(at.op, 1);
}

// The engine that predictions are made with, told that streams have processors of their own.
TEST_P(VirtualClocksOfOneStage, ExecuteEverySpanWhereTheEngineHasIt) {
  const Training training = training_of(GetParam());
  const Executed executed = execute(training, drawn_by_place);
  const Schedule schedule = stages_of(training).front();
  std::vector<sim::OpCost> costs(schedule.ops.size());
  for (std::size_t i = 0; i < costs.size(); ++i) {
    OpInstance at;
    at.op = static_cast<std::uint32_t>(i);
    const Op& op = schedule.ops[i];
    costs[i].alone_ns = costs[i].contended_ns = is_no_work(op) ? 0 : drawn_by_place(0, at, op);
  }
  sim::EngineOptions options;
  options.independent_streams = true;
  Timeline simulated;
  options.timeline = &simulated;
  const sim::StepTime step = sim::Engine().run(schedule, costs, options);
  std::map<OpId, Span> spans;
  for (const Span& span : simulated.spans) spans[span.id] = span;
  for (const auto& [rank, timeline] : executed.timelines) {
    for (const Span& span : timeline.spans) {
      if (span.end_ns == span.begin_ns) continue;
      ASSERT_TRUE(spans.contains(span.id)) << span.id;
      ASSERT_EQ(std::pair(span.begin_ns, span.end_ns),
                std::pair(spans[span.id].begin_ns, spans[span.id].end_ns))
          << "rank " << rank << " operation " << span.id;
    }
  }
  EXPECT_NEAR(executed.step_s, static_cast<double>(step.step_ns) * 1e-9, 1e-12);
}

/// The passes of a stage's schedule, one by one: f(action, instance, operation) for what computes.
template <typename F>
void for_each_pass_op(const Schedule& stage, const F& f) {
  for_each_op(stage, [&](const OpInstance& at, const Op& op) {
    const std::optional<Action>& pass = stage.sections[at.section].pass;
    if (pass && op.stream == 0 && !is_no_work(op)) f(*pass, at, op);
  });
}

// The recurrence that puts passes of pipelines in their places, fed with what passes last.
TEST_P(VirtualClocksOfStages, ExecuteEveryPassWhereTheRecurrenceHasIt) {
  constexpr Nanoseconds kMessage = 3001;
  const Training training = training_of(GetParam());
  const std::vector<Schedule> stages = stages_of(training);
  const RankMesh mesh(training.plan, stages.front().shard_ranks());
  // Collectives and what else is beside the compute stream last nothing.
  const JointWalk::Lasts lasts = [&](std::int64_t rank, const OpInstance&, const Op& op) {
    if (op.kind == OpKind::kSend) return kMessage;
    const bool computes = op.stream == 0 && op.work.kind != WorkKind::kCollective;
    const auto stage = static_cast<std::uint64_t>(mesh.place_of(rank).pp);
    // The same in every pass of a kind, of which some are written anew.
    const auto what = static_cast<std::uint64_t>(op.kind) << 16 |
                      static_cast<std::uint64_t>(op.of) << 8 | static_cast<std::uint64_t>(op.phase);
    return computes ? drawn(what, stage) : Nanoseconds{0};
  };
  const Executed executed = execute(training, lasts);

  const PipelineShape shape = sim::pipeline_shape(training.plan);
  sim::PipelineTimes times;
  times.transfer.assign(static_cast<std::size_t>(shape.stages), kMessage);
  times.chunks.resize(static_cast<std::size_t>(shape.stages * shape.chunks));
  // The first micro-batch has nothing to add gradients to.
  times.by_micro_batch.resize(times.chunks.size() * static_cast<std::size_t>(shape.passes()));
  for (const Schedule& stage : stages) {
    const auto number = &stage - stages.data();
    for_each_pass_op(stage, [&](const Action& pass, const OpInstance& at, const Op& op) {
      const Nanoseconds takes = lasts(mesh.rank_of({.pp = number}), at, op);
      sim::ChunkTimes& chunk = times.by_micro_batch[static_cast<std::size_t>(
          (number * shape.chunks + pass.chunk) * shape.passes() + pass.micro_batch)];
      if (pass.kind == PassKind::kForward) {
        chunk.forward += takes;
      } else if (pass.kind == PassKind::kBackwardWeight ||
                 (pass.kind == PassKind::kBackward && op.deferrable)) {
        chunk.weight_gradient += takes;
      } else {
        chunk.input_gradient += takes;
      }
    });
  }
  const sim::PipelineResult simulated =
      sim::run_pipeline(shape, times, sim::StepLength::kWhole, true);

  using Key = std::tuple<std::int32_t, int, int, int>;  // stage, kind, chunk, micro-batch
  const auto key = [](std::int32_t stage, const Action& pass) {
    return Key{stage, static_cast<int>(pass.kind), pass.chunk, pass.micro_batch};
  };
  std::map<Key, std::pair<Nanoseconds, Nanoseconds>> passes;
  for (const sim::ActionSpan& span : simulated.spans)
    passes[key(span.stage, span.action)] = {span.start, span.end};
  for (const auto& [rank, timeline] : executed.timelines) {
    const auto stage = static_cast<std::int32_t>(mesh.place_of(rank).pp);
    std::map<OpId, Span> spans;
    for (const Span& span : timeline.spans) spans[span.id] = span;
    std::map<Key, std::pair<Nanoseconds, Nanoseconds>> seen;
    for_each_pass_op(stages[static_cast<std::size_t>(stage)],
                     [&](const Action& pass, const OpInstance& at, const Op&) {
                       const Span& span = spans.at(at.id);
                       const auto [known, first] = seen.try_emplace(
                           key(stage, pass), std::pair(span.begin_ns, span.end_ns));
                       if (!first) known->second.second = span.end_ns;
                     });
    for (const auto& [which, when] : seen)
      ASSERT_EQ(when, passes.at(which))
          << "rank " << rank << ": " << ::testing::PrintToString(which);
  }
}

// Stages that are through earlier wait until the last one comes to the norm: that is no update yet.
TEST_P(VirtualClocksOfStages, DrainUntilTheLastStageComesToTheNorm) {
  constexpr Nanoseconds kNorm = 777;
  const Training training = training_of(GetParam());
  const std::vector<Schedule> stages = stages_of(training);
  const Executed executed = execute(training, [](std::int64_t, const OpInstance& at, const Op& op) {
    return op.kind == OpKind::kGradientNorm ? kNorm : drawn(at.op, 1);
  });
  const RankMesh mesh(training.plan, stages.front().shard_ranks());
  Timeline all;
  std::map<std::int32_t, Nanoseconds> comes;  // by rank
  Nanoseconds last = 0;
  for (const auto& [rank, timeline] : executed.timelines) {
    all.spans.insert(all.spans.end(), timeline.spans.begin(), timeline.spans.end());
    std::set<OpId> norms;
    for_each_op(stages[static_cast<std::size_t>(mesh.place_of(rank).pp)],
                [&](const OpInstance& at, const Op& op) {
                  if (op.kind == OpKind::kGradientNorm) norms.insert(at.id);
                });
    for (const Span& span : timeline.spans) {
      if (span.id == *norms.begin()) comes[span.rank] = span.begin_ns;
    }
    last = std::max(last, comes.at(static_cast<std::int32_t>(rank)));
  }
  sim::add_measured_passes(stages, mesh, all);
  std::map<std::int32_t, StageWork> before;
  std::size_t updates = 0, waits = 0;
  for (const PassSpan& pass : all.passes) {
    if (pass.work == StageWork::kOptimizer) {
      EXPECT_EQ(pass.begin_ns, last) << "rank " << pass.rank;
      if (comes.at(pass.rank) < last) {
        EXPECT_EQ(before.at(pass.rank), StageWork::kBubble) << "rank " << pass.rank;
        ++waits;
      }
      ++updates;
    }
    before[pass.rank] = pass.work;
  }
  EXPECT_EQ(updates, comes.size());
  EXPECT_GT(waits, 0u);
}

}  // namespace
}  // namespace shardwright::exec
