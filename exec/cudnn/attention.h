// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN's fused engines, on sm_80 and later: the fastest there is on Hopper by
// published figures. Not yet run on a GPU; tests check that the engines take the graphs.
//
// Plans are built once per shape, at the first question about it. Packed documents have plans of
// their own (DocumentAttention), where sums may come in any order. The repeatable backward pass
// keeps a T x T matrix for each head in its workspace; to bound that, it runs some key heads after
// the others.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "exec/cudnn/graph.h"

namespace shardwright::exec::cudnn {

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

/// How many sequences and key heads one execution of the backward plan covers, and its parts of
/// the workspace in their order.
struct BackwardSlice {
  std::int64_t batch = 0;
  std::int64_t kv_heads = 0;
  Bytes slope_bytes = 0;  // of all heads
  Bytes delta_bytes = 0;
  Bytes total_bytes = 0;   // of kQueryTotal
  Bytes engine_bytes = 0;  // what the best engine says it needs

  Bytes bytes() const { return slope_bytes + delta_bytes + total_bytes + engine_bytes; }
};

/// The largest slice that needs no more workspace than the problem allows, empty when there is
/// none. Cheap: compiles nothing.
std::optional<BackwardSlice> backward_slice(const kernels::cuda::AttentionProblem& problem,
                                            QueryGradient form, const Descriptor& device);
/// The problem of one slice; heads stay where they are, by strides.
kernels::cuda::AttentionProblem slice_problem(const kernels::cuda::AttentionProblem& problem,
                                              const BackwardSlice& slice);

/// `cudnn` or, for kOrdered, `cudnn-ordered`.
std::unique_ptr<kernels::cuda::Attention> make_attention(QueryGradient form);

}  // namespace shardwright::exec::cudnn
