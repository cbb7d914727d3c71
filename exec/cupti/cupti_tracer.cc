// SPDX-License-Identifier: Apache-2.0
#include "exec/cupti/cupti_tracer.h"

#include <fmt/core.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <utility>

#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {

namespace {

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;
constexpr std::size_t kBufferAlignment = 4096;
// More than any step needs; what comes beyond it is dropped and counted.
constexpr std::size_t kMostBuffers = 256;

constexpr CUpti_ActivityKind kKinds[] = {
    // KERNEL would make kernels run one after the other.
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMCPY2,
    CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_RUNTIME,
    CUPTI_ACTIVITY_KIND_DRIVER,
    CUPTI_ACTIVITY_KIND_SYNCHRONIZATION,
    CUPTI_ACTIVITY_KIND_OVERHEAD,
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};

std::atomic<CuptiSession*> the_session{nullptr};

std::string message_of(CUptiResult status) {
  const char* name = nullptr;
  const char* text = nullptr;
  cuptiGetResultString(status, &name);
  if (cuptiGetErrorMessage(status, &text) != CUPTI_SUCCESS || text == nullptr) text = name;
  return fmt::format("{} ({})", text != nullptr ? text : "unknown error", static_cast<int>(status));
}

[[noreturn]] void refuse(const char* call, CUptiResult status) {
  if (status == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    throw Error("kernels cannot be traced: another profiler holds CUPTI in this process",
                ExitCode::kMissingDevice);
  }
  const char* way_out = "";
  if (status == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES) {
    way_out = "; as root it may be, or with the driver's NVreg_RestrictProfilingToAdminUsers=0";
  } else if (status == CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED) {
    way_out = "; it may be where the GPU is passed through whole, or its vGPU allows profiling";
  }
  throw Error(
      fmt::format("kernels cannot be traced: {} answers {}{}", call, message_of(status), way_out),
      ExitCode::kMissingDevice);
}

/// Records of another release may be laid out otherwise (cupti_tracer.h).
void check_version() {
  std::uint32_t found = 0;
  const CUptiResult status = cuptiGetVersion(&found);
  if (status != CUPTI_SUCCESS) refuse("cuptiGetVersion", status);
  constexpr std::uint32_t kBuilt = CUPTI_API_VERSION;
  constexpr std::uint32_t kOfRelease = 100;  // 130001 is 13.0, first update
  if (found / kOfRelease == kBuilt / kOfRelease) return;
  throw Error(fmt::format("kernels cannot be traced: the CUPTI found here is {}, expected {} or an "
                          "update of it, which this program was built with",
                          found, kBuilt),
              ExitCode::kMissingDevice);
}

}  // namespace

void CuptiSession::FreeBuffer::operator()(std::uint8_t* buffer) const {
  std::free(buffer);
}

CuptiSession::CuptiSession(int ranks, std::chrono::milliseconds patience)
    : rank_count_(ranks), patience_(patience) {
  check_version();
  CuptiSession* none = nullptr;
  if (!the_session.compare_exchange_strong(none, this)) {
    throw Error("kernels cannot be traced: this process traces them already",
                ExitCode::kMissingDevice);
  }
  const auto give_up = [](const char* call, CUptiResult status) {
    the_session.store(nullptr);
    refuse(call, status);
  };
  // A subscription keeps other profilers away, and says when one is there.
  CUptiResult status = cuptiSubscribe(
      &subscriber_, [](void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}, nullptr);
  if (status != CUPTI_SUCCESS) give_up("cuptiSubscribe", status);
  status = cuptiActivityRegisterCallbacks(&give_buffer, &take_buffer);
  if (status == CUPTI_SUCCESS) status = cuptiActivityEnable(kKinds[0]);
  if (status != CUPTI_SUCCESS) {
    cuptiUnsubscribe(subscriber_);
    give_up("cuptiActivityEnable", status);
  }
  cuptiActivityDisable(kKinds[0]);
}

CuptiSession::~CuptiSession() {
  for (const CUpti_ActivityKind kind : kinds_) cuptiActivityDisable(kind);
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  cuptiUnsubscribe(subscriber_);
  the_session.store(nullptr);
}

void CuptiSession::give_buffer(std::uint8_t** buffer, std::size_t* bytes,
                               std::size_t* most_records) {
  *most_records = 0;
  *buffer = nullptr;
  *bytes = 0;
  CuptiSession* session = the_session.load();
  if (session == nullptr) return;
  const std::lock_guard lock(session->buffer_mutex_);
  if (session->buffers_out_ == kMostBuffers) return;
  Buffer free;
  if (session->free_buffers_.empty()) {
    free.reset(static_cast<std::uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes)));
  } else {
    free = std::move(session->free_buffers_.back());
    session->free_buffers_.pop_back();
  }
  if (!free) return;
  ++session->buffers_out_;
  *buffer = free.release();
  *bytes = kBufferBytes;
}

void CuptiSession::take_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer,
                               std::size_t, std::size_t valid_bytes) {
  Buffer back(buffer);
  CuptiSession* session = the_session.load();
  if (session == nullptr) return;
  const std::lock_guard lock(session->buffer_mutex_);
  read_records(buffer, valid_bytes, session->arriving_);
  std::size_t dropped = 0;
  if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS) {
    session->arriving_.dropped += static_cast<std::int64_t>(dropped);
  }
  if (back) {
    --session->buffers_out_;
    session->free_buffers_.push_back(std::move(back));
  }
}

ClockReading CuptiSession::read_clock() const {
  return read_clocks(&steady_now, [] {
    std::uint64_t now = 0;
    cuptiGetTimestamp(&now);
    return now;
  });
}

void CuptiSession::enable() {
  {
    const std::lock_guard lock(buffer_mutex_);
    arriving_ = {};
  }
  for (const CUpti_ActivityKind kind : kKinds) {
    // One kind that this driver does not know is no reason to do without the others.
    if (cuptiActivityEnable(kind) == CUPTI_SUCCESS) kinds_.push_back(kind);
  }
  first_ = read_clock();
}

void CuptiSession::collect() {
  const ClockReading last = read_clock();
  for (const CUpti_ActivityKind kind : kinds_) cuptiActivityDisable(kind);
  kinds_.clear();
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  clock_ = ClockMap(first_, last);
  const std::lock_guard lock(buffer_mutex_);
  log_ = std::exchange(arriving_, {});
}

void CuptiSession::begin() {
  const std::lock_guard lock(mutex_);
  if (begun_++ == 0) enable();
}

void CuptiSession::end() {
  std::unique_lock lock(mutex_);
  if (late_ > 0) {  // its step was collected without it
    --late_;
    return;
  }
  SHARDWRIGHT_CHECK(ended_ < begun_, "a step that is not watched ends");
  const std::uint64_t before = collected_;
  const bool last = ++ended_ == rank_count_;
  // Ranks that failed are not waited for.
  if (!last && changed_.wait_for(lock, patience_, [&] { return collected_ != before; })) return;

  collect();
  late_ = begun_ - ended_;
  begun_ = ended_ = 0;
  ++collected_;
  changed_.notify_all();
}

void CuptiSession::add_rank(std::int32_t rank, RankStreams streams) {
  const std::lock_guard lock(mutex_);
  ranks_[rank] = std::move(streams);
}

std::unordered_map<std::int32_t, RankStreams> CuptiSession::ranks() const {
  const std::lock_guard lock(mutex_);
  return ranks_;
}

std::uint32_t CuptiSession::number_of(CUstream stream) {
  std::uint32_t number = 0;
  cuptiGetStreamIdEx(nullptr, stream, 0, &number);
  return number;
}

std::uint32_t CuptiSession::current_device() {
  std::uint32_t device = 0;
  cuptiGetDeviceId(nullptr, &device);
  return device;
}

void CuptiSession::push(std::uint64_t tag) const {
  cuptiActivityPushExternalCorrelationId(kExternalKind, tag);
}

void CuptiSession::pop() const {
  cuptiActivityPopExternalCorrelationId(kExternalKind, nullptr);
}

CuptiTracer::CuptiTracer(CuptiSession& session, std::int32_t rank, std::int32_t first,
                         std::int32_t steps, StreamsOfRank streams)
    : session_(session), rank_(rank), first_(first), steps_(steps), streams_(std::move(streams)) {}

bool CuptiTracer::begin_step(std::int32_t step) {
  if (std::exchange(warming_, false)) session_.end();
  const bool watches = step >= first_ && step < first_ + steps_;
  if (!watches && (step + 1 != first_ || step == 0)) return false;
  if (!std::exchange(knows_streams_, true)) {
    RankStreams mine;
    mine.device = CuptiSession::current_device();
    for (const auto& [name, stream] : streams_()) {
      mine.names.push_back(name);
      mine.numbers.push_back(CuptiSession::number_of(stream));
    }
    session_.add_rank(rank_, std::move(mine));
  }
  session_.begin();
  issued_.clear();
  warming_ = !watches;
  return watches;
}

void CuptiTracer::begin_op(OpId id) {
  issued_.push_back({id, steady_now(), 0});
  session_.push(op_tag({rank_, id}));
}

void CuptiTracer::end_op() {
  session_.pop();
  issued_.back().end_ns = steady_now();
}

TracedStep CuptiTracer::take_step() {
  session_.end();
  ++steps_done_;
  return join_activity(session_.log(), session_.clock(), rank_, session_.ranks(), issued_,
                       summary_);
}

std::string CuptiTracer::report() const {
  return describe(summary_, steps_done_);
}

namespace {

const char* memory_name(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE:
      return "pageable";
    case CUPTI_ACTIVITY_MEMORY_KIND_PINNED:
      return "pinned";
    case CUPTI_ACTIVITY_MEMORY_KIND_DEVICE:
      return "device";
    case CUPTI_ACTIVITY_MEMORY_KIND_MANAGED:
      return "managed";
    default:
      return "memory";
  }
}

const char* overhead_name(CUpti_ActivityOverheadKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_OVERHEAD_DRIVER_COMPILER:
      return "compiler";
    case CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH:
      return "buffer flush";
    case CUPTI_ACTIVITY_OVERHEAD_CUPTI_INSTRUMENTATION:
      return "instrumentation";
    case CUPTI_ACTIVITY_OVERHEAD_CUPTI_RESOURCE:
      return "resources";
    default:
      return "overhead";
  }
}

const char* wait_name(CUpti_ActivitySynchronizationType type) {
  switch (type) {
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE:
      return "host waits for an event";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT:
      return "stream waits for an event";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE:
      return "host waits for a stream";
    case CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE:
      return "host waits for the device";
    default:
      return "wait";
  }
}

Activity on_device(ActivityKind kind, std::string name, std::uint64_t begin, std::uint64_t end,
                   std::uint32_t correlation, std::uint32_t stream, std::uint64_t bytes) {
  Activity activity;
  activity.kind = kind;
  activity.name = std::move(name);
  activity.begin_ns = begin;
  activity.end_ns = end;
  activity.correlation = correlation;
  activity.stream = stream;
  activity.bytes = bytes;
  return activity;
}

Activity call_of(const CUpti_ActivityAPI& record) {
  const CUpti_CallbackDomain domain = record.kind == CUPTI_ACTIVITY_KIND_RUNTIME
                                          ? CUPTI_CB_DOMAIN_RUNTIME_API
                                          : CUPTI_CB_DOMAIN_DRIVER_API;
  const char* name = nullptr;
  const bool known =
      cuptiGetCallbackName(domain, record.cbid, &name) == CUPTI_SUCCESS && name != nullptr;
  Activity activity;
  activity.kind = ActivityKind::kCall;
  activity.name = known ? name
                        : fmt::format("call {} of the {}", record.cbid,
                                      domain == CUPTI_CB_DOMAIN_RUNTIME_API ? "runtime" : "driver");
  activity.begin_ns = record.start;
  activity.end_ns = record.end;
  activity.correlation = record.correlationId;
  activity.thread = record.threadId;
  return activity;
}

void read_record(const CUpti_Activity& record, ActivityLog& log) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = reinterpret_cast<const CuptiKernel&>(record);
      log.activities.push_back(
          on_device(ActivityKind::kKernel, kernel.name != nullptr ? kernel.name : "unnamed kernel",
                    kernel.start, kernel.end, kernel.correlationId, kernel.streamId, 0));
      log.activities.back().device = kernel.deviceId;
      return;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = reinterpret_cast<const CuptiCopy&>(record);
      log.activities.push_back(on_device(
          ActivityKind::kCopy,
          fmt::format("copy {} to {}", memory_name(copy.srcKind), memory_name(copy.dstKind)),
          copy.start, copy.end, copy.correlationId, copy.streamId, copy.bytes));
      log.activities.back().device = copy.deviceId;
      return;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
      const auto& copy = reinterpret_cast<const CuptiPeerCopy&>(record);
      log.activities.push_back(
          on_device(ActivityKind::kCopy,
                    fmt::format("copy GPU {} to GPU {}", copy.srcDeviceId, copy.dstDeviceId),
                    copy.start, copy.end, copy.correlationId, copy.streamId, copy.bytes));
      log.activities.back().device = copy.deviceId;
      return;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& set = reinterpret_cast<const CuptiSet&>(record);
      log.activities.push_back(on_device(ActivityKind::kSet, "set", set.start, set.end,
                                         set.correlationId, set.streamId, set.bytes));
      log.activities.back().device = set.deviceId;
      return;
    }
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
      log.activities.push_back(call_of(reinterpret_cast<const CUpti_ActivityAPI&>(record)));
      return;
    case CUPTI_ACTIVITY_KIND_OVERHEAD: {
      const auto& overhead = reinterpret_cast<const CuptiOverhead&>(record);
      log.activities.push_back(on_device(ActivityKind::kOverhead,
                                         overhead_name(overhead.overheadKind), overhead.start,
                                         overhead.end, 0, 0, 0));
      return;
    }
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: {
      const auto& wait = reinterpret_cast<const CuptiWait&>(record);
      log.activities.push_back(on_device(ActivityKind::kWait, wait_name(wait.type), wait.start,
                                         wait.end, wait.correlationId, wait.streamId, 0));
      return;
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto& external = reinterpret_cast<const CUpti_ActivityExternalCorrelation&>(record);
      if (external.externalKind == kExternalKind) {
        log.tags[external.correlationId] = external.externalId;
      }
      return;
    }
    default:
      ++log.unread;
  }
}

}  // namespace

void read_records(std::uint8_t* buffer, std::size_t bytes, ActivityLog& log) {
  if (buffer == nullptr || bytes == 0) return;
  CUpti_Activity* record = nullptr;
  CUptiResult status = CUPTI_SUCCESS;
  while ((status = cuptiActivityGetNextRecord(buffer, bytes, &record)) == CUPTI_SUCCESS) {
    read_record(*record, log);
  }
  if (status != CUPTI_ERROR_MAX_LIMIT_REACHED) ++log.unread;
}

}  // namespace shardwright::exec
