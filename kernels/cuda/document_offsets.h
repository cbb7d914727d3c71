// SPDX-License-Identifier: Apache-2.0
// Where the documents of packed sequences begin, as libraries of attention want to be told: on
// CUDA.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/stream.h"

namespace shardwright::kernels::cuda {

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
