// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN's fused engines, on sm_80 and later, with NVIDIA's cudnn-frontend, whose own
// guards say which releases and GPUs take what. Not yet run on a GPU.
//
// Some engines of the backward pass keep a T x T matrix for each head; to bound that, it runs some
// key heads after the others. Each of packed documents is an entry of the batch, begins where a
// list says and is as long as another says ("ragged" tensors); of as many as a plan serves the rest
// is empty. For the backward pass their heads are copied out of the packed rows and the gradients
// back: buffers of sums are as long as rows are, which would be six times the room.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "kernels/cuda/attention.h"
#include "sim/core/units.h"

namespace shardwright::exec::cudnn {

/// Why the cuDNN that the loader found cannot serve attention at all, as the end of a sentence that
/// begins with "cudnn"; empty when it can. Without NVRTC it has no engine and does not say why.
const std::string& library_refusal();
/// "cuDNN 9.19.0"
std::string library_name();

/// Of the current device; throws Error where there is none.
std::shared_ptr<cudnnContext> make_handle();

/// What a graph reads and writes in device memory.
using Arrays = std::unordered_map<std::int64_t, void*>;
inline constexpr std::int64_t kQuery = 1, kKey = 2, kValue = 3, kOut = 4, kStatistics = 5,
                              kOutGradient = 6, kQueryGradient = 7, kKeyGradient = 8,
                              kValueGradient = 9;
/// Of packed documents, where they begin by each of RowStrides, and how long they are.
inline constexpr std::int64_t kBegins = 10, kLengths = 14;
/// fp32, one for each head, 16 bytes apart, so that every slice begins aligned.
inline constexpr std::int64_t kSlopes = 15, kSlopeStride = 4;

/// Elements from token to token: of query heads, of key and value heads, each as their gradients;
/// of the output and its gradient; of documents' statistics, which lie [tokens, H].
using RowStrides = std::array<std::int64_t, kernels::cuda::kMostDocumentStrides>;
/// Of packed heads.
inline RowStrides row_strides(const kernels::cuda::AttentionProblem& problem) {
  return {problem.packed_stride, problem.packed_stride, problem.out_stride, problem.shape.heads};
}

/// How dQ comes together from the blocks of keys.
enum class QueryGradient {
  kOrdered,     // the same bits every time
  kAccumulated  // added in fp32 by whoever comes first: memory linear in T, other bits every time
};

/// The device of a handle or, without one, one in words (tests/data/cudnn): with these, everything
/// up to the loading of the compiled kernels works on a machine without a GPU.
struct Gpu {
  cudnnHandle_t handle = nullptr;
  std::string json{};
  int compute_capability = 0;  // 90: 9.0
};

class AttentionGraph {
 public:
  /// Backward where it is told the form. Compiles nothing; throws Error where there is no engine.
  AttentionGraph(const kernels::cuda::AttentionProblem& problem, const RowStrides& strides,
                 const Gpu& gpu, std::optional<QueryGradient> form = {});

  /// Of the best engine, by cuDNN's own judgement.
  Bytes workspace_bytes() const { return workspace_bytes_; }
  /// Its name, which begins with "eng" and its number.
  std::string engine() const;
  /// Throws Error where no engine compiles or the one that does needs more workspace.
  void compile();
  void execute(cudnnHandle_t handle, Arrays arrays, void* workspace, cudaStream_t stream) const;

 private:
  struct Graph;
  std::shared_ptr<Graph> graph_;
  Bytes workspace_bytes_ = 0;
};

/// How many sequences and key heads one execution of the backward graph covers, and its workspace
/// by parts in their order.
struct BackwardSlice {
  std::int64_t batch = 0, kv_heads = 0;
  Bytes list_bytes = 0;  // slopes, or offsets and lengths of documents
  Bytes copy_bytes = 0;  // of documents: queries, keys and values in bf16, and their gradients
  Bytes graph_bytes = 0;
  Bytes bytes() const { return list_bytes + copy_bytes + graph_bytes; }
};
/// The largest that needs no more workspace than the problem allows; throws Error where none does.
BackwardSlice backward_slice(const kernels::cuda::AttentionProblem& problem, QueryGradient form,
                             const Gpu& gpu);
AttentionGraph backward_graph(const kernels::cuda::AttentionProblem& problem,
                              const BackwardSlice& slice, QueryGradient form, const Gpu& gpu);

/// `cudnn` or, for kOrdered, `cudnn-ordered`.
std::unique_ptr<kernels::cuda::Attention> make_attention(QueryGradient form);

}  // namespace shardwright::exec::cudnn
