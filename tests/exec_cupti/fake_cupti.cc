// SPDX-License-Identifier: Apache-2.0
#include "tests/exec_cupti/fake_cupti.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>

#include "exec/cupti/cupti_tracer.h"
#include "exec/trace/activity.h"

namespace {

using shardwright::testing::FakeCupti;

struct State {
  std::mutex mutex;
  FakeCupti options;
  std::vector<CUpti_ActivityKind> kinds;
  int switched_on = 0;
  CUpti_BuffersCallbackRequestFunc request = nullptr;
  CUpti_BuffersCallbackCompleteFunc complete = nullptr;
  std::uint8_t* buffer = nullptr;
  std::size_t size = 0;
  std::size_t used = 0;
  std::size_t buffers = 0;
  std::uint32_t correlation = 0;
};

State& state() {
  static State instance;
  return instance;
}

thread_local std::vector<std::uint64_t> pushed;
thread_local std::uint32_t current_device = 0;

void hand_over(State& s) {
  if (s.buffer == nullptr) return;
  s.complete(nullptr, 0, s.buffer, s.size, s.used);
  s.buffer = nullptr;
}

template <class Record>
void append(State& s, const Record& record) {
  if (std::find(s.kinds.begin(), s.kinds.end(), record.kind) == s.kinds.end()) return;
  if (s.buffer != nullptr && s.used + sizeof record > s.size) hand_over(s);
  if (s.buffer == nullptr) {
    std::size_t most = 0;
    s.request(&s.buffer, &s.size, &most);
    s.used = 0;
    if (s.buffer == nullptr) return;
    ++s.buffers;
  }
  std::memcpy(s.buffer + s.used, &record, sizeof record);
  s.used += sizeof record;
}

}  // namespace

namespace shardwright::testing {

void reset_fake_cupti(const FakeCupti& options) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.options = options;
  s.kinds.clear();
  s.switched_on = 0;
  s.buffers = 0;
}

void fake_launch(const char* kernel, std::uint32_t stream, std::int64_t begin_ns,
                 std::int64_t end_ns) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const std::uint32_t correlation = ++s.correlation;
  const auto at = [&](std::int64_t ns) {
    return s.options.clock_begin + static_cast<std::uint64_t>(ns);
  };
  if (!pushed.empty()) {
    CUpti_ActivityExternalCorrelation external{};
    external.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    external.externalKind = exec::kExternalKind;
    external.externalId = pushed.back();
    external.correlationId = correlation;
    append(s, external);
  }
  CUpti_ActivityAPI call{};
  call.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
  call.cbid = 211;
  call.start = at(exec::steady_now());
  call.end = call.start + 5;
  call.correlationId = correlation;
  append(s, call);
  exec::CuptiKernel record{};
  record.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  record.name = kernel;
  record.start = at(begin_ns);
  record.end = at(end_ns);
  record.correlationId = correlation;
  record.streamId = stream;
  record.deviceId = current_device;
  append(s, record);
}

void use_fake_device(std::uint32_t device) {
  current_device = device;
}

std::vector<CUpti_ActivityKind> enabled_kinds() {
  const std::lock_guard lock(state().mutex);
  return state().kinds;
}

int switched_on() {
  const std::lock_guard lock(state().mutex);
  return state().switched_on;
}

std::size_t most_buffers() {
  const std::lock_guard lock(state().mutex);
  return state().buffers;
}

}  // namespace shardwright::testing

extern "C" {

CUptiResult CUPTIAPI cuptiGetVersion(std::uint32_t* version) {
  *version = state().options.version;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiSubscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc, void*) {
  *subscriber = nullptr;
  return state().options.subscribe;
}

CUptiResult CUPTIAPI cuptiUnsubscribe(CUpti_SubscriberHandle) {
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                                    CUpti_BuffersCallbackCompleteFunc complete) {
  state().request = request;
  state().complete = complete;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind kind) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.options.enable != CUPTI_SUCCESS) return s.options.enable;
  s.kinds.push_back(kind);
  if (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) ++s.switched_on;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityDisable(CUpti_ActivityKind kind) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  std::erase(s.kinds, kind);
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityFlushAll(uint32_t) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  hand_over(s);
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind,
                                                            uint64_t id) {
  pushed.push_back(id);
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind,
                                                           uint64_t* last) {
  if (last != nullptr) *last = pushed.back();
  pushed.pop_back();
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiGetTimestamp(uint64_t* now) {
  *now = state().options.clock_begin +
         static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiGetStreamIdEx(CUcontext, CUstream stream, uint8_t, uint32_t* number) {
  *number = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(stream));
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiGetDeviceId(CUcontext, uint32_t* device) {
  *device = current_device;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  *dropped = state().options.dropped;
  return CUPTI_SUCCESS;
}

}  // extern "C"
