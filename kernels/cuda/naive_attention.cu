// SPDX-License-Identifier: Apache-2.0
// The oracle on the device: a block a query, then a block a key. Each of its warps takes every
// kBlockWarps-th key (or query) and keeps a sum of its own; the sums are joined in the order of
// warps. Scores are computed again wherever they are needed, so memory is linear in the sequence
// length and time is not the point.

#include <string>

#include "kernels/arguments.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/launch.h"

namespace shardwright::kernels::cuda {
namespace {

constexpr int kBlockThreads = 128;
constexpr int kBlockWarps = kBlockThreads / 32;
constexpr int kMaxHeadDim = 256;
constexpr int kSlices = kMaxHeadDim / 32;  // elements of a head in one lane

/// Element l + 32 i of a head in lane l; zero behind its end.
struct HeadSlice {
  float v[kSlices];
};

template <class T>
struct AttentionArguments {
  const T* packed;
  const std::int32_t* first_key;
  T* out;
  float* lse;
  const T* d_out;
  T* d_packed;
  float* delta;  // [B, H, T]: d_out * out summed over a head
  int batch, seq, heads, kv_heads, head_dim;
  float scale, softcap;
  bool alibi;
  int first_head, all_heads;
  std::int64_t packed_stride, out_stride;

  __device__ float slope(int head) const {
    return alibi ? exp2f(-8.0f * alibi_share(first_head + head, all_heads)) : 0.0f;
  }

  __device__ const T* query(std::int64_t token, int head) const {
    return packed + token * packed_stride + head * head_dim;
  }
  __device__ const T* key(std::int64_t token, int kv_head) const {
    return query(token, heads + kv_head);
  }
  __device__ const T* value(std::int64_t token, int kv_head) const {
    return query(token, heads + kv_heads + kv_head);
  }
};

/// A score as it goes to the softmax, and how much it rises with the score itself.
struct BentScore {
  float value, rise;
};

__device__ __forceinline__ BentScore bend(float score, float softcap, float fall) {
  if (softcap == 0.0f) return {score - fall, 1.0f};
  const float share = tanhf(score / softcap);
  return {softcap * share - fall, 1.0f - share * share};
}

template <class T>
__device__ __forceinline__ HeadSlice load_head(const T* head, int head_dim, int lane) {
  HeadSlice slice;
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
    float v[1] = {0.0f};
    if (lane + 32 * i < head_dim) load(head + lane + 32 * i, v);
    slice.v[i] = v[0];
  }
  return slice;
}

template <class T>
__device__ __forceinline__ void store_head(T* head, const HeadSlice& slice, int head_dim,
                                           int lane) {
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
    if (lane + 32 * i < head_dim) head[lane + 32 * i] = rounded<T>(slice.v[i]);
  }
}

__device__ __forceinline__ float dot(const HeadSlice& a, const HeadSlice& b) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kSlices; ++i) sum = __fmaf_rn(a.v[i], b.v[i], sum);
  return warp_reduce<32>(sum, Plus{});
}

__device__ __forceinline__ void add_scaled(HeadSlice& sum, float factor, const HeadSlice& x) {
#pragma unroll
  for (int i = 0; i < kSlices; ++i) sum.v[i] = __fmaf_rn(factor, x.v[i], sum.v[i]);
}

/// The sum of the warps' slices, in the order of warps, in the lanes of warp 0. `shared` is
/// [kBlockWarps, kMaxHeadDim].
__device__ __forceinline__ HeadSlice join_warps(const HeadSlice& own, float* shared) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSlices; ++i) shared[warp * kMaxHeadDim + lane + 32 * i] = own.v[i];
  __syncthreads();
  HeadSlice sum;
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
    sum.v[i] = shared[lane + 32 * i];
    for (int w = 1; w < kBlockWarps; ++w) sum.v[i] += shared[w * kMaxHeadDim + lane + 32 * i];
  }
  return sum;
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads) naive_forward_kernel(AttentionArguments<T> a) {
  __shared__ float joined[kBlockWarps * kMaxHeadDim];
  __shared__ float tops[kBlockWarps], sums[kBlockWarps];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const std::int64_t token = blockIdx.x;
  const auto head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (a.heads / a.kv_heads);
  const auto t = static_cast<int>(token % a.seq);
  const std::int64_t sequence = token - t;
  const float slope = a.slope(head);
  const HeadSlice q = load_head(a.query(token, head), a.head_dim, lane);
  float top = -INFINITY, sum = 0.0f;
  HeadSlice out{};
  for (int key = (a.first_key != nullptr ? a.first_key[token] : 0) + warp; key <= t;
       key += kBlockWarps) {
    const float product =
        a.scale * dot(q, load_head(a.key(sequence + key, kv_head), a.head_dim, lane));
    const float score = bend(product, a.softcap, slope * static_cast<float>(t - key)).value;
    const float higher = fmaxf(top, score);
    const float kept = expf(top - higher), weight = expf(score - higher);
#pragma unroll
    for (int i = 0; i < kSlices; ++i) out.v[i] *= kept;
    add_scaled(out, weight, load_head(a.value(sequence + key, kv_head), a.head_dim, lane));
    sum = sum * kept + weight;
    top = higher;
  }
  if (lane == 0) {
    tops[warp] = top;
    sums[warp] = sum;
  }
  __syncthreads();
  float top_of_all = tops[0];
  for (int w = 1; w < kBlockWarps; ++w) top_of_all = fmaxf(top_of_all, tops[w]);
  float sum_of_all = 0.0f;
  for (int w = 0; w < kBlockWarps; ++w) {
    if (sums[w] > 0.0f) sum_of_all += sums[w] * expf(tops[w] - top_of_all);
  }
  const float share = sum > 0.0f ? expf(top - top_of_all) / sum_of_all : 0.0f;
#pragma unroll
  for (int i = 0; i < kSlices; ++i) out.v[i] *= share;
  out = join_warps(out, joined);
  if (warp != 0) return;
  store_head(a.out + token * a.out_stride + head * a.head_dim, out, a.head_dim, lane);
  if (lane == 0) {
    a.lse[(sequence / a.seq * a.heads + head) * a.seq + t] = top_of_all + logf(sum_of_all);
  }
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    naive_query_gradient_kernel(AttentionArguments<T> a) {
  __shared__ float joined[kBlockWarps * kMaxHeadDim];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const std::int64_t token = blockIdx.x;
  const auto head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (a.heads / a.kv_heads);
  const auto t = static_cast<int>(token % a.seq);
  const std::int64_t sequence = token - t;
  const std::int64_t statistic = (sequence / a.seq * a.heads + head) * a.seq + t;
  const std::int64_t out_at = token * a.out_stride + head * a.head_dim;
  const float slope = a.slope(head);
  const HeadSlice q = load_head(a.query(token, head), a.head_dim, lane);
  const HeadSlice d_out = load_head(a.d_out + out_at, a.head_dim, lane);
  const float delta = dot(d_out, load_head(a.out + out_at, a.head_dim, lane));
  const float lse = a.lse[statistic];
  HeadSlice d_q{};
  for (int key = (a.first_key != nullptr ? a.first_key[token] : 0) + warp; key <= t;
       key += kBlockWarps) {
    const HeadSlice k = load_head(a.key(sequence + key, kv_head), a.head_dim, lane);
    const BentScore score =
        bend(a.scale * dot(q, k), a.softcap, slope * static_cast<float>(t - key));
    const float p = expf(score.value - lse);
    const float d_p = dot(d_out, load_head(a.value(sequence + key, kv_head), a.head_dim, lane));
    add_scaled(d_q, p * (d_p - delta) * score.rise * a.scale, k);
  }
  d_q = join_warps(d_q, joined);
  if (warp != 0) return;
  store_head(a.d_packed + token * a.packed_stride + head * a.head_dim, d_q, a.head_dim, lane);
  if (lane == 0) a.delta[statistic] = delta;
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    naive_key_gradient_kernel(AttentionArguments<T> a) {
  __shared__ float joined[kBlockWarps * kMaxHeadDim];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const std::int64_t token = blockIdx.x;
  const auto kv_head = static_cast<int>(blockIdx.y);
  const int group = a.heads / a.kv_heads;
  const auto key = static_cast<int>(token % a.seq);
  const std::int64_t sequence = token - key;
  const HeadSlice k = load_head(a.key(token, kv_head), a.head_dim, lane);
  const HeadSlice v = load_head(a.value(token, kv_head), a.head_dim, lane);
  HeadSlice d_k{}, d_v{};
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const float slope = a.slope(head);
    for (int t = key + warp; t < a.seq; t += kBlockWarps) {
      if (a.first_key != nullptr && a.first_key[sequence + t] > key) continue;
      const std::int64_t statistic = (sequence / a.seq * a.heads + head) * a.seq + t;
      const HeadSlice q = load_head(a.query(sequence + t, head), a.head_dim, lane);
      const HeadSlice d_out =
          load_head(a.d_out + (sequence + t) * a.out_stride + head * a.head_dim, a.head_dim, lane);
      const BentScore score =
          bend(a.scale * dot(q, k), a.softcap, slope * static_cast<float>(t - key));
      const float p = expf(score.value - a.lse[statistic]);
      add_scaled(d_v, p, d_out);
      add_scaled(d_k, p * (dot(d_out, v) - a.delta[statistic]) * score.rise * a.scale, q);
    }
  }
  d_k = join_warps(d_k, joined);
  d_v = join_warps(d_v, joined);
  if (warp != 0) return;
  T* to = a.d_packed + token * a.packed_stride + (a.heads + kv_head) * a.head_dim;
  store_head(to, d_k, a.head_dim, lane);
  store_head(to + a.kv_heads * a.head_dim, d_v, a.head_dim, lane);
}

template <class T>
AttentionArguments<T> arguments_of(const AttentionProblem& problem) {
  const AttentionShape& s = problem.shape;
  AttentionArguments<T> a{};
  a.batch = static_cast<int>(s.batch);
  a.seq = static_cast<int>(s.seq);
  a.heads = static_cast<int>(s.heads);
  a.kv_heads = static_cast<int>(s.kv_heads);
  a.head_dim = static_cast<int>(s.head_dim);
  a.scale = static_cast<float>(s.scale);
  a.softcap = static_cast<float>(s.softcap);
  a.alibi = s.alibi;
  a.first_head = static_cast<int>(s.first_head);
  a.all_heads = static_cast<int>(s.alibi_heads());
  a.packed_stride = problem.packed_stride;
  a.out_stride = problem.out_stride;
  return a;
}

template <class T>
void run_forward(const AttentionProblem& problem, const AttentionForward& arrays,
                 cudaStream_t stream) {
  const AttentionShape& s = problem.shape;
  AttentionArguments<T> a = arguments_of<T>(problem);
  a.packed = static_cast<const T*>(arrays.packed);
  a.first_key = arrays.first_key;
  a.out = static_cast<T*>(arrays.out);
  a.lse = arrays.statistics;
  launch(naive_forward_kernel<T>,
         {dim3(static_cast<unsigned>(s.tokens()), static_cast<unsigned>(s.heads)), kBlockThreads},
         stream, a);
}

template <class T>
void run_backward(const AttentionProblem& problem, const AttentionBackward& arrays,
                  cudaStream_t stream) {
  const AttentionShape& s = problem.shape;
  AttentionArguments<T> a = arguments_of<T>(problem);
  a.packed = static_cast<const T*>(arrays.packed);
  a.first_key = arrays.first_key;
  a.out = const_cast<T*>(static_cast<const T*>(arrays.out));  // only read
  a.lse = const_cast<float*>(arrays.statistics);
  a.d_out = static_cast<const T*>(arrays.d_out);
  a.d_packed = static_cast<T*>(arrays.d_packed);
  a.delta = static_cast<float*>(arrays.workspace);
  const auto tokens = static_cast<unsigned>(s.tokens());
  launch(naive_query_gradient_kernel<T>,
         {dim3(tokens, static_cast<unsigned>(s.heads)), kBlockThreads}, stream, a);
  launch(naive_key_gradient_kernel<T>,
         {dim3(tokens, static_cast<unsigned>(s.kv_heads)), kBlockThreads}, stream, a);
}

class NaiveAttention final : public Attention {
 public:
  std::string_view name() const override { return name_of(AttentionForm::kNaive); }
  std::string refusal(const AttentionProblem& problem) override {
    const AttentionShape& s = problem.shape;
    std::string reason = attention_refusal(AttentionForm::kNaive, needs_of(problem));
    if (!reason.empty()) return reason;
    if (s.kv_heads < 1 || s.heads % s.kv_heads != 0) {
      return "takes as many or a multiple of query heads for key heads, not " +
             std::to_string(s.heads) + " for " + std::to_string(s.kv_heads);
    }
    return "";
  }
  Bytes forward_workspace_bytes(const AttentionProblem&) override { return 0; }
  Bytes backward_workspace_bytes(const AttentionProblem& problem) override {
    return problem.shape.tokens() * problem.shape.heads * 4;
  }
  void forward(const AttentionProblem& problem, const AttentionForward& arrays,
               cudaStream_t stream) override {
    if (problem.shape.tokens() == 0) return;
    if (problem.dtype == DType::kFp32) {
      run_forward<float>(problem, arrays, stream);
    } else {
      run_forward<BFloat16>(problem, arrays, stream);
    }
  }
  void backward(const AttentionProblem& problem, const AttentionBackward& arrays,
                cudaStream_t stream) override {
    if (problem.shape.tokens() == 0) return;
    if (problem.dtype == DType::kFp32) {
      run_backward<float>(problem, arrays, stream);
    } else {
      run_backward<BFloat16>(problem, arrays, stream);
    }
  }
};

}  // namespace

std::unique_ptr<Attention> make_naive_attention() {
  return std::make_unique<NaiveAttention>();
}

}  // namespace shardwright::kernels::cuda
