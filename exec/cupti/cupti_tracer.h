// SPDX-License-Identifier: Apache-2.0
// Watches the steps of one rank through CUPTI (exec/cupti/cupti_session.h).
//
// The step before the first watched one is recorded too and thrown away: CUPTI prepares itself with
// the first kernels that it sees.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

#include "exec/cupti/cupti_session.h"
#include "exec/trace/step_tracer.h"

namespace shardwright::exec {

/// The rank's streams, by the schedule's order, once the executor has made them.
using StreamsOfRank = std::function<std::vector<std::pair<std::string, cudaStream_t>>()>;

class CuptiTracer final : public StepTracer {
 public:
  /// Watches `steps` steps from `first` on.
  CuptiTracer(CuptiSession& session, std::int32_t rank, std::int32_t first, std::int32_t steps,
              StreamsOfRank streams);

  bool begin_step(std::int32_t step) override;
  void begin_op(OpId id) override;
  void end_op() override;
  TracedStep take_step() override;
  std::string report() const override;

 private:
  CuptiSession& session_;
  std::int32_t rank_;
  std::int32_t first_;
  std::int32_t steps_;
  StreamsOfRank streams_;
  bool warming_ = false;
  bool knows_streams_ = false;
  std::vector<IssuedOp> issued_;  // in this step
  JoinSummary summary_;
  std::int64_t steps_done_ = 0;
};

}  // namespace shardwright::exec
