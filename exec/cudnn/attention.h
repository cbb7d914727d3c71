// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN's fused engines, on sm_80 and later: the fastest there is on Hopper by
// published figures. Not yet run on a GPU; tests check that the engines take the graphs.
//
// Plans are built once per shape, at the first question about it. Packed documents have plans of
// their own (document_attention.h), where sums may come in any order. The repeatable backward pass
// keeps a T x T matrix for each head in its workspace; to bound that, it runs some key heads after
// the others.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "exec/cuda/handles.h"
#include "exec/cudnn/attention_graph.h"
#include "exec/cudnn/document_attention.h"
#include "exec/cudnn/library.h"

namespace shardwright::exec::cudnn {

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

class CudnnAttention : public kernels::cuda::Attention {
 public:
  explicit CudnnAttention(QueryGradient form) : form_(form) {}
  ~CudnnAttention() override;

  std::string_view name() const override;
  std::string library() const override { return library_name(); }
  bool repeatable() const override { return form_ == QueryGradient::kOrdered; }
  std::string refusal(const kernels::cuda::AttentionProblem& problem) override;
  Bytes forward_workspace_bytes(const kernels::cuda::AttentionProblem& problem) override;
  Bytes backward_workspace_bytes(const kernels::cuda::AttentionProblem& problem) override;
  void forward(const kernels::cuda::AttentionProblem& problem,
               const kernels::cuda::AttentionForward& arrays, cudaStream_t stream) override;
  void backward(const kernels::cuda::AttentionProblem& problem,
                const kernels::cuda::AttentionBackward& arrays, cudaStream_t stream) override;

 private:
  struct Plans {
    Plan forward, backward;
    BackwardSlice slice;
    cuda::PinnedMemory slopes;  // where scores fall by them; copied to the workspace by each pass
  };
  using Key = std::array<std::int64_t, 10>;

  cudnnHandle_t handle();
  const Plans& plans(const kernels::cuda::AttentionProblem& problem);

  QueryGradient form_;
  cudnnHandle_t handle_ = nullptr;  // made at the first use: that needs a driver
  std::map<Key, Plans> plans_;
  DocumentAttention documents_;
};

/// `cudnn` or, for kOrdered, `cudnn-ordered`.
std::unique_ptr<kernels::cuda::Attention> make_attention(QueryGradient form);

}  // namespace shardwright::exec::cudnn
