// SPDX-License-Identifier: Apache-2.0
// Messages between stages of a traced pipeline, as calibration takes them.

#include "sim/calibrate/rows.h"
#include "sim/cost/op_cost.h"
#include "sim/trace/observations.h"
#include "tests/sim/model_parallel_plans.h"
#include "tests/support/parameter_name.h"
#include "tests/support/tiny_models.h"

namespace shardwright::sim {
namespace {

using profiles::MeasuredRow;
using profiles::Observation;
using profiles::ObservationSet;

constexpr Nanoseconds kOnItsWay = 20'000;

/// Two stages of two ranks each. Every message is sent 1 ms after the last one; who receives it
/// asked 50 us before, of every second message of a rank 5 us after, and has it 20 us after it was
/// sent.
struct TracedMessages {
  TracedMessages() {
    const Model model = shipped("llama-3.2-1b");
    plan = shardwright::testing::tiny_plan(Strategy::kYafsdp, 4);
    plan.stack = "native";
    plan.parallel.pp = 2;
    plan.grad_accum = 4;
    stages = executed_step(model, plan, profiles::load_stack("native").stack, 4).stages;
    message_bytes = plan.seq_len * plan.micro_batch * model.hidden * bytes_of(plan.param_dtype);
    for (const Stream& stream : stages.front().streams) timeline.streams.emplace_back(stream.name);
    for (std::int32_t rank = 0; rank < 4; ++rank) timeline.stages[rank] = {rank / 2, 1, ""};
    for (const bool forward : {true, false}) add_messages(forward);
  }

  void add_messages(bool forward) {
    const std::vector<OpInstance> sends = of_kind(forward ? 0 : 1, OpKind::kSend);
    const std::vector<OpInstance> receives = of_kind(forward ? 1 : 0, OpKind::kReceive);
    ASSERT_EQ(sends.size(), 4U);
    ASSERT_EQ(receives.size(), 4U);
    for (std::size_t i = 0; i < sends.size(); ++i) {
      for (const std::int32_t place : {0, 1}) {
        const Nanoseconds sent = 1'000'000 * (1 + std::ssize(timeline.spans));
        const Nanoseconds asked = i % 2 == 0 ? sent - 50'000 : sent + 5'000;
        add(sends[i], (forward ? 0 : 2) + place, sent, sent + 3'000);
        add(receives[i], (forward ? 2 : 0) + place, asked, sent + kOnItsWay);
      }
    }
  }

  std::vector<OpInstance> of_kind(std::size_t stage, OpKind kind) const {
    std::vector<OpInstance> found;
    for_each_op(stages[stage], [&](const OpInstance& at, const Op& op) {
      const bool is_of_pass = stages[stage].sections[at.section].pass.has_value();
      if (op.kind == kind && op.peer >= 0 && is_of_pass) found.push_back(at);
    });
    return found;
  }

  void add(const OpInstance& at, std::int32_t rank, Nanoseconds begin, Nanoseconds end) {
    Span& span = timeline.spans.emplace_back();
    span.id = at.id;
    span.rank = rank;
    span.begin_ns = begin;
    span.end_ns = end;
  }

  ObservationSet observed(const TraceOrigin& origin, std::int64_t gpus_per_node = 4) const {
    StepTrace trace = step_trace_of(stages, timeline, "made");
    trace.origin = origin;
    return observations_of(trace, stages, gpus_per_node);
  }

  Plan plan;
  Bytes message_bytes = 0;
  std::vector<Schedule> stages;
  Timeline timeline;
};

TraceOrigin executed(const char* device, const char* transport) {
  TraceOrigin origin;
  origin.device = device;
  origin.transport = transport;
  return origin;
}

TEST(MessageObservations, LastFromWhenTheyWereSentAndAreTakenWhereSomebodyWaited) {
  const TracedMessages traced;
  const ObservationSet set = traced.observed(executed("host", "local"));
  ASSERT_EQ(set.observations.size(), 8U) << "of 16, every second one was awaited";
  for (const Observation& o : set.observations) {
    EXPECT_EQ(o.op, OpKind::kReceive);
    EXPECT_NEAR(o.seconds, 20e-6, 1e-12);
    EXPECT_EQ(o.work.bytes, traced.message_bytes);
    EXPECT_EQ(o.ranks, 2);
    EXPECT_EQ(o.nodes, 1);
    EXPECT_EQ(o.contended, 0);
  }
  ASSERT_EQ(set.left_out.size(), 1U);
  EXPECT_EQ(set.left_out[0].count, 8);
  EXPECT_THAT(set.left_out[0].what, HasSubstr("waited to be taken"));
}

TEST(MessageObservations, CrossNodesWhereTheirStagesDo) {
  const TracedMessages traced;
  for (const Observation& o : traced.observed(executed("host", "mpi"), 2).observations)
    EXPECT_EQ(o.nodes, 2);
}

TEST(MessageObservations, CopiesOnOneGpuAreNoLinkSpeed) {
  const TracedMessages traced;
  EXPECT_EQ(traced.observed(executed("cuda", "nccl")).observations.size(), 8U);
  EXPECT_THROW(traced.observed(executed("cuda", "local")), Error) << "nothing else is in the trace";
}

TEST(MessageObservations, AreCostedAsPipelinesCostThem) {
  constexpr double kChannels = 2e10;  // bytes/s
  profiles::Profile profile = h100();
  for (const std::int64_t nodes : {1, 2}) {
    for (const std::int64_t bytes : {std::int64_t{1} << 14, std::int64_t{1} << 25}) {
      double with_links_s = 0;
      for (const double most : {0.0, kChannels}) {
        profile.stack.parallel.message_bytes_per_s = most;
        MeasuredRow row;
        row.operation.op = OpKind::kReceive;
        row.operation.work.kind = WorkKind::kCollective;
        row.operation.work.bytes = bytes;
        row.operation.ranks = 2;
        row.operation.nodes = nodes;
        row.lowered = true;
        const RowTimes times(profile, {});
        OpCosts costs(profile);
        costs.place(layout_of(plan_of(8 * nodes, 4, 2 * nodes, 4), profile.cluster));
        const double transfer_s = costs.transfer_s(nodes - 1, static_cast<double>(bytes));
        EXPECT_NEAR(times.seconds(row), transfer_s, 1e-12);
        EXPECT_EQ(group_of(row), profiles::CostGroup::kCollectives);
        EXPECT_THAT(describe(row), HasSubstr("between stages"));
        if (most == 0) {
          with_links_s = transfer_s;
          continue;
        }
        const double channels_s = nodes == 1 ? static_cast<double>(bytes) / most : 0;
        EXPECT_EQ(transfer_s, std::max(with_links_s, channels_s));
      }
    }
  }
}

}  // namespace
}  // namespace shardwright::sim
