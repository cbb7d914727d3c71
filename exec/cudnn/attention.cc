// SPDX-License-Identifier: Apache-2.0
#include "exec/cudnn/attention.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "exec/cuda/handles.h"
#include "exec/cudnn/graph.h"
#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "kernels/cuda/attention.h"
#include "sim/core/arena.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

namespace shardwright::exec::cudnn {

namespace {

// What graphs of attention take from host memory while a plan runs.

using BoundArrays = std::vector<std::pair<Uid, const void*>>;

/// Of kOne, in the backward pass.
inline constexpr float kFactorOne = 1.0F;

/// Of parts of a workspace.
constexpr Bytes aligned(Bytes bytes) {
  return round_up(bytes, kArenaAlignment);
}

/// What scores are multiplied with and masked by.
struct ScoreNumbers {
  float scale, cap, inverse_cap;
  bool documents;

  explicit ScoreNumbers(const kernels::cuda::AttentionProblem& problem)
      : scale(static_cast<float>(problem.shape.scale)),
        cap(static_cast<float>(problem.shape.softcap)),
        inverse_cap(cap == 0 ? 0.0F : static_cast<float>(1 / problem.shape.softcap)),
        documents(problem.documents) {}
  void bind(BoundArrays& bound) const {
    static constexpr float kLowest = std::numeric_limits<float>::lowest();
    bound.emplace_back(kScale, &scale);
    bound.emplace_back(kMasked, &kLowest);
    if (documents) bound.emplace_back(kBeyond, &kLowest);
    if (cap == 0) return;
    bound.emplace_back(kCap, &cap);
    bound.emplace_back(kInverseCap, &inverse_cap);
  }
};

using kernels::AttentionShape;
using kernels::BFloat16;
using kernels::cuda::AttentionBackward;
using kernels::cuda::AttentionForward;
using kernels::cuda::AttentionProblem;
using kernels::cuda::DocumentOffsets;

/// What plans depend on.
using ProblemKey = std::array<std::int64_t, 11>;
ProblemKey key_of(const AttentionProblem& problem) {
  const AttentionShape& s = problem.shape;
  return {s.batch,
          s.seq,
          s.heads,
          s.kv_heads,
          s.head_dim,
          s.softcap != 0,
          s.alibi,
          problem.packed_stride,
          problem.out_stride,
          problem.most_workspace_bytes,
          problem.most_documents};
}

Bytes begin_bytes(const AttentionProblem& problem) {
  return aligned(8 * (problem.most_documents + 1));
}

/// Four lists of begins and one of lengths.
Bytes list_bytes(const AttentionProblem& problem) {
  return kernels::cuda::kMostDocumentStrides * begin_bytes(problem) +
         aligned(4 * problem.most_documents);
}

/// Makes the lists in `room`, and binds them.
void make_lists(const AttentionProblem& problem, const RowStrides& strides,
                const std::int32_t* first_key, std::byte* room, BoundArrays& bound,
                cudaStream_t stream) {
  const std::pair<Uid, std::int64_t> lists[] = {{kQueryBegins, strides.query},
                                                {kKeyBegins, strides.key},
                                                {kOutBegins, strides.out},
                                                {kRowBegins, strides.rows}};
  DocumentOffsets out{.most = problem.most_documents};
  for (std::size_t i = 0; i < std::size(lists); ++i, room += begin_bytes(problem)) {
    out.offsets[i] = reinterpret_cast<std::int64_t*>(room);
    out.strides[i] = lists[i].second;
    bound.emplace_back(lists[i].first, room);
  }
  out.lengths = reinterpret_cast<std::int32_t*>(room);
  bound.emplace_back(kLengths, room);
  kernels::cuda::document_offsets(stream, first_key, problem.shape.tokens(), problem.shape.seq,
                                  out);
}

/// Columns of bf16 rows, from rows of one length to rows of another.
void copy_columns(void* to, std::int64_t to_stride, const void* from, std::int64_t from_stride,
                  std::int64_t cols, std::int64_t rows, cudaStream_t stream) {
  constexpr auto kBytes = sizeof(BFloat16);
  const auto bytes = [](std::int64_t elements) {
    return kBytes * static_cast<std::size_t>(elements);
  };
  SHARDWRIGHT_CUDA(cudaMemcpy2DAsync(to, bytes(to_stride), from, bytes(from_stride), bytes(cols),
                                     static_cast<std::size_t>(rows), cudaMemcpyDeviceToDevice,
                                     stream));
}

/// Where a slice's heads lie in packed rows, in elements.
struct PackedColumns {
  std::int64_t query, key, value;

  PackedColumns(const AttentionShape& s, std::int64_t kv_head)
      : query(kv_head * s.group() * s.head_dim),
        key((s.heads + kv_head) * s.head_dim),
        value(key + s.kv_heads * s.head_dim) {}
};

/// The workspace of the backward pass.
struct Rooms {
  std::byte *lists, *delta, *query, *d_query, *key, *value, *d_key, *d_value, *every_key,
      *every_value, *total, *engine;

  Rooms(const DocumentSlice& s, void* base) {
    auto* at = static_cast<std::byte*>(base);
    const auto take = [&](Bytes bytes) { return std::exchange(at, at + bytes); };
    lists = take(s.list_bytes);
    delta = take(s.delta_bytes);
    query = take(s.query_bytes);
    d_query = take(s.query_bytes);
    key = take(s.key_bytes);
    value = take(s.key_bytes);
    d_key = take(s.key_bytes);
    d_value = take(s.key_bytes);
    every_key = take(s.every_bytes);
    every_value = take(s.every_bytes);
    total = take(s.total_bytes);
    engine = at;
  }
};

}  // namespace

RowStrides DocumentSlice::strides(const AttentionProblem& problem) const {
  const std::int64_t key = kv_heads * problem.shape.head_dim;
  return {problem.shape.group() * key, key, problem.out_stride, problem.shape.heads};
}

AttentionProblem slice_problem(const AttentionProblem& problem, const DocumentSlice& slice) {
  AttentionProblem result = problem;
  result.shape.heads = slice.kv_heads * problem.shape.group();
  result.shape.kv_heads = slice.kv_heads;
  return result;
}

std::optional<DocumentSlice> document_slice(const AttentionProblem& problem,
                                            const Descriptor& device) {
  const AttentionShape& s = problem.shape;
  for (std::int64_t kv_heads = s.kv_heads; kv_heads >= 1; --kv_heads) {
    // Statistics of a slice begin at multiples of 16 bytes.
    const bool is_whole = kv_heads == s.kv_heads;
    if (s.kv_heads % kv_heads != 0 || (!is_whole && kv_heads * s.group() % 4 != 0)) continue;
    DocumentSlice slice{.kv_heads = kv_heads};
    const Bytes key_elements = s.tokens() * kv_heads * s.head_dim;
    slice.list_bytes = list_bytes(problem);
    slice.delta_bytes = aligned(4 * s.tokens() * s.heads);
    slice.key_bytes = aligned(2 * key_elements);
    slice.query_bytes = aligned(2 * s.group() * key_elements);
    slice.every_bytes = s.group() > 1 ? slice.query_bytes : 0;
    slice.total_bytes = aligned(4 * s.group() * key_elements);
    if (slice.bytes() > problem.most_workspace_bytes) continue;
    Graph graph = attention_backward_graph(slice_problem(problem, slice),
                                           QueryGradient::kAccumulated, slice.strides(problem));
    const auto configs = engines(graph.finish(), device);
    if (configs.empty()) return {};
    slice.engine_bytes = configs.front().get_int64(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE);
    if (slice.bytes() <= problem.most_workspace_bytes) return slice;
  }
  return {};
}

std::string document_refusal(const AttentionProblem& problem, int compute_major,
                             std::size_t version) {
  const std::size_t oldest = ruled_version("cudnn.packed_documents");
  constexpr int kHopper = 9, kBlackwell = 10;
  if (problem.most_documents == 0) {
    return "cannot mask packed documents of which there are more than 64 a sequence";
  }
  if (compute_major != kHopper && compute_major != kBlackwell) {
    return "masks packed documents on GPUs of compute capability 9 and 10 only";
  }
  if (problem.shape.alibi) return "takes packed documents without slopes";
  if (version >= oldest) return {};
  return fmt::format("of version {} is too old for packed documents, expected {} or newer",
                     version_text(version), version_text(oldest));
}

namespace {

class DocumentAttention {
 public:
  /// Throws Error where no engine serves the problem.
  void prepare(cudnnHandle_t handle, const kernels::cuda::AttentionProblem& problem) {
    plans(handle, problem);
  }
  Bytes forward_workspace_bytes(cudnnHandle_t handle, const AttentionProblem& problem) {
    return list_bytes(problem) + plans(handle, problem).forward.workspace_bytes();
  }

  Bytes backward_workspace_bytes(cudnnHandle_t handle, const AttentionProblem& problem) {
    return plans(handle, problem).slice.bytes();
  }

  void forward(cudnnHandle_t handle, const AttentionProblem& problem,
               const AttentionForward& arrays, cudaStream_t stream) {
    const Plans& p = plans(handle, problem);
    const PackedColumns columns(problem.shape, 0);
    const auto* packed = static_cast<const BFloat16*>(arrays.packed);
    const ScoreNumbers numbers(problem);
    auto* const lists = static_cast<std::byte*>(arrays.workspace);
    BoundArrays bound = {{kQuery, packed},
                         {kKey, packed + columns.key},
                         {kValue, packed + columns.value},
                         {kOut, arrays.out},
                         {kStatistics, arrays.statistics}};
    numbers.bind(bound);
    make_lists(problem, row_strides(problem), arrays.first_key, lists, bound, stream);
    p.forward.execute(handle, bound, lists + list_bytes(problem));
  }

  void backward(cudnnHandle_t handle, const AttentionProblem& problem,
                const AttentionBackward& arrays, cudaStream_t stream) {
    const Plans& p = plans(handle, problem);
    const AttentionShape& s = problem.shape;
    const RowStrides strides = p.slice.strides(problem);
    const Rooms rooms(p.slice, arrays.workspace);
    const ScoreNumbers numbers(problem);
    BoundArrays same;  // for all slices
    numbers.bind(same);
    make_lists(problem, strides, arrays.first_key, rooms.lists, same, stream);
    same.insert(same.end(), {{kQuery, rooms.query},
                             {kKey, rooms.key},
                             {kValue, rooms.value},
                             {kQueryGradient, rooms.d_query},
                             {kKeyGradient, rooms.d_key},
                             {kValueGradient, rooms.d_value},
                             {kQueryTotal, rooms.total},
                             {kOne, &kFactorOne}});
    if (s.group() > 1) {
      same.insert(same.end(),
                  {{kEveryKeyGradient, rooms.every_key}, {kEveryValueGradient, rooms.every_value}});
    }
    const auto* packed = static_cast<const BFloat16*>(arrays.packed);
    auto* d_packed = static_cast<BFloat16*>(arrays.d_packed);
    for (std::int64_t kv_head = 0; kv_head < s.kv_heads; kv_head += p.slice.kv_heads) {
      const PackedColumns columns(s, kv_head);
      const auto take = [&](std::byte* to, std::int64_t cols, std::int64_t column) {
        copy_columns(to, cols, packed + column, problem.packed_stride, cols, s.tokens(), stream);
      };
      take(rooms.query, strides.query, columns.query);
      take(rooms.key, strides.key, columns.key);
      take(rooms.value, strides.key, columns.value);
      const std::int64_t head = kv_head * s.group();
      BoundArrays bound = same;
      bound.insert(bound.end(),
                   {{kOut, static_cast<const BFloat16*>(arrays.out) + head * s.head_dim},
                    {kOutGradient, static_cast<const BFloat16*>(arrays.d_out) + head * s.head_dim},
                    {kStatistics, arrays.statistics + head},
                    {kDelta, reinterpret_cast<const float*>(rooms.delta) + head}});
      p.backward.execute(handle, bound, rooms.engine);
      const auto give = [&](std::int64_t column, const std::byte* from, std::int64_t cols) {
        copy_columns(d_packed + column, problem.packed_stride, from, cols, cols, s.tokens(),
                     stream);
      };
      give(columns.query, rooms.d_query, strides.query);
      give(columns.key, rooms.d_key, strides.key);
      give(columns.value, rooms.d_value, strides.key);
    }
  }

 private:
  struct Plans {
    Plan forward, backward;
    DocumentSlice slice;
  };
  const Plans& plans(cudnnHandle_t handle, const AttentionProblem& problem) {
    const AttentionShape& s = problem.shape;
    const ProblemKey key = key_of(problem);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
    const Descriptor device = device_of(handle);
    const auto slice = document_slice(problem, device);
    if (!slice) {
      throw Error(
          fmt::format("has no engine on this GPU for packed documents and heads of {} whose "
                      "workspace for {} tokens is at most {} MiB",
                      s.head_dim, s.tokens(), problem.most_workspace_bytes >> 20),
          ExitCode::kFailed);
    }
    Plan backward(attention_backward_graph(slice_problem(problem, *slice),
                                           QueryGradient::kAccumulated, slice->strides(problem)),
                  device);
    Plan forward(attention_forward_graph(problem), device);
    SHARDWRIGHT_CHECK(backward.workspace_bytes() <= slice->engine_bytes,
                      "a plan needs {} bytes, its engine said {}", backward.workspace_bytes(),
                      slice->engine_bytes);
    return plans_.emplace(key, Plans{std::move(forward), std::move(backward), *slice})
        .first->second;
  }

  std::map<ProblemKey, Plans> plans_;
};

constexpr std::int64_t kVector = 8;  // bf16 numbers in 16 bytes, which cuDNN wants aligned

/// Where a slice of queries, keys and values begins in packed heads.
template <class T>
struct HeadPointers {
  T *q, *k, *v;

  HeadPointers(T* packed, const AttentionProblem& problem, std::int64_t sequence,
               std::int64_t kv_head) {
    const AttentionShape& s = problem.shape;
    T* base = packed + sequence * s.seq * problem.packed_stride;
    q = base + kv_head * s.group() * s.head_dim;
    k = base + (s.heads + kv_head) * s.head_dim;
    v = k + s.kv_heads * s.head_dim;
  }
};

const BFloat16* bf16(const void* data) {
  return static_cast<const BFloat16*>(data);
}

int compute_major() {
  int gpu = 0, major = 0;
  SHARDWRIGHT_CUDA(cudaGetDevice(&gpu));
  SHARDWRIGHT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu));
  return major;
}

/// Why cuDNN need not be asked about the problem.
std::string plain_refusal(const AttentionProblem& problem, QueryGradient form) {
  AttentionNeeds needs = needs_of(problem);
  // The rule that prices attention knows no documents by cuDNN, which it has on some GPUs.
  if (form == QueryGradient::kAccumulated) needs.documents = false;
  std::string reason = attention_refusal(AttentionForm::kCudnnOrdered, needs);
  if (!reason.empty()) return reason;
  if (problem.packed_stride % kVector != 0 || problem.out_stride % kVector != 0) {
    return fmt::format("takes rows aligned to 16 bytes, not strides of {} and {}",
                       problem.packed_stride, problem.out_stride);
  }
  if (!library_refusal().empty()) return library_refusal();
  const std::size_t version = cudnnGetVersion();
  if (problem.documents) return document_refusal(problem, compute_major(), version);
  return length_refusal(version, problem.shape.seq);
}

constexpr Bytes slope_offset(std::int64_t head) {
  return 4 * kSlopeStride * head;
}

Bytes slope_bytes(const AttentionShape& s) {
  return s.alibi ? aligned(slope_offset(s.heads)) : 0;
}

/// What scores fall by for each token between key and query, as kSlopes lies.
cuda::PinnedMemory slopes_of(const AttentionShape& s) {
  if (!s.alibi) return {};
  cuda::PinnedMemory memory = cuda::allocate_pinned(static_cast<std::size_t>(slope_bytes(s)));
  auto* const slopes = static_cast<float*>(memory.get());
  for (std::int64_t head = 0; head < s.heads; ++head) {
    slopes[kSlopeStride * head] =
        std::exp2(-8.0F * kernels::alibi_share(static_cast<int>(s.first_head + head),
                                               static_cast<int>(s.alibi_heads())));
  }
  return memory;
}

void send(const cuda::PinnedMemory& slopes, std::byte* to, Bytes bytes, cudaStream_t stream) {
  SHARDWRIGHT_CUDA(cudaMemcpyAsync(to, slopes.get(), static_cast<std::size_t>(bytes),
                                   cudaMemcpyHostToDevice, stream));
}

}  // namespace

AttentionProblem slice_problem(const AttentionProblem& problem, const BackwardSlice& slice) {
  AttentionProblem result = problem;
  result.shape.batch = slice.batch;
  result.shape.heads = slice.kv_heads * problem.shape.group();
  result.shape.kv_heads = slice.kv_heads;
  return result;
}

std::optional<BackwardSlice> backward_slice(const AttentionProblem& problem, QueryGradient form,
                                            const Descriptor& device) {
  const AttentionShape& s = problem.shape;
  const auto fits = [&](BackwardSlice slice) -> std::optional<BackwardSlice> {
    const AttentionProblem part = slice_problem(problem, slice);
    // Rows of statistics begin at multiples of 16 bytes in every slice.
    const bool whole = slice.batch == s.batch && slice.kv_heads == s.kv_heads;
    if (!whole && part.shape.heads * s.seq % 4 != 0) return {};
    Graph graph = attention_backward_graph(part, form);
    const auto configs = engines(graph.finish(), device, form == QueryGradient::kOrdered);
    if (configs.empty()) return {};
    const Bytes rows = part.shape.tokens() * part.shape.heads;
    slice.slope_bytes = slope_bytes(s);
    slice.delta_bytes = aligned(4 * rows);
    if (form == QueryGradient::kAccumulated) slice.total_bytes = aligned(4 * rows * s.head_dim);
    slice.engine_bytes = configs.front().get_int64(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE);
    return slice.bytes() <= problem.most_workspace_bytes ? std::optional(slice) : std::nullopt;
  };
  if (const auto all = fits({.batch = s.batch, .kv_heads = s.kv_heads})) return all;
  for (std::int64_t kv_heads = s.kv_heads; kv_heads >= 1; --kv_heads) {
    if (s.kv_heads % kv_heads != 0) continue;
    if (const auto some = fits({.batch = 1, .kv_heads = kv_heads})) return some;
  }
  return {};
}

namespace {

class CudnnAttention : public kernels::cuda::Attention {
 public:
  explicit CudnnAttention(QueryGradient form) : form_(form) {}
  ~CudnnAttention() override {
    plans_.clear();
    documents_ = DocumentAttention();
    if (handle_ != nullptr) cudnnDestroy(handle_);
  }

  std::string_view name() const override {
    return name_of(repeatable() ? AttentionForm::kCudnnOrdered : AttentionForm::kCudnn);
  }

  std::string library() const override { return library_name(); }
  bool repeatable() const override { return form_ == QueryGradient::kOrdered; }
  std::string refusal(const AttentionProblem& problem) override {
    if (std::string reason = plain_refusal(problem, form_); !reason.empty()) return reason;
    try {
      if (problem.documents) {
        documents_.prepare(handle(), problem);
      } else {
        plans(problem);
      }
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  }

  Bytes forward_workspace_bytes(const AttentionProblem& problem) override {
    if (problem.documents) return documents_.forward_workspace_bytes(handle(), problem);
    return slope_bytes(problem.shape) + plans(problem).forward.workspace_bytes();
  }

  Bytes backward_workspace_bytes(const AttentionProblem& problem) override {
    if (problem.documents) return documents_.backward_workspace_bytes(handle(), problem);
    return plans(problem).slice.bytes();
  }

  void forward(const AttentionProblem& problem, const AttentionForward& arrays,
               cudaStream_t stream) override {
    SHARDWRIGHT_CUDNN(cudnnSetStream(handle(), stream));
    if (problem.documents) return documents_.forward(handle(), problem, arrays, stream);
    const Plans& p = plans(problem);
    const HeadPointers heads(bf16(arrays.packed), problem, 0, 0);
    const ScoreNumbers numbers(problem);
    BoundArrays bound = {{kQuery, heads.q},
                         {kKey, heads.k},
                         {kValue, heads.v},
                         {kOut, arrays.out},
                         {kStatistics, arrays.statistics}};
    numbers.bind(bound);
    auto* const slopes = static_cast<std::byte*>(arrays.workspace);
    const Bytes slope_bytes = p.slice.slope_bytes;
    if (slope_bytes > 0) {
      send(p.slopes, slopes, slope_bytes, stream);
      bound.emplace_back(kSlopes, slopes);
    }
    p.forward.execute(handle(), bound, slopes + slope_bytes);
  }

  void backward(const AttentionProblem& problem, const AttentionBackward& arrays,
                cudaStream_t stream) override {
    SHARDWRIGHT_CUDNN(cudnnSetStream(handle(), stream));
    if (problem.documents) return documents_.backward(handle(), problem, arrays, stream);
    const Plans& p = plans(problem);
    const AttentionShape& s = problem.shape;
    const ScoreNumbers numbers(problem);
    auto* const slopes = static_cast<std::byte*>(arrays.workspace);
    std::byte* const delta = slopes + p.slice.slope_bytes;
    std::byte* const total = delta + p.slice.delta_bytes;
    if (s.alibi) send(p.slopes, slopes, p.slice.slope_bytes, stream);
    for (std::int64_t sequence = 0; sequence < s.batch; sequence += p.slice.batch) {
      for (std::int64_t kv_head = 0; kv_head < s.kv_heads; kv_head += p.slice.kv_heads) {
        const HeadPointers in(bf16(arrays.packed), problem, sequence, kv_head);
        const HeadPointers out(static_cast<BFloat16*>(arrays.d_packed), problem, sequence, kv_head);
        const std::int64_t head = kv_head * s.group();
        const std::int64_t row = sequence * s.seq * problem.out_stride + head * s.head_dim;
        BoundArrays bound = {{kQuery, in.q},
                             {kKey, in.k},
                             {kValue, in.v},
                             {kOut, bf16(arrays.out) + row},
                             {kOutGradient, bf16(arrays.d_out) + row},
                             {kStatistics, arrays.statistics + (sequence * s.heads + head) * s.seq},
                             {kQueryGradient, out.q},
                             {kKeyGradient, out.k},
                             {kValueGradient, out.v},
                             {kDelta, delta},
                             {kOne, &kFactorOne}};
        numbers.bind(bound);
        if (s.alibi) bound.emplace_back(kSlopes, slopes + slope_offset(head));
        if (!repeatable()) bound.emplace_back(kQueryTotal, total);
        p.backward.execute(handle(), bound, total + p.slice.total_bytes);
      }
    }
  }

 private:
  struct Plans {
    Plan forward, backward;
    BackwardSlice slice;
    cuda::PinnedMemory slopes;  // where scores fall by them; copied to the workspace by each pass
  };
  cudnnHandle_t handle() {
    if (handle_ == nullptr) SHARDWRIGHT_CUDNN(cudnnCreate(&handle_));
    return handle_;
  }

  const Plans& plans(const AttentionProblem& problem) {
    const AttentionShape& s = problem.shape;
    const ProblemKey key = key_of(problem);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
    const Descriptor device = device_of(handle());
    const auto slice = backward_slice(problem, form_, device);
    if (!slice) {
      throw Error(
          fmt::format("has no engine on this GPU for heads of {} whose workspace for one key "
                      "head of {} tokens is at most {} MiB",
                      s.head_dim, s.seq, problem.most_workspace_bytes >> 20),
          ExitCode::kFailed);
    }
    Plan backward(attention_backward_graph(slice_problem(problem, *slice), form_), device,
                  repeatable());
    Plan forward(attention_forward_graph(problem), device);
    Plans made{std::move(forward), std::move(backward), *slice, slopes_of(s)};
    SHARDWRIGHT_CHECK(made.backward.workspace_bytes() <= slice->engine_bytes,
                      "a plan needs {} bytes, its engine said {}", made.backward.workspace_bytes(),
                      slice->engine_bytes);
    return plans_.emplace(key, std::move(made)).first->second;
  }

  QueryGradient form_;
  cudnnHandle_t handle_ = nullptr;  // made at the first use: that needs a driver
  std::map<ProblemKey, Plans> plans_;
  DocumentAttention documents_;
};

}  // namespace

std::unique_ptr<kernels::cuda::Attention> make_attention(QueryGradient form) {
  return std::make_unique<CudnnAttention>(form);
}

}  // namespace shardwright::exec::cudnn
