// SPDX-License-Identifier: Apache-2.0
// Causal grouped-query attention on CUDA: one interface, several implementations by name.
//
// `naive` spends a block on a query and serves every type and size: the oracle on the device.
// `flash` is FlashAttention-2 on the tensor cores of sm_80 and later, for bf16. `cudnn` lives in
// exec/cudnn, because kernels know no libraries; exec/cuda/attention.h chooses among what there is.
//
// Results are functions of the inputs alone, bit for bit, unless repeatable() says otherwise.
// Objects keep plans and are not for two threads at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/arguments.h"
#include "sim/core/attention_form.h"
#include "sim/core/plan.h"
#include "sim/core/units.h"

using cudaStream_t = struct CUstream_st*;

namespace shardwright::kernels::cuda {

/// All that a choice may depend on. Heads are packed as [tokens, H + 2 Hkv, D]: queries, keys,
/// values.
struct AttentionProblem {
  AttentionShape shape;
  DType dtype = DType::kBf16;      // of the heads, the output and their gradients
  std::int64_t packed_stride = 0;  // elements from token to token of the heads and their gradients
  std::int64_t out_stride = 0;     // of the output and its gradient
  bool documents = false;          // first_key may be other than 0
  /// At most so many documents lie in the micro-batch, one behind the other, and a token sees those
  /// of its own before it. 0: how many is not known, or first_key says something else.
  std::int64_t most_documents = 0;
  /// The most that the backward pass may have as workspace.
  Bytes most_workspace_bytes = Bytes{1} << 30;
};

/// What the rule for all forms reads of it; cuDNN says itself what it has no engine for.
inline AttentionNeeds needs_of(const AttentionProblem& problem) {
  return {.dtype = problem.dtype,
          .head_dim = problem.shape.head_dim,
          .plain_scores = problem.shape.has_plain_scores(),
          .documents = problem.documents};
}

struct AttentionForward {
  const void* packed = nullptr;
  /// Query t sees keys first_key[t] to t of its sequence. Null: all up to t; then
  /// AttentionProblem::documents is false.
  const std::int32_t* first_key = nullptr;
  void* out = nullptr;  // [tokens, H, D]
  /// Logarithms of the sums of exponentiated scores, [B, H, T]; of documents as the implementation
  /// keeps them.
  float* statistics = nullptr;
  void* workspace = nullptr;
};

struct AttentionBackward {
  const void* packed = nullptr;
  const std::int32_t* first_key = nullptr;
  const void* out = nullptr;
  const float* statistics = nullptr;
  const void* d_out = nullptr;
  void* d_packed = nullptr;  // overwritten
  void* workspace = nullptr;
};

class Attention {
 public:
  virtual ~Attention() = default;
  virtual std::string_view name() const = 0;
  /// Whose code it is, where that is another's: "cuDNN 9.19.0".
  virtual std::string library() const { return {}; }
  /// Whether equal inputs give equal bits.
  virtual bool repeatable() const { return true; }
  /// Why this one cannot compute the problem on the current device, as the end of a sentence that
  /// begins with its name ("takes bf16, not fp32"); empty when it can. May build plans, which
  /// takes up to a second: ask before the first step.
  virtual std::string refusal(const AttentionProblem& problem) = 0;
  /// The workspaces of a problem that is not refused, to be aligned to 256 bytes.
  virtual Bytes forward_workspace_bytes(const AttentionProblem& problem) = 0;
  virtual Bytes backward_workspace_bytes(const AttentionProblem& problem) = 0;
  /// Enqueue the work; they throw Error when the launch fails.
  virtual void forward(const AttentionProblem& problem, const AttentionForward& arrays,
                       cudaStream_t stream) = 0;
  virtual void backward(const AttentionProblem& problem, const AttentionBackward& arrays,
                        cudaStream_t stream) = 0;
};

std::unique_ptr<Attention> make_naive_attention();
std::unique_ptr<Attention> make_flash_attention();

// Where the documents of packed sequences begin, as libraries of attention want to be told.

inline constexpr int kMostDocumentStrides = 4;

/// Places in device memory, for up to `most` documents.
struct DocumentOffsets {
  std::int64_t most = 0;
  std::int32_t* lengths = nullptr;  // [most], in tokens; of those that are not there 0
  /// [most + 1] for each stride: the stride times the first token of a document, and of those that
  /// are not there, and behind the last, times the number of tokens.
  std::array<std::int64_t*, kMostDocumentStrides> offsets{};  // null: none is wanted
  std::array<std::int64_t, kMostDocumentStrides> strides{};
};

/// first_key[tokens]: the first token of its document, counted within its sequence of `seq` tokens.
/// Documents lie one behind the other and fill all sequences; of more than `most`, the first ones
/// are told.
void document_offsets(cudaStream_t stream, const std::int32_t* first_key, std::int64_t tokens,
                      std::int64_t seq, const DocumentOffsets& out);

}  // namespace shardwright::kernels::cuda
