// SPDX-License-Identifier: Apache-2.0
#include "cli/run/rank_tracing.h"

#ifdef SHARDWRIGHT_HAS_CUPTI
#include "exec/cuda/cuda_device.h"
#include "exec/cupti/cupti_tracer.h"
#include "sim/core/base/error.h"
#endif

namespace shardwright::cli {

#ifdef SHARDWRIGHT_HAS_CUPTI

struct RankTracing::Session {
  Session(const RunOptions& asked, int ranks) : options(asked), cupti(ranks) {}
  const RunOptions& options;
  exec::CuptiSession cupti;
};

RankTracing::RankTracing(const RunOptions& options, int ranks) {
  if (options.device != DeviceKind::kCuda || options.train.trace_step == 0) return;
  try {
    session_ = std::make_unique<Session>(options, ranks);
  } catch (const Error& error) {
    note_ = std::string(error.what()) + "; the trace has the times of events instead";
  }
}

std::unique_ptr<exec::StepTracer> RankTracing::tracer(int rank, const exec::Device& device) const {
  if (!session_) return nullptr;
  const auto& cuda = static_cast<const exec::CudaDevice&>(device);
  // The executor makes the streams of the schedule first and in its order.
  const auto streams = [&cuda] { return cuda.named_streams(); };
  return std::make_unique<exec::CuptiTracer>(
      session_->cupti, rank, static_cast<std::int32_t>(session_->options.train.trace_step),
      static_cast<std::int32_t>(session_->options.train.trace_steps), streams);
}

#else

struct RankTracing::Session {};

RankTracing::RankTracing(const RunOptions& options, int) {
  if (options.device != DeviceKind::kCuda || options.train.trace_step == 0) return;
  note_ =
      "kernels cannot be traced: this build has no cupti executor; the trace has the times of "
      "events instead";
}

std::unique_ptr<exec::StepTracer> RankTracing::tracer(int, const exec::Device&) const {
  return nullptr;
}

#endif

RankTracing::~RankTracing() = default;

}  // namespace shardwright::cli
