// SPDX-License-Identifier: Apache-2.0
// Watches the steps of one rank through CUPTI (exec/cupti/cupti_tracer.h).
//
// The step before the first watched one is recorded too and thrown away: CUPTI prepares itself with
// the first kernels that it sees.
#pragma once

#include <cuda_runtime_api.h>
#include <cupti.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "exec/trace/activity.h"

namespace shardwright::exec {

// The process's one connection to CUPTI: switched on for the steps that are watched, and off, with
// all records collected, outside the time of every step.
//
// Ranks that are threads share it. It is on from the first rank that begins a watched step until
// the last one has ended it; that one fetches the records, and each rank then joins its own.
//
// CUPTI's callbacks carry no data of the caller, so a session is found through the only pointer of
// its kind; at most one lives in a process.

class CuptiSession {
 public:
  /// `ranks` of this process will watch the same steps. Throws Error (kMissingDevice) with one
  /// sentence when CUPTI refuses: no driver, no permission, or another profiler holds it.
  explicit CuptiSession(int ranks, std::chrono::milliseconds patience = std::chrono::seconds(30));
  ~CuptiSession();
  CuptiSession(const CuptiSession&) = delete;
  CuptiSession& operator=(const CuptiSession&) = delete;

  /// Called by every rank; its device is idle, here and at end().
  void begin();
  /// What was recorded since, when every rank has called; waits for the others, but not for ever.
  void end();
  /// Between end() and the next begin().
  const ActivityLog& log() const { return log_; }
  const ClockMap& clock() const { return clock_; }

  /// Streams of a rank by the driver's numbers.
  void add_rank(std::int32_t rank, RankStreams streams);
  std::unordered_map<std::int32_t, RankStreams> ranks() const;
  /// The driver's number of a stream, and of the calling thread's device.
  static std::uint32_t number_of(CUstream stream);
  static std::uint32_t current_device();

  void push(std::uint64_t tag) const;
  void pop() const;

 private:
  struct FreeBuffer {
    void operator()(std::uint8_t* buffer) const;
  };
  using Buffer = std::unique_ptr<std::uint8_t, FreeBuffer>;

  static void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* bytes,
                                   std::size_t* most_records);
  static void CUPTIAPI take_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer,
                                   std::size_t bytes, std::size_t valid_bytes);
  void enable();
  void collect();
  ClockReading read_clock() const;

  const int rank_count_;
  const std::chrono::milliseconds patience_;

  CUpti_SubscriberHandle subscriber_ = nullptr;
  std::vector<CUpti_ActivityKind> kinds_;  // that are on
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int begun_ = 0;  // ranks, since the last collection
  int ended_ = 0;
  int late_ = 0;  // ranks whose step was collected before they ended it
  std::uint64_t collected_ = 0;
  ClockReading first_;
  ClockMap clock_{{}, {}};
  ActivityLog log_;
  std::unordered_map<std::int32_t, RankStreams> ranks_;
  std::mutex buffer_mutex_;
  std::vector<Buffer> free_buffers_;
  ActivityLog arriving_;  // written by CUPTI's thread
  std::size_t buffers_out_ = 0;
};

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

// The records that CUPTI leaves in a buffer, as plain activities.
//
// The structs of CUPTI grow a version with most toolkits; which ones are meant is decided here and
// nowhere else, by CUPTI_API_VERSION. Compiled and tested with CUDA 13; the names for CUDA 12 are
// taken from its headers' documentation.

#if CUPTI_API_VERSION >= 130000
using CuptiKernel = CUpti_ActivityKernel10;
using CuptiCopy = CUpti_ActivityMemcpy6;
using CuptiPeerCopy = CUpti_ActivityMemcpyPtoP4;
using CuptiSet = CUpti_ActivityMemset4;
using CuptiOverhead = CUpti_ActivityOverhead3;
using CuptiWait = CUpti_ActivitySynchronization2;
#else
using CuptiKernel = CUpti_ActivityKernel9;
using CuptiCopy = CUpti_ActivityMemcpy5;
using CuptiPeerCopy = CUpti_ActivityMemcpyPtoP4;
using CuptiSet = CUpti_ActivityMemset4;
using CuptiOverhead = CUpti_ActivityOverhead2;
using CuptiWait = CUpti_ActivitySynchronization;
#endif

/// The external ids that this project pushes are of this kind.
inline constexpr CUpti_ExternalCorrelationKind kExternalKind =
    CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

/// Appends what `bytes` bytes of a buffer hold.
void read_records(std::uint8_t* buffer, std::size_t bytes, ActivityLog& log);

}  // namespace shardwright::exec
