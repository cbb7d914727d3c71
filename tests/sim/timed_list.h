// SPDX-License-Identifier: Apache-2.0
// What one list of a unit's operations takes alone, as schedule, cost model and engine have it.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "profiles/profile.h"
#include "sim/accounting.h"
#include "sim/core/base/numbers.h"
#include "sim/core/layout.h"
#include "sim/cost/cost.h"
#include "sim/engine/engine.h"
#include "sim/program/list_pass.h"

namespace shardwright::sim {

/// 2 m n k batch.
inline double gemm_flops(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batch = 1) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) *
         static_cast<double>(batch);
}

struct TimedList {
  double device_s = 0;     // where the host has run ahead
  double with_host_s = 0;  // where it has not
  double host_s = 0;       // launches
  double delayed_s = 0;    // weight gradients that a schedule may put off
  double flops = 0;        // of GEMMs
  std::array<double, kCommGroups> exposed_s{};
  CommunicationByGroup sent{};
  std::vector<std::pair<Op, double>> operations;  // how long each ran

  double exposed() const {
    double sum = 0;
    for (const double of_group : exposed_s) sum += of_group;
    return sum;
  }
};

inline TimedList timed_list(const profiles::Profile& profile, const Plan& plan, const Ops& ops,
                            CudaGraphs graphs = CudaGraphs::kNone) {
  ListPass pass(profile.stack.parallel, graphs, profile.stack.memory);
  pass.append(ops);
  Schedule schedule;
  schedule.layers = 1;
  schedule.layout = layout_of(plan, profile.cluster);
  schedule.group(CommGroup::kWorld) = schedule.layout.group(CommGroup::kWorld);
  schedule.streams = {{"compute", StreamRole::kCompute, 0, 0},
                      {"model-parallel", StreamRole::kCommunication, 0, 0}};
  schedule.event_names = {"", "computed", "arrived", "arrived_too"};
  schedule.ops = pass.take().ops;
  const auto number = [](EventRef& event) {
    if (event)
      event.name =
          static_cast<std::uint8_t>(event.name - static_cast<int>(UnitEvent::kComputed) + 1);
  };
  for (Op& op : schedule.ops) {
    for (EventRef& wait : op.waits) number(wait);
    number(op.record);
    if (op.stream == kUnitCommunication) op.stream = 1;
  }
  Block& block = schedule.blocks.emplace_back();
  block.op_count = static_cast<std::uint32_t>(schedule.ops.size());
  block.first_unit = 1;
  schedule.sections.push_back({0, 1, 1});
  CostModel model(profile);
  std::vector<OpCost> costs;
  model.cost(schedule, costs);
  TimedList timed;
  timed.sent = communication_by_group(schedule);
  Engine engine;
  timed.with_host_s = seconds_of(engine.run(schedule, costs).step_ns);
  for (std::size_t i = 0; i < costs.size(); ++i) {
    timed.host_s += seconds_of(costs[i].host_ns);
    const Work& work = schedule.ops[i].work;
    if (work.kind == WorkKind::kGemm)
      timed.flops +=
          gemm_flops(work.m, work.n, work.k, work.groups) * (work.groups > 1 ? 1 : work.kernels);
    if (schedule.ops[i].deferrable) timed.delayed_s += seconds_of(costs[i].alone_ns);
    costs[i].host_ns = 0;
  }
  Timeline timeline;
  EngineOptions options;
  options.timeline = &timeline;
  const StepTime step = engine.run(schedule, costs, options);
  timed.device_s = seconds_of(step.step_ns);
  for (std::size_t g = 0; g < step.exposed_ns.size(); ++g)
    timed.exposed_s[g] = seconds_of(step.exposed_ns[g]);
  for (const Span& span : timeline.spans) {
    timed.operations.emplace_back(schedule.ops[static_cast<std::size_t>(span.id)],
                                  seconds_of(span.end_ns - span.begin_ns));
  }
  return timed;
}

/// Of all products of a list.
inline double product_flops(const Ops& ops) {
  double flops = 0;
  for (const Op& op : ops) {
    if (op.work.kind == WorkKind::kGemm) flops += gemm_flops(op.work.m, op.work.n, op.work.k);
  }
  return flops;
}

/// What the casts of a list move.
inline double bytes_of_casts(const Ops& ops) {
  double sum = 0;
  for (const Op& op : ops) {
    if (op.kind == OpKind::kQuantize) sum += static_cast<double>(op.work.bytes);
  }
  return sum;
}

}  // namespace shardwright::sim
