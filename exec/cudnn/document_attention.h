// SPDX-License-Identifier: Apache-2.0
// Attention of packed documents by cuDNN: each document is an entry of the batch, begins where a
// list in device memory says and is as long as another says ("ragged" tensors), so the work is that
// of the documents' own triangles. Hopper and data-centre Blackwell only: elsewhere cuDNN keeps a
// matrix for every document, or has no engine.
//
// The lists are made of first keys by a kernel of one block before each pass; a plan serves any
// number of documents up to AttentionProblem::most_documents, the rest being empty. The forward
// pass reads packed heads. For the backward pass heads are copied out of the packed rows and their
// gradients back, some key heads after the others: cuDNN wants buffers of sums that are as long as
// rows are, so packed rows would take six times the room. Not yet run on a GPU.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>

#include "exec/cudnn/attention_graph.h"

namespace shardwright::exec::cudnn {

/// How many key heads one execution of the backward plan covers, and its workspace by parts.
struct DocumentSlice {
  std::int64_t kv_heads = 0;
  Bytes list_bytes = 0;   // offsets and lengths
  Bytes delta_bytes = 0;  // of all heads
  Bytes query_bytes = 0;  // of the slice's query heads in bf16, twice: and their gradients
  Bytes key_bytes = 0;    // of its key heads in bf16, four times: keys, values, and their gradients
  Bytes every_bytes = 0;  // of grouped heads, twice: gradients for every query head
  Bytes total_bytes = 0;  // of kQueryTotal
  Bytes engine_bytes = 0;

  Bytes bytes() const {
    return list_bytes + delta_bytes + 2 * query_bytes + 4 * key_bytes + 2 * every_bytes +
           total_bytes + engine_bytes;
  }
  /// Of the rows that the heads are copied to.
  RowStrides strides(const kernels::cuda::AttentionProblem& problem) const;
};

/// The largest slice that needs no more workspace than the problem allows. Cheap: compiles nothing.
std::optional<DocumentSlice> document_slice(const kernels::cuda::AttentionProblem& problem,
                                            const Descriptor& device);
kernels::cuda::AttentionProblem slice_problem(const kernels::cuda::AttentionProblem& problem,
                                              const DocumentSlice& slice);

/// Why documents are not served by a cuDNN of that version on a GPU of that compute capability, as
/// the end of a sentence; empty where they may be.
std::string document_refusal(const kernels::cuda::AttentionProblem& problem, int compute_major,
                             std::size_t version);

class DocumentAttention {
 public:
  /// Throws Error where no engine serves the problem.
  void prepare(cudnnHandle_t handle, const kernels::cuda::AttentionProblem& problem) {
    plans(handle, problem);
  }
  Bytes forward_workspace_bytes(cudnnHandle_t handle,
                                const kernels::cuda::AttentionProblem& problem);
  Bytes backward_workspace_bytes(cudnnHandle_t handle,
                                 const kernels::cuda::AttentionProblem& problem);
  void forward(cudnnHandle_t handle, const kernels::cuda::AttentionProblem& problem,
               const kernels::cuda::AttentionForward& arrays, cudaStream_t stream);
  void backward(cudnnHandle_t handle, const kernels::cuda::AttentionProblem& problem,
                const kernels::cuda::AttentionBackward& arrays, cudaStream_t stream);

 private:
  struct Plans {
    Plan forward, backward;
    DocumentSlice slice;
  };
  using Key = std::array<std::int64_t, 10>;

  const Plans& plans(cudnnHandle_t handle, const kernels::cuda::AttentionProblem& problem);

  std::map<Key, Plans> plans_;
};

}  // namespace shardwright::exec::cudnn
