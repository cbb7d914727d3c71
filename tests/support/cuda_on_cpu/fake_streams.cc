// SPDX-License-Identifier: Apache-2.0
// Streams and events of the fake runtime.
#include "tests/support/cuda_on_cpu/fake_engine.h"

using namespace cuda_on_cpu;

namespace {

cudaError_t make_stream(cudaStream_t* stream, const char* name, int priority) {
  Call call = named(CallKind::kCreate, name);
  call.priority = priority;
  return api(std::move(call), [&](Engine& e) {
    e.streams.push_back(std::make_unique<CUstream_st>());
    *stream = e.streams.back().get();
    (*stream)->id = ++e.streams_made;
    (*stream)->gpu = current_device;
    e.log.back().stream = (*stream)->id;
    e.log.back().stream_gpu = current_device;
    return cudaSuccess;
  });
}

cudaError_t make_event(cudaEvent_t* event, const char* name, unsigned flags) {
  return api(named(CallKind::kCreate, name), [&](Engine& e) {
    e.events.push_back(std::make_unique<CUevent_st>());
    *event = e.events.back().get();
    (*event)->id = ++e.events_made;
    (*event)->gpu = current_device;
    (*event)->timed = (flags & cudaEventDisableTiming) == 0;
    e.log.back().event = (*event)->id;
    return cudaSuccess;
  });
}

}  // namespace

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return make_stream(stream, "cudaStreamCreate", 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return make_stream(stream, "cudaStreamCreateWithFlags", 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  return make_stream(stream, "cudaStreamCreateWithPriority", priority);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return api(on_stream(CallKind::kDestroy, "cudaStreamDestroy", stream), [&](Engine& e) {
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    e.run_until([&] { return stream->tasks.empty(); });
    if (e.current == stream) e.current = nullptr;
    std::erase_if(e.streams, [&](const auto& mine) { return mine.get() == stream; });
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return api(on_stream(CallKind::kSynchronize, "cudaStreamSynchronize", stream), [&](Engine& e) {
    e.run_until([&] { return e.at(stream).tasks.empty(); });
    return e.dead;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return api(on_stream(CallKind::kQuery, "cudaStreamQuery", stream), [&](Engine& e) {
    return e.at(stream).tasks.empty() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Call call = on_stream(CallKind::kWait, "cudaStreamWaitEvent", stream);
  call.event = event == nullptr ? -1 : event->id;
  return api(std::move(call), [&](Engine& e) {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (event->issued > 0) e.at(stream).tasks.push_back({{}, event, event->issued});
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return api(on_stream(CallKind::kHostFunction, "cudaLaunchHostFunc", stream), [&](Engine& e) {
    e.at(stream).tasks.push_back({[=] { function(data); }});
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return make_event(event, "cudaEventCreate", cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return make_event(event, "cudaEventCreateWithFlags", flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return api(named(CallKind::kDestroy, "cudaEventDestroy"), [&](Engine& e) {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    // Streams that wait for it may have that wait still before them.
    if (event->issued > event->completed) {
      e.run_until([&] { return event->issued == event->completed; });
    }
    e.for_each_stream([&](CUstream_st& stream) {
      std::erase_if(stream.tasks, [&](const Task& task) { return task.awaited == event; });
    });
    std::erase_if(e.events, [&](const auto& mine) { return mine.get() == event; });
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Call call = on_stream(CallKind::kRecord, "cudaEventRecord", stream);
  call.event = event == nullptr ? -1 : event->id;
  return api(std::move(call), [&](Engine& e) {
    if (event == nullptr || event->gpu != gpu_of(stream)) return cudaErrorInvalidResourceHandle;
    const std::uint64_t record = ++event->issued;
    e.at(stream).tasks.push_back({[event, record] {
      event->completed = record;
      event->time_ns = engine().clock_ns;
    }});
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Call call = named(CallKind::kSynchronize, "cudaEventSynchronize");
  call.event = event == nullptr ? -1 : event->id;
  return api(std::move(call), [&](Engine& e) {
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    e.run_until([&] { return event->completed == event->issued; });
    return e.dead;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return api(named(CallKind::kQuery, "cudaEventQuery"), [&](Engine&) {
    return event->completed == event->issued ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return api(named(CallKind::kQuery, "cudaEventElapsedTime"), [&](Engine&) {
    if (!begin->timed || !end->timed || begin->gpu != end->gpu)
      return cudaErrorInvalidResourceHandle;
    if (begin->completed != begin->issued || end->completed != end->issued) {
      return cudaErrorNotReady;
    }
    *milliseconds = static_cast<float>(end->time_ns - begin->time_ns) * 1e-6f;
    return cudaSuccess;
  });
}
