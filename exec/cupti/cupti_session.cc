// SPDX-License-Identifier: Apache-2.0
#include "exec/cupti/cupti_session.h"

#include <fmt/core.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "exec/cupti/cupti_records.h"
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

/// Records of another release may be laid out otherwise (cupti_records.h).
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

}  // namespace shardwright::exec
