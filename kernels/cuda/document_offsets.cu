// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention.h"
#include "kernels/cuda/launch.h"

namespace shardwright::kernels::cuda {
namespace {

constexpr int kOffsetThreads = 1024;

__device__ __forceinline__ bool begins(const std::int32_t* first_key, std::int64_t token,
                                       std::int64_t seq) {
  return first_key[token] == token % seq;
}

// One block: a thread counts the documents that begin among its tokens, a scan says how many began
// before, and it writes where they begin. A length is the distance to the next one.
__global__ void __launch_bounds__(kOffsetThreads)
    document_offsets_kernel(const std::int32_t* first_key, std::int64_t tokens, std::int64_t seq,
                            DocumentOffsets out) {
  __shared__ std::int32_t counts[kOffsetThreads];
  const auto thread = static_cast<int>(threadIdx.x);
  const std::int64_t share = (tokens + kOffsetThreads - 1) / kOffsetThreads;
  const std::int64_t begin = thread * share;
  const std::int64_t end = begin + share < tokens ? begin + share : tokens;
  std::int32_t count = 0;
  for (std::int64_t token = begin; token < end; ++token) count += begins(first_key, token, seq);
  counts[thread] = count;
  __syncthreads();
  for (int step = 1; step < kOffsetThreads; step *= 2) {
    const std::int32_t before = thread >= step ? counts[thread - step] : 0;
    __syncthreads();
    counts[thread] += before;
    __syncthreads();
  }
  const std::int64_t all = counts[kOffsetThreads - 1];
  const auto write = [&](std::int64_t document, std::int64_t token) {
    for (int i = 0; i < kMostDocumentStrides; ++i) {
      if (out.offsets[i] != nullptr) out.offsets[i][document] = token * out.strides[i];
    }
  };
  std::int64_t document = counts[thread] - count;
  std::int64_t open = -1;  // the document of this thread whose length is not known yet
  for (std::int64_t token = begin; token < end && document <= out.most; ++token) {
    if (!begins(first_key, token, seq)) continue;
    write(document, token);
    if (open >= 0) out.lengths[document - 1] = static_cast<std::int32_t>(token - open);
    open = token;
    ++document;
  }
  // The last one of a thread ends where a later thread's first begins.
  if (open >= 0 && document <= out.most) {
    std::int64_t next = end;
    while (next < tokens && !begins(first_key, next, seq)) ++next;
    out.lengths[document - 1] = static_cast<std::int32_t>(next - open);
  }
  for (std::int64_t absent = all + thread; absent <= out.most; absent += kOffsetThreads) {
    write(absent, tokens);
    if (absent < out.most) out.lengths[absent] = 0;
  }
}

}  // namespace

void document_offsets(cudaStream_t stream, const std::int32_t* first_key, std::int64_t tokens,
                      std::int64_t seq, const DocumentOffsets& out) {
  launch(document_offsets_kernel, {1, kOffsetThreads}, stream, first_key, tokens, seq, out);
}

}  // namespace shardwright::kernels::cuda
