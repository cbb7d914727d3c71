// SPDX-License-Identifier: Apache-2.0
// Speed of the host kernels at the shapes of a small Llama: rates in FLOP/s for products and
// attention, bytes/s for what memory bounds. Arguments are given in each name; threads last.
#include <benchmark/benchmark.h>

#include <vector>

#include "kernels/host/activation.h"
#include "kernels/host/attention.h"
#include "kernels/host/elementwise.h"
#include "kernels/host/loss.h"
#include "kernels/host/matmul.h"
#include "kernels/host/norm.h"
#include "kernels/host/optimizer.h"
#include "kernels/random.h"

namespace shardwright::kernels::host {
namespace {

template <class T>
std::vector<T> random_values(std::int64_t count, std::uint64_t seed) {
  const RandomStream stream{.seed = seed};
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(from_float<T>(stream.uniform(static_cast<std::uint64_t>(i)) - 0.5f));
  }
  return values;
}

void set_flops(benchmark::State& state, double flops) {
  state.counters["FLOP/s"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

void set_bytes(benchmark::State& state, double bytes) {
  state.counters["bytes/s"] =
      benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
}

template <class T, Layout kLayout>
void matmul_bench(benchmark::State& state) {
  const std::int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  Parallel parallel(static_cast<int>(state.range(3)));
  const auto a = random_values<T>(m * k, 1), b = random_values<T>(n * k, 2);
  std::vector<T> c(static_cast<std::size_t>(m * n));
  const Matrix<const T> left =
      kLayout == Layout::kTN ? Matrix<const T>(a.data(), k, m) : Matrix<const T>(a.data(), m, k);
  const Matrix<const T> right =
      kLayout == Layout::kNT ? Matrix<const T>(b.data(), n, k) : Matrix<const T>(b.data(), k, n);
  for (auto _ : state) {
    matmul<T, T, T>(parallel, kLayout, left, right, {c.data(), m, n});
    benchmark::DoNotOptimize(c.data());
  }
  set_flops(state, 2.0 * static_cast<double>(m * n * k));
}
void matmul_shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"m", "n", "k", "threads"});
  for (const std::int64_t threads : {1, 2}) {
    bench->Args({1024, 256, 256, threads});
    bench->Args({1024, 704, 256, threads});
    bench->Args({512, 512, 512, threads});
    bench->Args({2048, 2048, 2048, threads});
  }
  // Of a tensor rank of the model in scripts/virtual_clocks, and its weight gradients.
  for (const std::int64_t narrow : {32, 88, 128, 352}) {
    bench->Args({128, narrow, 128, 1});
    if (narrow != 128) bench->Args({narrow, 128, 128, 1});
  }
  bench->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(matmul_bench<float, Layout::kNT>)->Apply(matmul_shapes);
BENCHMARK(matmul_bench<float, Layout::kNN>)->Apply(matmul_shapes);
BENCHMARK(matmul_bench<float, Layout::kTN>)->Apply(matmul_shapes);
BENCHMARK(matmul_bench<BFloat16, Layout::kNT>)->Apply(matmul_shapes);
BENCHMARK(matmul_bench<BFloat16, Layout::kTN>)->Apply(matmul_shapes);

template <Fp8Scaling kScaling>
void fp8_matmul_bench(benchmark::State& state) {
  const std::int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  Parallel parallel(static_cast<int>(state.range(3)));
  const auto a = random_values<BFloat16>(m * k, 1), b = random_values<BFloat16>(n * k, 2);
  std::vector<BFloat16> c(static_cast<std::size_t>(m * n));
  std::vector<std::uint8_t> codes(static_cast<std::size_t>((m + n) * k));
  std::vector<float> scales(static_cast<std::size_t>(
      (fp8_scale_bytes(kScaling, m, k) + fp8_scale_bytes(kScaling, n, k)) / 4));
  const Fp8Matrix left{codes.data(), scales.data(), m, k, Fp8Format::kE4M3, kScaling};
  const Fp8Matrix right{codes.data() + m * k,
                        scales.data() + fp8_scale_bytes(kScaling, m, k) / 4,
                        n,
                        k,
                        Fp8Format::kE4M3,
                        kScaling};
  for (auto _ : state) {
    quantize<BFloat16>(parallel, {a.data(), m, k}, false, left);
    quantize<BFloat16>(parallel, {b.data(), n, k}, false, right);
    fp8_matmul<BFloat16>(parallel, left, right, {c.data(), m, n});
    benchmark::DoNotOptimize(c.data());
  }
  set_flops(state, 2.0 * static_cast<double>(m * n * k));
}
BENCHMARK(fp8_matmul_bench<Fp8Scaling::kTensor>)->Apply(matmul_shapes);
BENCHMARK(fp8_matmul_bench<Fp8Scaling::kRows>)->Apply(matmul_shapes);
BENCHMARK(fp8_matmul_bench<Fp8Scaling::kBlocks>)->Apply(matmul_shapes);

/// Work of causal attention: half of the two products of T x T x D per head; backward has five.
double attention_flops(const AttentionShape& s, double products) {
  return products * static_cast<double>(s.batch * s.heads * s.seq * s.seq * s.head_dim);
}

template <class T, bool kBackward>
void attention_bench(benchmark::State& state) {
  const AttentionShape shape{.batch = state.range(0),
                             .seq = state.range(1),
                             .heads = state.range(2),
                             .kv_heads = state.range(3),
                             .head_dim = state.range(4),
                             .scale = 0.125};
  Parallel parallel(static_cast<int>(state.range(5)));
  const std::int64_t q_size = shape.tokens() * shape.heads * shape.head_dim;
  const std::int64_t kv_size = shape.tokens() * shape.kv_heads * shape.head_dim;
  const auto q = random_values<T>(q_size, 1), k = random_values<T>(kv_size, 2);
  const auto v = random_values<T>(kv_size, 3), d_out = random_values<T>(q_size, 4);
  std::vector<T> out(q.size()), d_q(q.size()), d_k(k.size()), d_v(k.size());
  std::vector<float> lse(static_cast<std::size_t>(shape.tokens() * shape.heads));
  std::vector<float> workspace(lse.size());
  const AttentionLayout layout = AttentionLayout::contiguous(shape);
  attention_forward<T>(parallel, shape, layout, q.data(), k.data(), v.data(), nullptr, out.data(),
                       lse.data());
  for (auto _ : state) {
    if (kBackward) {
      attention_backward<T>(parallel, shape, layout, q.data(), k.data(), v.data(), nullptr,
                            out.data(), lse.data(), d_out.data(), d_q.data(), d_k.data(),
                            d_v.data(), workspace.data());
    } else {
      attention_forward<T>(parallel, shape, layout, q.data(), k.data(), v.data(), nullptr,
                           out.data(), lse.data());
    }
    benchmark::DoNotOptimize(out.data());
  }
  set_flops(state, attention_flops(shape, kBackward ? 5.0 : 2.0));
}
void attention_shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"B", "T", "H", "Hkv", "D", "threads"});
  for (const std::int64_t threads : {1, 2}) {
    bench->Args({4, 256, 4, 4, 64, threads});
    bench->Args({1, 1024, 8, 2, 128, threads});
  }
  bench->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(attention_bench<float, false>)->Apply(attention_shapes);
BENCHMARK(attention_bench<float, true>)->Apply(attention_shapes);
BENCHMARK(attention_bench<BFloat16, false>)->Apply(attention_shapes);
BENCHMARK(attention_bench<BFloat16, true>)->Apply(attention_shapes);

template <class T, bool kBackward>
void rmsnorm_bench(benchmark::State& state) {
  const std::int64_t rows = state.range(0), cols = state.range(1);
  Parallel parallel(static_cast<int>(state.range(2)));
  const auto x = random_values<T>(rows * cols, 1), w = random_values<T>(cols, 2);
  const auto d_y = random_values<T>(rows * cols, 3);
  std::vector<T> y(x.size());
  std::vector<float> rstd(static_cast<std::size_t>(rows)), d_w(static_cast<std::size_t>(cols));
  std::vector<float> workspace(static_cast<std::size_t>(kPartialSums * cols));
  const Rows shape = Rows::matrix(rows, cols);
  const NormForward<T> forward{shape, x.data(), w.data(), 1e-5f, y.data(), rstd.data()};
  const NormBackward<T> backward{shape,       shape,      x.data(), w.data(),
                                 rstd.data(), d_y.data(), nullptr,  y.data()};
  norm_forward(parallel, forward);
  for (auto _ : state) {
    if (kBackward) {
      norm_backward(parallel, backward, d_w.data(), workspace.data());
    } else {
      norm_forward(parallel, forward);
    }
    benchmark::DoNotOptimize(y.data());
  }
  set_bytes(state, static_cast<double>(rows * cols) * sizeof(T) * (kBackward ? 3 : 2));
}
void row_shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "cols", "threads"})->Args({1024, 256, 1})->Args({1024, 256, 2});
  bench->Args({4096, 2048, 2})->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(rmsnorm_bench<float, false>)->Apply(row_shapes);
BENCHMARK(rmsnorm_bench<float, true>)->Apply(row_shapes);
BENCHMARK(rmsnorm_bench<BFloat16, false>)->Apply(row_shapes);
BENCHMARK(rmsnorm_bench<BFloat16, true>)->Apply(row_shapes);

template <class T>
void swiglu_bench(benchmark::State& state) {
  const std::int64_t rows = state.range(0), cols = state.range(1);
  Parallel parallel(static_cast<int>(state.range(2)));
  const auto gate = random_values<T>(rows * cols, 1), up = random_values<T>(rows * cols, 2);
  std::vector<T> y(gate.size());
  for (auto _ : state) {
    gated_forward<T>(parallel, Activation::kSilu, {gate.data(), rows, cols},
                     {up.data(), rows, cols}, {y.data(), rows, cols});
    benchmark::DoNotOptimize(y.data());
  }
  set_bytes(state, static_cast<double>(rows * cols) * sizeof(T) * 3);
}
BENCHMARK(swiglu_bench<float>)->Apply(row_shapes);
BENCHMARK(swiglu_bench<BFloat16>)->Apply(row_shapes);

/// The loss of 1024 tokens with gradients.
void cross_entropy_bench(benchmark::State& state) {
  const std::int64_t n = 1024, vocab = state.range(0);
  Parallel parallel(static_cast<int>(state.range(1)));
  std::vector<float> logits = random_values<float>(n * vocab, 1);
  std::vector<std::int32_t> targets;
  for (std::int64_t i = 0; i < n; ++i) targets.push_back(static_cast<std::int32_t>(i % vocab));
  std::vector<double> losses(targets.size());
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        cross_entropy(parallel, {logits.data(), n, vocab}, targets, true, losses));
  }
  set_bytes(state, static_cast<double>(n * vocab) * sizeof(float) * 2);
}
void vocabularies(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"V", "threads"})->Args({256, 1})->Args({256, 2})->Args({32000, 2});
  bench->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(cross_entropy_bench)->Apply(vocabularies);

/// The same with gradients, of the columns that one of four ranks has.
void vocabulary_loss_bench(benchmark::State& state) {
  const std::int64_t n = 1024, vocab = state.range(0), cols = vocab / 4;
  Parallel parallel(static_cast<int>(state.range(1)));
  std::vector<float> logits = random_values<float>(n * cols, 1);
  std::vector<std::int32_t> targets;
  for (std::int64_t i = 0; i < n; ++i) targets.push_back(static_cast<std::int32_t>(i % cols));
  std::vector<double> losses(targets.size());
  std::vector<VocabularyPart> parts(4 * targets.size(), VocabularyPart{0.5f, 1.0f, -0.0f});
  for (auto _ : state) {
    vocabulary_statistics(parallel, {logits.data(), n, cols}, targets, 0, parts);
    benchmark::DoNotOptimize(vocabulary_loss(parallel, {logits.data(), n, cols}, targets, 0,
                                             {parts.data(), 4, n}, true, losses));
  }
  set_bytes(state, static_cast<double>(n * cols) * sizeof(float) * 3);
}
BENCHMARK(vocabulary_loss_bench)->Apply(vocabularies);

template <class M>
void adamw_bench(benchmark::State& state) {
  const std::int64_t size = state.range(0);
  Parallel parallel(static_cast<int>(state.range(1)));
  const auto gradient = random_values<float>(size, 1);
  std::vector<float> parameter(gradient);
  std::vector<M> m(gradient.size()), v(gradient.size());
  for (auto _ : state) {
    adamw<float, float, M>(parallel, AdamW{}, {}, gradient, parameter, m, v);
    benchmark::DoNotOptimize(parameter.data());
  }
  set_bytes(state, static_cast<double>(size) * (12 + 4 * sizeof(M)));
}
void parameter_counts(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"size", "threads"})->Args({1 << 20, 1})->Args({1 << 20, 2})->Args({1 << 24, 2});
  bench->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(adamw_bench<float>)->Apply(parameter_counts);
BENCHMARK(adamw_bench<BFloat16>)->Apply(parameter_counts);

/// Partial sums of a product from four ranks.
template <class T>
void fold_tree_bench(benchmark::State& state) {
  const std::int64_t size = state.range(0);
  Parallel parallel(static_cast<int>(state.range(1)));
  std::vector<std::vector<T>> partial(4, random_values<T>(size, 1));
  std::vector<const void*> inputs;
  for (const std::vector<T>& one : partial) inputs.push_back(one.data());
  std::vector<T> sum(partial[0].size());
  for (auto _ : state) {
    fold_tree<T, T>(parallel, inputs, std::span(sum), false);
    benchmark::DoNotOptimize(sum.data());
  }
  set_bytes(state, static_cast<double>(size) * 5 * sizeof(T));
}
BENCHMARK(fold_tree_bench<float>)->Apply(parameter_counts);
BENCHMARK(fold_tree_bench<BFloat16>)->Apply(parameter_counts);

void gradient_norm_bench(benchmark::State& state) {
  const auto gradient = random_values<float>(state.range(0), 1);
  Parallel parallel(static_cast<int>(state.range(1)));
  for (auto _ : state) {
    benchmark::DoNotOptimize(sum_of_squares<float>(parallel, gradient).value());
  }
  set_bytes(state, static_cast<double>(state.range(0)) * 4);
}
BENCHMARK(gradient_norm_bench)->Apply(parameter_counts);

}  // namespace
}  // namespace shardwright::kernels::host
