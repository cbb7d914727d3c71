// SPDX-License-Identifier: Apache-2.0
// TFLOP/s of every implementation of attention that this build has, at the shapes of Llama-3-8B
// (32 / 8 heads of 128), 3B (24 / 8 heads of 128) and 1B (32 / 8 heads of 64). Products count half,
// because the mask hides half of the scores: 4 of them forward, 10 backward, each H D T^2 / 2
// multiplications a sequence, whatever an implementation computes twice.
#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "exec/cuda/attention.h"
#include "kernels/bf16.h"
#include "kernels/cuda/cuda_error.h"
#include "sim/core/workspace.h"

namespace shardwright {
namespace {

using kernels::AttentionShape;
using kernels::cuda::Attention;
using kernels::cuda::AttentionProblem;

struct Free {
  void operator()(void* data) const { cudaFree(data); }
};
using Memory = std::unique_ptr<void, Free>;

Memory device_memory(Bytes bytes) {
  void* data = nullptr;
  SHARDWRIGHT_CUDA(cudaMalloc(&data, static_cast<std::size_t>(bytes) + 1));
  return Memory(data);
}

/// Small numbers of both signs: equal ones would need less power, and a GPU would run faster.
Memory filled(std::int64_t count) {
  std::vector<kernels::BFloat16> values(static_cast<std::size_t>(count));
  std::uint32_t state = 1;
  for (kernels::BFloat16& value : values) {
    state = state * 1664525u + 1013904223u;
    value = kernels::to_bf16(static_cast<float>(state >> 8) * 0x1p-23f - 1.0f);
  }
  Memory memory = device_memory(2 * count);
  SHARDWRIGHT_CUDA(cudaMemcpy(memory.get(), values.data(), 2 * values.size(), cudaMemcpyDefault));
  return memory;
}

AttentionProblem problem_of(std::int64_t seq, std::int64_t heads, std::int64_t head_dim) {
  const AttentionShape shape{.batch = 1,
                             .seq = seq,
                             .heads = heads,
                             .kv_heads = 8,
                             .head_dim = head_dim,
                             .scale = 1.0 / std::sqrt(static_cast<double>(head_dim))};
  return {.shape = shape, .packed_stride = (heads + 16) * head_dim, .out_stride = heads * head_dim};
}

/// With the workspace that a run would have, which decides how the work is cut.
AttentionProblem as_in_a_run(AttentionProblem problem, bool deterministic) {
  const AttentionShape& s = problem.shape;
  problem.most_workspace_bytes = attention_workspace_bytes(
      s.batch, s.seq, s.heads, s.kv_heads, s.head_dim, problem.dtype, deterministic);
  return problem;
}

void run(benchmark::State& state, const std::string& name, AttentionProblem problem,
         bool backward) {
  exec::cuda::AttentionSet set;
  problem = as_in_a_run(problem, name == "cudnn-ordered");
  Attention& attention = *set.choose(problem, {.wish = name}).implementation;
  if (attention.name() != name) {
    state.SkipWithError((name + " does not take this problem").c_str());
    return;
  }
  const AttentionShape& s = problem.shape;
  const std::int64_t heads_size = s.tokens() * problem.packed_stride;
  const std::int64_t out_size = s.tokens() * problem.out_stride;
  const Memory packed = filled(heads_size), d_out = filled(out_size);
  const Memory out = device_memory(2 * out_size), d_packed = device_memory(2 * heads_size);
  const Memory statistics = device_memory(4 * s.tokens() * s.heads);
  const Memory workspace = device_memory(std::max(attention.forward_workspace_bytes(problem),
                                                  attention.backward_workspace_bytes(problem)));
  auto* const lse = static_cast<float*>(statistics.get());
  const auto forward = [&] {
    attention.forward(problem, {packed.get(), nullptr, out.get(), lse, workspace.get()}, nullptr);
  };
  forward();
  cudaEvent_t begin = nullptr, end = nullptr;
  SHARDWRIGHT_CUDA(cudaEventCreate(&begin));
  SHARDWRIGHT_CUDA(cudaEventCreate(&end));
  for (auto _ : state) {
    SHARDWRIGHT_CUDA(cudaEventRecord(begin));
    if (backward) {
      attention.backward(
          problem,
          {packed.get(), nullptr, out.get(), lse, d_out.get(), d_packed.get(), workspace.get()},
          nullptr);
    } else {
      forward();
    }
    SHARDWRIGHT_CUDA(cudaEventRecord(end));
    SHARDWRIGHT_CUDA(cudaEventSynchronize(end));
    float milliseconds = 0;
    SHARDWRIGHT_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
    state.SetIterationTime(static_cast<double>(milliseconds) * 1e-3);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  const double product = static_cast<double>(s.batch * s.heads * s.seq * s.seq * s.head_dim) / 2;
  state.counters["TFLOP/s"] = benchmark::Counter((backward ? 10 : 4) * product * 1e-12,
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

/// Registers everything where there is a GPU, else one benchmark that says why not.
const bool kRegistered = [] {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    const std::string reason = std::string("no GPU: ") + cudaGetErrorString(status);
    benchmark::RegisterBenchmark(
        "attention", [reason](benchmark::State& state) { state.SkipWithError(reason.c_str()); });
    return false;
  }
  struct Model {
    const char* name;
    std::int64_t heads, head_dim;
  };
  const exec::cuda::AttentionSet set;
  for (const Model& model : {Model{"8b", 32, 128}, Model{"3b", 24, 128}, Model{"1b", 32, 64}}) {
    for (const std::int64_t seq : {2048, 4096, 8192}) {
      for (const bool backward : {false, true}) {
        for (const std::string_view name : set.names()) {
          if (name == "naive" && seq > 2048) continue;
          const std::string title = std::string(name) + (backward ? "/backward/" : "/forward/") +
                                    model.name + "/" + std::to_string(seq);
          benchmark::RegisterBenchmark(
              title.c_str(),
              [name = std::string(name), problem = problem_of(seq, model.heads, model.head_dim),
               backward](benchmark::State& state) { run(state, name, problem, backward); })
              ->UseManualTime()
              ->Unit(benchmark::kMicrosecond);
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace shardwright
