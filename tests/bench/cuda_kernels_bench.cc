// SPDX-License-Identifier: Apache-2.0
// Speed of the CUDA kernels at the shapes of Llama 3 8B with 8192 tokens: bytes that must move per
// second of the device, and as a share of what cudaMemcpyAsync reaches on the same device
// (`of_copy`). Says so and stops where there is no GPU.
#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <functional>
#include <vector>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/rope.h"
#include "kernels/host/rope.h"
#include "sim/core/workspace.h"

namespace shardwright::kernels::cuda {
namespace {

constexpr std::int64_t kTokens = 8192, kHidden = 4096, kFfn = 14336, kVocab = 128256;
constexpr std::int64_t kHeads = 32, kKvHeads = 8, kHeadDim = 128;
constexpr std::int64_t kElements = std::int64_t{1}
                                   << 27;  // of flat arrays, well beyond the L2 cache
constexpr int kLaunches = 10;              // timed together

/// Device memory that holds small numbers.
template <class T>
class Buffer {
 public:
  explicit Buffer(std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
    SHARDWRIGHT_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), bytes));
    // The byte makes 0.0035 of floats and bf16 alike, and 0x3b3b3b3b of integers.
    SHARDWRIGHT_CUDA(cudaMemset(data_, 0x3b, bytes));
  }
  Buffer(const std::vector<T>& values) : Buffer(std::ssize(values)) {
    SHARDWRIGHT_CUDA(
        cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data_); }
  operator T*() const { return data_; }

 private:
  T* data_ = nullptr;
};

std::vector<std::int32_t> tokens_below(std::int64_t vocab) {
  std::vector<std::int32_t> tokens;
  for (std::uint64_t i = 0; i < kTokens; ++i) {
    tokens.push_back(static_cast<std::int32_t>(i * 2654435761u % static_cast<unsigned>(vocab)));
  }
  return tokens;
}

/// Seconds of one call, by events around several.
double seconds_of(const std::function<void(cudaStream_t)>& call) {
  cudaStream_t stream;
  cudaEvent_t begin, end;
  SHARDWRIGHT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  SHARDWRIGHT_CUDA(cudaEventCreate(&begin));
  SHARDWRIGHT_CUDA(cudaEventCreate(&end));
  call(stream);
  SHARDWRIGHT_CUDA(cudaEventRecord(begin, stream));
  for (int i = 0; i < kLaunches; ++i) call(stream);
  SHARDWRIGHT_CUDA(cudaEventRecord(end, stream));
  SHARDWRIGHT_CUDA(cudaEventSynchronize(end));
  float milliseconds = 0;
  SHARDWRIGHT_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return milliseconds / 1000.0 / kLaunches;
}

/// Bytes per second of the driver's copy of an array of floats, read and written: the best of ten.
double copy_rate() {
  static const double rate = [] {
    const Buffer<float> from(kElements), to(kElements);
    double best = 1e9;
    for (int i = 0; i < 10; ++i) {
      best = std::min(best, seconds_of([&](cudaStream_t stream) {
                        SHARDWRIGHT_CUDA(cudaMemcpyAsync(
                            to, from, static_cast<std::size_t>(kElements) * sizeof(float),
                            cudaMemcpyDeviceToDevice, stream));
                      }));
    }
    return 8.0 * static_cast<double>(kElements) / best;
  }();
  return rate;
}

/// `bytes`: what must be read and written once by the best of implementations.
void measure(benchmark::State& state, std::int64_t bytes,
             const std::function<void(cudaStream_t)>& call) {
  double seconds = 0, calls = 0;
  for (auto _ : state) {
    const double time = seconds_of(call);
    state.SetIterationTime(time);
    seconds += time;
    ++calls;
  }
  const double rate = static_cast<double>(bytes) * calls / seconds;
  state.counters["bytes/s"] = rate;
  state.counters["of_copy"] = rate / copy_rate();
}

void copy_by_kernel(benchmark::State& state) {
  const Buffer<float> from(kElements), to(kElements);
  measure(state, 8 * kElements,
          [&](cudaStream_t stream) { cast<float, float>(stream, from, to, kElements); });
}
void cast_to_bf16(benchmark::State& state) {
  const Buffer<float> from(kElements);
  const Buffer<BFloat16> to(kElements);
  measure(state, 6 * kElements,
          [&](cudaStream_t stream) { cast<float, BFloat16>(stream, from, to, kElements); });
}
void accumulate_bf16(benchmark::State& state) {
  const Buffer<BFloat16> in(kElements);
  const Buffer<float> sum(kElements);
  measure(state, 10 * kElements,
          [&](cudaStream_t stream) { accumulate<BFloat16, float>(stream, in, sum, kElements); });
}
void fold_of_four(benchmark::State& state) {
  const Buffer<float> a(kElements), b(kElements), c(kElements), d(kElements), out(kElements);
  const void* inputs[] = {a, b, c, d};
  measure(state, 20 * kElements,
          [&](cudaStream_t stream) { fold<float, float>(stream, inputs, out, false, kElements); });
}
void tree_of_four(benchmark::State& state) {
  const Buffer<BFloat16> a(kElements), b(kElements), c(kElements), d(kElements), out(kElements);
  const void* inputs[] = {a, b, c, d};
  measure(state, 10 * kElements, [&](cudaStream_t stream) {
    fold_tree<BFloat16, BFloat16>(stream, inputs, out, false, kElements);
  });
}
void squares(benchmark::State& state) {
  const Buffer<float> x(kElements);
  const Buffer<std::int64_t> words(std::vector<std::int64_t>(21));
  measure(state, 4 * kElements,
          [&](cudaStream_t stream) { sum_of_squares<float>(stream, x, kElements, words); });
}
template <class M>
void adamw_bench(benchmark::State& state) {
  const Buffer<float> p(kElements), g(kElements);
  const Buffer<M> m(kElements), v(kElements);
  const Buffer<double> scale(std::vector<double>{1e-9});
  const AdamWSegment segment{0, kElements, 0, true};
  const auto bytes = static_cast<std::int64_t>(12 + 4 * sizeof(M));
  measure(state, bytes * kElements, [&](cudaStream_t stream) {
    adamw<float, float, M>(stream, {}, scale, {&segment, 1}, g, p, m, v);
  });
}
void adamw_fp32_moments(benchmark::State& state) {
  adamw_bench<float>(state);
}
void adamw_bf16_moments(benchmark::State& state) {
  adamw_bench<BFloat16>(state);
}

void embedding_gather(benchmark::State& state) {
  const Buffer<BFloat16> table(kVocab * kHidden), out(kTokens * kHidden);
  const Buffer<std::int32_t> tokens(tokens_below(kVocab));
  measure(state, 4 * kTokens * kHidden, [&](cudaStream_t stream) {
    embedding_forward<BFloat16>(stream, {table, kVocab, kHidden}, tokens, {out, kTokens, kHidden});
  });
}
void embedding_gradient(benchmark::State& state) {
  const Buffer<BFloat16> d_out(kTokens * kHidden);
  const Buffer<float> d_table(kVocab * kHidden);
  const Buffer<std::int32_t> tokens(tokens_below(kVocab));
  const Buffer<std::int32_t> workspace(embedding_workspace_ints(kTokens, kVocab));
  measure(state, 2 * kTokens * kHidden + 4 * kVocab * kHidden, [&](cudaStream_t stream) {
    embedding_backward<BFloat16, float>(stream, tokens, {d_out, kTokens, kHidden},
                                        {d_table, kVocab, kHidden}, host::Store::kOverwrite,
                                        workspace);
  });
}
void norm_forward(benchmark::State& state) {
  const Buffer<BFloat16> x(kTokens * kHidden), y(kTokens * kHidden), w(kHidden);
  const Buffer<float> rstd(kTokens);
  measure(state, 4 * kTokens * kHidden, [&](cudaStream_t stream) {
    cuda::norm_forward<BFloat16>(stream,
                                 {host::Rows::matrix(kTokens, kHidden), x, w, 1e-5f, y, rstd});
  });
}
void norm_backward(benchmark::State& state) {
  const Buffer<BFloat16> x(kTokens * kHidden), d_y(kTokens * kHidden), residual(kTokens * kHidden),
      d_x(kTokens * kHidden), w(kHidden);
  const Buffer<float> rstd(kTokens), d_w(kHidden),
      workspace(norm_partial_sums(kTokens, kHidden) * kHidden);
  measure(state, 8 * kTokens * kHidden, [&](cudaStream_t stream) {
    const host::Rows rows = host::Rows::matrix(kTokens, kHidden);
    cuda::norm_backward<BFloat16, float>(stream, {rows, rows, x, w, rstd, d_y, residual, d_x}, d_w,
                                         workspace);
  });
}
void rope_in_place(benchmark::State& state) {
  const std::int64_t cols = (kHeads + 2 * kKvHeads) * kHeadDim;
  const RopeTable table(Rope{}, kTokens, kHeadDim);
  const std::int64_t angles = table.positions() * table.pairs();
  const Buffer<float> cosine(std::vector<float>(table.cosine(), table.cosine() + angles));
  const Buffer<float> sine(std::vector<float>(table.sine(), table.sine() + angles));
  const Buffer<BFloat16> packed(kTokens * cols);
  const host::Rows rows{kTokens, kHeads + kKvHeads, kHeadDim, cols};
  const RopeView view{table.positions(), table.pairs(), cosine, sine};
  measure(state, 4 * kTokens * (kHeads + kKvHeads) * kHeadDim, [&](cudaStream_t stream) {
    rope<BFloat16>(stream, rows, view, nullptr, kTokens, false, packed);
  });
}
void swiglu_forward(benchmark::State& state) {
  const Buffer<BFloat16> in(kTokens * 2 * kFfn), y(kTokens * kFfn);
  measure(state, 6 * kTokens * kFfn, [&](cudaStream_t stream) {
    activation_forward<BFloat16>(stream, Activation::kSilu, {in, kTokens, 2 * kFfn},
                                 {y, kTokens, kFfn});
  });
}
void swiglu_backward(benchmark::State& state) {
  const Buffer<BFloat16> in(kTokens * 2 * kFfn), d_y(kTokens * kFfn), d_in(kTokens * 2 * kFfn);
  measure(state, 10 * kTokens * kFfn, [&](cudaStream_t stream) {
    activation_backward<BFloat16>(stream, Activation::kSilu, {in, kTokens, 2 * kFfn},
                                  {d_y, kTokens, kFfn}, {d_in, kTokens, 2 * kFfn});
  });
}
void loss_and_gradient(benchmark::State& state) {
  const std::int64_t rows = 2048;
  const Buffer<BFloat16> logits(rows * kVocab);
  const Buffer<std::int32_t> targets(tokens_below(kVocab));
  const Buffer<double> loss(1), losses(rows);
  const Buffer<std::int64_t> count(1);
  measure(state, 4 * rows * kVocab, [&](cudaStream_t stream) {
    cross_entropy<BFloat16>(stream, {logits, rows, kVocab}, targets, -100, true, loss, count,
                            losses);
  });
}
void loss_and_gradient_of_a_quarter(benchmark::State& state) {
  const std::int64_t rows = 2048, cols = kVocab / 4;
  const Buffer<BFloat16> logits(rows * cols);
  const Buffer<std::int32_t> targets(tokens_below(cols));
  const Buffer<double> loss(1), losses(rows);
  const Buffer<std::int64_t> count(1);
  const Buffer<VocabularyPart> parts(4 * rows);
  measure(state, 6 * rows * cols, [&](cudaStream_t stream) {
    const VocabularyParts table{parts, 4, rows};
    vocabulary_statistics<BFloat16>(stream, {logits, rows, cols}, targets, -100, 0, parts);
    vocabulary_losses(stream, targets, rows, -100, table, loss, count, losses);
    vocabulary_gradient<BFloat16>(stream, {logits, rows, cols}, targets, -100, 0, table);
  });
}
void bias_sums(benchmark::State& state) {
  const Buffer<BFloat16> d_y(kTokens * kHidden);
  const Buffer<float> d_bias(kHidden), workspace(kPartialSums * kHidden);
  measure(state, 2 * kTokens * kHidden, [&](cudaStream_t stream) {
    bias_gradient<BFloat16, float>(stream, {d_y, kTokens, kHidden}, d_bias, workspace);
  });
}

BENCHMARK(copy_by_kernel)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(cast_to_bf16)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(accumulate_bf16)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(fold_of_four)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(tree_of_four)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(squares)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(adamw_fp32_moments)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(adamw_bf16_moments)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(embedding_gather)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(embedding_gradient)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(norm_forward)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(norm_backward)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(rope_in_place)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(swiglu_forward)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(swiglu_backward)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(loss_and_gradient)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(loss_and_gradient_of_a_quarter)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(bias_sums)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace shardwright::kernels::cuda

int main(int argc, char** argv) {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU: %s\n", cudaGetErrorString(status));
    return 0;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
