// SPDX-License-Identifier: Apache-2.0
// After a rehearsal nothing is loaded, made or chosen for the first time, and in it nothing but
// collectives is, once the first of them has run. Read from the log of the fake runtime.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/exec/training.h"
#include "tests/exec_cuda/fixture.h"

namespace shardwright::exec {
namespace {

using namespace testing;
using cuda_on_cpu::Call;
using cuda_on_cpu::CallKind;

std::set<std::string> kernels_of(const std::vector<Call>& log) {
  std::set<std::string> names;
  for (const Call& call : log) {
    if (call.kind == CallKind::kKernel) names.insert(call.name);
  }
  return names;
}

std::size_t made_in(const std::vector<Call>& log) {
  return static_cast<std::size_t>(std::count_if(log.begin(), log.end(), [](const Call& call) {
    return call.kind == CallKind::kMalloc || call.kind == CallKind::kHostAlloc ||
           call.kind == CallKind::kCreate;
  }));
}

struct Logs {
  std::vector<Call> rehearsal, steps;
};

Logs log_of(bool rehearses) {
  Training training;
  training.plan = tiny_plan(Strategy::kYafsdp, 1, 2);
  const Schedule schedule =
      sim::lower(training.model, training.plan, native_stack(), training.gpus_per_node);
  use_order(1);
  LocalWorld world(1, 1);
  Logs logs;
  world.run([&](int rank) {
    const auto device = naive_device();
    Executor executor(training.model, training.plan, schedule, *device, world.groups(rank, *device),
                      training.options);
    cuda_on_cpu::clear_log();
    if (rehearses) executor.rehearse(batch_of(training, 1, rank));
    logs.rehearsal = cuda_on_cpu::call_log();
    cuda_on_cpu::clear_log();
    executor.initialize(3);
    for (int step = 1; step <= 2; ++step) {
      executor.step(batch_of(training, step, rank), step_options(training, step));
    }
    logs.steps = cuda_on_cpu::call_log();
  });
  return logs;
}

TEST(Rehearsal, LeavesNothingForTheFirstStepToLoadOrMake) {
  const Logs logs = log_of(true);
  const std::set<std::string> known = kernels_of(logs.rehearsal), used = kernels_of(logs.steps);
  EXPECT_GT(used.size(), 10u);
  for (const std::string& name : used) EXPECT_TRUE(known.contains(name)) << name;
  EXPECT_EQ(made_in(logs.steps), 0u);
  EXPECT_TRUE(kernels_of(log_of(false).rehearsal).empty());
}

}  // namespace
}  // namespace shardwright::exec
