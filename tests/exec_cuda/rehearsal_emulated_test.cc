// SPDX-License-Identifier: Apache-2.0
// After a rehearsal nothing is loaded, made or chosen for the first time, and in it nothing is once
// the first collective has run. Read from the log of the fake runtime.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
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

Logs log_of(bool rehearses, int micro_steps = 2, int steps = 2, bool packs_documents = false) {
  Training training;
  training.packs_documents = packs_documents;
  training.plan = tiny_plan(Strategy::kYafsdp, 1, micro_steps);
  const Schedule schedule =
      sim::executed_step(training.model, training.plan, native_stack(), training.gpus_per_node)
          .stages.front();
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
    for (int step = 1; step <= steps; ++step) {
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

std::size_t kernels_in(const std::vector<Call>& log) {
  return static_cast<std::size_t>(std::count_if(
      log.begin(), log.end(), [](const Call& call) { return call.kind == CallKind::kKernel; }));
}

// llmq's published runs accumulate over 128 micro-batches; of them three differ.
TEST(Rehearsal, GoesThroughTheFirstTwoMicroStepsAndTheLast) {
  const Logs three = log_of(true, 3, 0), five = log_of(true, 5, 1);
  EXPECT_EQ(kernels_in(five.rehearsal), kernels_in(three.rehearsal));
  EXPECT_GT(kernels_in(five.steps), kernels_in(five.rehearsal));
  const std::set<std::string> known = kernels_of(five.rehearsal), used = kernels_of(five.steps);
  for (const std::string& name : used) EXPECT_TRUE(known.contains(name)) << name;
}

std::size_t attention_in(const std::vector<Call>& log) {
  return static_cast<std::size_t>(std::count_if(log.begin(), log.end(), [](const Call& call) {
    return call.kind == CallKind::kKernel &&
           call.name.find("AttentionProblem") != std::string::npos;
  }));
}

// A later batch may have any number of documents, or none; each may be another library's.
TEST(Rehearsal, OfPackedDocumentsRunsEveryFormOfAttention) {
  const Logs whole = log_of(true, 1, 1), packed = log_of(true, 1, 1, true);
  const std::size_t bounds = cuda::document_bounds(1).size();
  ASSERT_GT(attention_in(whole.rehearsal), 0u);
  EXPECT_EQ(attention_in(packed.rehearsal), (3 + bounds) * attention_in(whole.rehearsal));
  EXPECT_EQ(attention_in(packed.steps), attention_in(whole.steps));
}

constexpr int kRehearsedGpus = 4;

bool makes(const Call& call) {
  return call.kind == CallKind::kMalloc || call.kind == CallKind::kHostAlloc ||
         call.kind == CallKind::kCreate || call.name == "cublasLtMatmulAlgoGetHeuristic";
}

/// What a rank's GPU was asked for before the first collective, by collectives (these are local
/// ones, whose copies and events NCCL would not make), and by all else behind it.
struct Around {
  bool began = false;
  std::set<std::string> before, within, behind;
  std::vector<std::string> made;  // behind the first collective
  std::size_t read = 0;           // of the log

  void take(int gpu, bool in_collective) {
    const std::vector<Call> log = cuda_on_cpu::call_log();
    for (; read < log.size(); ++read) {
      const Call& call = log[read];
      if (call.gpu != gpu) continue;
      if (began && !in_collective && makes(call)) made.push_back(call.name);
      if (call.kind != CallKind::kKernel) continue;
      (in_collective ? within : began ? behind : before).insert(call.name);
    }
  }
};

/// Passes everything on, and notes what stands around collectives in the log.
class Watched final : public Communicator {
 public:
  Watched(std::unique_ptr<Communicator> inner, Around& around, int gpu)
      : inner_(std::move(inner)), around_(around), gpu_(gpu) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool ordered() const override { return inner_->ordered(); }
  void all_gather(StreamId stream, Array mine, Array whole) override {
    watch([&] { inner_->all_gather(stream, mine, whole); });
  }
  void reduce_scatter(StreamId stream, Array whole, Array mine, bool adds, Array scratch,
                      SumOrder order) override {
    watch([&] { inner_->reduce_scatter(stream, whole, mine, adds, scratch, order); });
  }
  void all_reduce(StreamId stream, Array data, SumOrder order) override {
    watch([&] { inner_->all_reduce(stream, data, order); });
  }
  void post(StreamId stream, Array data, int to, int channel) override {
    watch([&] { inner_->post(stream, data, to, channel); });
  }
  void fetch(StreamId stream, Array data, int from, int channel) override {
    watch([&] { inner_->fetch(stream, data, from, channel); });
  }
  void broadcast(StreamId stream, Array data, int root) override {
    watch([&] { inner_->broadcast(stream, data, root); });
  }
  void send(StreamId stream, Array data, int to) override {
    watch([&] { inner_->send(stream, data, to); });
  }
  void receive(StreamId stream, Array data, int from) override {
    watch([&] { inner_->receive(stream, data, from); });
  }
  void barrier() override { inner_->barrier(); }
  void exchange(std::span<const std::byte> mine, std::span<std::byte> all) override {
    inner_->exchange(mine, all);
  }
  void leave() noexcept override { inner_->leave(); }

 private:
  template <class Do>
  void watch(Do&& collective) {
    around_.take(gpu_, false);
    around_.began = true;
    collective();
    around_.take(gpu_, true);
  }

  std::unique_ptr<Communicator> inner_;
  Around& around_;
  int gpu_;
};

/// What `rehearse` does on four GPUs.
std::vector<Around> rehearse_on_four(const std::function<void(Executor&, const Batch&)>& rehearse) {
  cuda_on_cpu::FakeMachine machine;
  machine.devices = kRehearsedGpus;
  machine.seed = 1;
  cuda_on_cpu::reset(machine);
  Training training;
  training.plan = tiny_plan(Strategy::kYafsdp, kRehearsedGpus, 2);
  training.plan.seq_len = 8;
  training.plan.param_dtype = DType::kBf16;
  const Schedule schedule =
      sim::executed_step(training.model, training.plan, native_stack(), training.gpus_per_node)
          .stages.front();
  LocalWorld world(kRehearsedGpus, kRehearsedGpus);
  std::vector<Around> all(kRehearsedGpus);
  world.run([&](int rank) {
    Around& around = all[static_cast<std::size_t>(rank)];
    CudaDeviceOptions options;
    options.attention = "naive";
    options.gpu = rank;
    for (int peer = 0; peer < kRehearsedGpus; ++peer) options.peers.push_back(peer);
    CudaDevice device(options);
    RankGroups groups = world.groups(rank, device);
    for (auto* group : {&groups.replicate, &groups.shard, &groups.world}) {
      *group = std::make_unique<Watched>(std::move(*group), around, rank);
    }
    Executor executor(training.model, training.plan, schedule, device, std::move(groups),
                      training.options);
    rehearse(executor, batch_of(training, 1, rank));
    around.take(rank, false);
  });
  return all;
}

// Where a collective keeps the GPU busy until all ranks have come, nothing may wait for an idle
// GPU: no memory, no handle, no plan of a product, and no kernel whose code is not loaded yet.
TEST(Rehearsal, OnFourGpusLoadsAndMakesNothingBehindTheFirstCollective) {
  const auto loads_late = [](const Around& around) {
    return !std::includes(around.before.begin(), around.before.end(), around.behind.begin(),
                          around.behind.end());
  };
  for (const Around& around :
       rehearse_on_four([](Executor&executor, const Batch&batch) { executor.rehearse(batch); })) {
    EXPECT_TRUE(around.began);
    EXPECT_GT(around.before.size(), 10u);
    EXPECT_FALSE(around.within.empty());
    EXPECT_TRUE(around.made.empty()) << around.made.front();
    EXPECT_FALSE(loads_late(around));
  }
  // A step that nobody rehearsed does both, so this can be seen.
  for (const Around& around : rehearse_on_four([](Executor&executor, const Batch&batch) {
         executor.initialize(3);
         StepOptions options;
         options.adamw.step = 1;
         executor.step(batch, options);
       })) {
    EXPECT_FALSE(around.made.empty());
    EXPECT_TRUE(loads_late(around));
  }
}

}  // namespace
}  // namespace shardwright::exec
