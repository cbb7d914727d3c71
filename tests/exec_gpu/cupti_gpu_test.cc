// SPDX-License-Identifier: Apache-2.0
// CUPTI itself on a GPU: every operation of a traced step has its kernels, on the host's clock, and
// nothing is dropped. Not yet run on a GPU.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <chrono>
#include <map>

#include "exec/comm/local_communicator.h"
#include "exec/cuda/cuda_device.h"
#include "exec/cupti/cupti_tracer.h"
#include "tests/exec/training.h"
#include "tests/exec_gpu/gpu.h"

namespace shardwright::exec {
namespace {

using namespace testing;

TEST(CuptiOnGpu, EveryOperationOfATracedStepHasItsKernels) {
  SHARDWRIGHT_NEEDS_GPU();
  Training training;
  training.model = uneven_llama();
  training.plan = tiny_plan(Strategy::kYafsdp, 2);
  const Schedule schedule =
      sim::executed_step(training.model, training.plan, native_stack(), 2).stages.front();
  CuptiSession session(2);
  LocalWorld world(2, 2);
  world.run([&](int rank) {
    CudaDevice device;
    const auto streams = [&] {
      std::vector<std::pair<std::string, cudaStream_t>> all;
      for (std::size_t i = 0; i < schedule.streams.size(); ++i) {
        all.emplace_back(schedule.streams[i].name, device.stream(static_cast<StreamId>(i)));
      }
      return all;
    };
    CuptiTracer tracer(session, rank, 3, 1, streams);
    ExecutorOptions options;
    options.trace = true;
    options.tracer = &tracer;
    Executor executor(training.model, training.plan, schedule, device, world.groups(rank, device),
                      options);
    executor.initialize(3);
    for (int step = 1; step <= 4; ++step) {
      const StepResult done =
          executor.step(batch_of(training, step, rank), step_options(training, step));
      const Timeline timeline = executor.timeline();
      if (step != 3) {
        EXPECT_TRUE(timeline.spans.empty()) << step;
        continue;
      }
      std::map<OpId, int> kernels;
      Nanoseconds last = 0;
      for (const Span& span : timeline.spans) {
        ++kernels[span.id];
        EXPECT_GE(span.begin_ns, 0) << "before the step began";
        last = std::max(last, span.end_ns);
      }
      EXPECT_LE(static_cast<double>(last) * 1e-9, done.seconds + 1e-4) << "after the step ended";
      for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
        if (op.work.kind == WorkKind::kGemm) {
          EXPECT_TRUE(kernels.contains(at.id)) << describe(schedule, at);
        }
      });
      EXPECT_THAT(tracer.report(), ::testing::Not(::testing::HasSubstr("dropped")));
      if (rank == 0) fmt::print("{}\n", tracer.report());
    }
  });
}

}  // namespace
}  // namespace shardwright::exec
