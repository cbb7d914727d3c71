// SPDX-License-Identifier: Apache-2.0
#include "exec/cudnn/attention.h"

#include <fmt/core.h>

#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "exec/cuda/handles.h"
#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "sim/core/arena.h"
#include "sim/core/base/error.h"

namespace shardwright::exec::cudnn {

namespace {

using kernels::AttentionShape;
using kernels::BFloat16;
using kernels::cuda::AttentionBackward;
using kernels::cuda::AttentionForward;
using kernels::cuda::AttentionProblem;

/// What plans depend on.
auto key_of(const AttentionProblem& problem) {
  const AttentionShape& s = problem.shape;
  return std::tuple(s.batch, s.seq, s.heads, s.kv_heads, s.head_dim, s.scale, s.softcap, s.alibi,
                    problem.packed_stride, problem.out_stride, problem.most_workspace_bytes,
                    problem.documents ? problem.most_documents : 0);
}

/// Four lists of where documents begin and one of their lengths, or slopes.
Bytes list_bytes(const AttentionProblem& problem) {
  if (problem.documents) return 5 * round_up(8 * (problem.most_documents + 1), kArenaAlignment);
  return problem.shape.alibi ? round_up(4 * kSlopeStride * problem.shape.heads, kArenaAlignment)
                             : 0;
}

/// What scores fall by for each token between key and query, as kSlopes lies.
cuda::PinnedMemory slopes_of(const AttentionProblem& problem) {
  const AttentionShape& s = problem.shape;
  if (!s.alibi) return {};
  cuda::PinnedMemory memory = cuda::allocate_pinned(static_cast<std::size_t>(list_bytes(problem)));
  for (std::int64_t head = 0; head < s.heads; ++head) {
    const float share = kernels::alibi_share(static_cast<int>(s.first_head + head),
                                             static_cast<int>(s.alibi_heads()));
    static_cast<float*>(memory.get())[kSlopeStride * head] = std::exp2(-8.0F * share);
  }
  return memory;
}

/// Makes the lists in the workspace.
Arrays make_lists(const AttentionProblem& problem, const RowStrides& strides,
                  const cuda::PinnedMemory& slopes, const std::int32_t* first_key, void* workspace,
                  cudaStream_t stream) {
  if (slopes != nullptr) {
    const auto bytes = static_cast<std::size_t>(list_bytes(problem));
    SHARDWRIGHT_CUDA(
        cudaMemcpyAsync(workspace, slopes.get(), bytes, cudaMemcpyHostToDevice, stream));
    return {{kSlopes, workspace}};
  }
  if (!problem.documents) return {};
  Arrays lists;
  kernels::cuda::DocumentOffsets out{.most = problem.most_documents, .strides = strides};
  for (std::int64_t i = 0; i < 5; ++i) {
    void* const list = static_cast<std::byte*>(workspace) + i * list_bytes(problem) / 5;
    lists[kBegins + i] = list;
    if (i < 4) out.offsets[static_cast<std::size_t>(i)] = static_cast<std::int64_t*>(list);
  }
  out.lengths = static_cast<std::int32_t*>(lists[kLengths]);
  const AttentionShape& s = problem.shape;
  kernels::cuda::document_offsets(stream, first_key, s.tokens(), s.seq, out);
  return lists;
}

/// The front end takes what it only reads as it takes what it writes.
BFloat16* elements(const void* data, std::int64_t offset) {
  return const_cast<BFloat16*>(static_cast<const BFloat16*>(data)) + offset;
}

/// Columns of bf16 rows, from rows of one length to rows of another.
void copy_columns(void* to, std::int64_t to_stride, const void* from, std::int64_t from_stride,
                  std::int64_t cols, std::int64_t rows, cudaStream_t stream) {
  const auto bytes = [](std::int64_t count) {
    return sizeof(BFloat16) * static_cast<std::size_t>(count);
  };
  SHARDWRIGHT_CUDA(cudaMemcpy2DAsync(to, bytes(to_stride), from, bytes(from_stride), bytes(cols),
                                     static_cast<std::size_t>(rows), cudaMemcpyDeviceToDevice,
                                     stream));
}

/// Rows as they are or, of documents, as they are copied for one slice.
RowStrides slice_strides(const AttentionProblem& problem, const BackwardSlice& slice) {
  if (!problem.documents) return row_strides(problem);
  const std::int64_t key = slice.kv_heads * problem.shape.head_dim;
  return {problem.shape.group() * key, key, problem.out_stride, problem.shape.heads};
}

Bytes copied_bytes(const AttentionProblem& problem, std::int64_t cols) {
  return round_up(2 * problem.shape.tokens() * cols, kArenaAlignment);
}

class CudnnAttention : public kernels::cuda::Attention {
 public:
  explicit CudnnAttention(QueryGradient form) : form_(form) {}

  std::string_view name() const override {
    return name_of(repeatable() ? AttentionForm::kCudnnOrdered : AttentionForm::kCudnn);
  }
  std::string library() const override { return library_name(); }
  bool repeatable() const override { return form_ == QueryGradient::kOrdered; }
  std::string refusal(const AttentionProblem& problem) override {
    AttentionNeeds needs = needs_of(problem);
    // The rule that prices attention knows no documents by cuDNN, which it has on some GPUs.
    if (!repeatable()) needs.documents = false;
    std::string reason = attention_refusal(AttentionForm::kCudnnOrdered, needs);
    if (!reason.empty()) return reason;
    if (problem.documents && problem.most_documents == 0) {
      return "cannot mask packed documents of which there are more than 64 a sequence";
    }
    if (problem.documents && problem.shape.alibi) return "takes packed documents without slopes";
    if (!library_refusal().empty()) return library_refusal();
    try {
      plans(problem);
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  }
  Bytes forward_workspace_bytes(const AttentionProblem& problem) override {
    return list_bytes(problem) + plans(problem).forward.workspace_bytes();
  }
  Bytes backward_workspace_bytes(const AttentionProblem& problem) override {
    return plans(problem).slice.bytes();
  }

  void forward(const AttentionProblem& problem, const AttentionForward& arrays,
               cudaStream_t stream) override {
    const Plans& p = plans(problem);
    const AttentionShape& s = problem.shape;
    Arrays bound = make_lists(problem, row_strides(problem), p.slopes, arrays.first_key,
                              arrays.workspace, stream);
    bound[kQuery] = elements(arrays.packed, 0);
    bound[kKey] = elements(arrays.packed, s.heads * s.head_dim);
    bound[kValue] = elements(arrays.packed, (s.heads + s.kv_heads) * s.head_dim);
    bound[kOut] = arrays.out;
    bound[kStatistics] = arrays.statistics;
    auto* const room = static_cast<std::byte*>(arrays.workspace) + list_bytes(problem);
    p.forward.execute(handle_.get(), bound, room, stream);
  }

  void backward(const AttentionProblem& problem, const AttentionBackward& arrays,
                cudaStream_t stream) override {
    const Plans& p = plans(problem);
    const AttentionShape& s = problem.shape;
    const std::int64_t d = s.head_dim, stride = problem.packed_stride;
    Arrays bound = make_lists(problem, slice_strides(problem, p.slice), p.slopes, arrays.first_key,
                              arrays.workspace, stream);
    for (std::int64_t token = 0; token < s.tokens(); token += p.slice.batch * s.seq) {
      for (std::int64_t kv_head = 0; kv_head < s.kv_heads; kv_head += p.slice.kv_heads) {
        const std::int64_t head = kv_head * s.group(), cols = p.slice.kv_heads * d;
        const std::int64_t row = problem.documents ? head : token * s.heads + head * s.seq;
        if (s.alibi) bound[kSlopes] = static_cast<float*>(arrays.workspace) + kSlopeStride * head;
        bound[kOut] = elements(arrays.out, token * problem.out_stride + head * d);
        bound[kOutGradient] = elements(arrays.d_out, token * problem.out_stride + head * d);
        bound[kStatistics] = const_cast<float*>(arrays.statistics) + row;
        const std::int64_t parts[][4] = {
            {kQuery, kQueryGradient, head * d, s.group() * cols},
            {kKey, kKeyGradient, (s.heads + kv_head) * d, cols},
            {kValue, kValueGradient, (s.heads + s.kv_heads + kv_head) * d, cols}};
        auto* at = static_cast<std::byte*>(arrays.workspace) + p.slice.list_bytes;
        for (const auto& [array, gradient, column, width] : parts) {
          bound[array] = elements(arrays.packed, token * stride + column);
          bound[gradient] = elements(arrays.d_packed, token * stride + column);
          if (!problem.documents) continue;
          void* const copy = std::exchange(at, at + copied_bytes(problem, width));
          copy_columns(copy, width, bound[array], stride, width, s.tokens(), stream);
          bound[array] = copy;
          bound[gradient] = std::exchange(at, at + copied_bytes(problem, width));
        }
        p.backward.execute(handle_.get(), bound, at, stream);
        if (!problem.documents) continue;
        for (const auto& [array, gradient, column, width] : parts) {
          copy_columns(elements(arrays.d_packed, column), stride, bound[gradient], width, width,
                       s.tokens(), stream);
        }
      }
    }
  }

 private:
  struct Plans {
    AttentionGraph forward, backward;
    BackwardSlice slice;
    cuda::PinnedMemory slopes;  // where scores fall by them; copied to the workspace by each pass
  };
  const Plans& plans(const AttentionProblem& problem) {
    const auto key = key_of(problem);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
    if (handle_ == nullptr) handle_ = make_handle();
    const Gpu gpu{.handle = handle_.get()};
    const BackwardSlice slice = backward_slice(problem, form_, gpu);
    Plans made{{problem, row_strides(problem), gpu},
               backward_graph(problem, slice, form_, gpu),
               slice,
               slopes_of(problem)};
    made.backward.compile();
    made.forward.compile();
    return plans_.emplace(key, std::move(made)).first->second;
  }

  QueryGradient form_;
  std::shared_ptr<cudnnContext> handle_;  // made at the first use: that needs a driver
  std::map<decltype(key_of({})), Plans> plans_;
};

}  // namespace

AttentionGraph backward_graph(const AttentionProblem& problem, const BackwardSlice& slice,
                              QueryGradient form, const Gpu& gpu) {
  AttentionProblem part = problem;
  part.shape.batch = slice.batch;
  part.shape.heads = slice.kv_heads * problem.shape.group();
  part.shape.kv_heads = slice.kv_heads;
  return {part, slice_strides(problem, slice), gpu, form};
}

BackwardSlice backward_slice(const AttentionProblem& problem, QueryGradient form, const Gpu& gpu) {
  const AttentionShape& s = problem.shape;
  std::string why;
  const auto fits = [&](BackwardSlice& slice) {
    // Rows of statistics begin at multiples of 16 bytes in every slice, and so does what engines
    // keep behind the sums of each row.
    const bool is_whole = slice.batch == s.batch && slice.kv_heads == s.kv_heads;
    const std::int64_t rows = problem.documents && !is_whole ? 1 : slice.batch * s.seq;
    if (slice.kv_heads * s.group() * rows % 4 != 0) return false;
    slice.list_bytes = list_bytes(problem);
    if (problem.documents) {
      const std::int64_t cols = slice.kv_heads * s.head_dim;
      slice.copy_bytes =
          2 * copied_bytes(problem, s.group() * cols) + 4 * copied_bytes(problem, cols);
    }
    if (slice.bytes() > problem.most_workspace_bytes) return false;
    try {
      slice.graph_bytes = backward_graph(problem, slice, form, gpu).workspace_bytes();
    } catch (const Error& error) {
      why = fmt::format(": {}", error.what());
      return false;
    }
    return slice.bytes() <= problem.most_workspace_bytes;
  };
  BackwardSlice slice{.batch = s.batch, .kv_heads = s.kv_heads};
  if (fits(slice)) return slice;
  for (std::int64_t kv_heads = s.kv_heads; kv_heads >= 1; --kv_heads) {
    slice = {.batch = problem.documents ? s.batch : 1, .kv_heads = kv_heads};
    if (s.kv_heads % kv_heads == 0 && fits(slice)) return slice;
  }
  constexpr const char* kWords =
      "has no engine on this GPU for heads of {} whose workspace for {} tokens is at most {} MiB{}";
  throw Error(fmt::format(kWords, s.head_dim, s.seq, problem.most_workspace_bytes >> 20, why),
              ExitCode::kFailed);
}

std::unique_ptr<kernels::cuda::Attention> make_attention(QueryGradient form) {
  return std::make_unique<CudnnAttention>(form);
}

}  // namespace shardwright::exec::cudnn
