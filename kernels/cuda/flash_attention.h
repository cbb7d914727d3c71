// SPDX-License-Identifier: Apache-2.0
// FlashAttention-2 on tensor cores (Dao 2023, arXiv:2307.08691): launchers. What the kernels share
// is told in mma.h, which shapes they take in flash_attention.cc.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention.h"

namespace shardwright::kernels::cuda {

/// A problem as kernels see it.
struct FlashShape {
  int seq = 0;
  int heads = 0;
  int kv_heads = 0;
  int group = 0;  // query heads of a key head
  int packed_stride = 0;
  int out_stride = 0;
  float scale = 1.0f;
};

/// How many queries stand behind one entry of the spans.
inline constexpr int kFlashSpanQueries = 32;

/// What the backward pass keeps in its workspace.
struct FlashWorkspace {
  float* delta = nullptr;  // [B, H, T]: sums over D of out times its gradient
  int2* spans = nullptr;   // [B, ceil(T / 32)]: least and greatest first_key of 32 queries
};
Bytes flash_workspace_bytes(const AttentionShape& shape);
FlashWorkspace flash_workspace(const AttentionShape& shape, void* base);

void flash_forward(const AttentionProblem& problem, const AttentionForward& arrays,
                   cudaStream_t stream);
void flash_backward(const AttentionProblem& problem, const AttentionBackward& arrays,
                    cudaStream_t stream);

}  // namespace shardwright::kernels::cuda
