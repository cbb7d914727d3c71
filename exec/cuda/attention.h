// SPDX-License-Identifier: Apache-2.0
// The attention implementations of this build, and which of them computes a problem.
//
// Unless one is wished for by name, the fastest that takes the problem is chosen: cudnn, which adds
// the gradients of queries in any order, as PyTorch's and FlashAttention's own do; then
// cudnn-ordered, flash, naive. (By published figures; `shardwright measure` times them on a
// machine.) Where equal bits are asked for, only those that repeat are looked at. A wish that
// cannot be granted falls to the next in the order. Whatever is chosen, `why` says so in one
// sentence, and it is chosen before the first step: nobody learns afterwards that something slower
// ran.
#pragma once

#include <array>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/attention.h"

namespace shardwright::exec::cuda {

/// Plans of a library are for a number of documents, of which some may be empty: these numbers, so
/// that all are made before the first step, and no micro-batch runs through many empty ones. Beyond
/// the last (64 a sequence), attention that is told no number serves.
std::array<std::int64_t, 3> document_bounds(std::int64_t batch);
/// The least of them that is no less than `documents`; 0 where there is none, or it is not known.
std::int64_t document_bound(std::int64_t batch, std::int64_t documents);

struct AttentionPolicy {
  std::string_view wish = "auto";  // or a name
  bool deterministic = false;      // equal inputs must give equal bits
  /// What the forward pass may have as workspace; the backward pass's is the problem's.
  Bytes most_forward_bytes = std::numeric_limits<Bytes>::max();
};

struct AttentionChoice {
  kernels::cuda::Attention* implementation = nullptr;  // owned by the set
  std::string why;  // "attention by flash: cudnn cannot mask packed documents"
};

class AttentionSet {
 public:
  using Implementations = std::vector<std::unique_ptr<kernels::cuda::Attention>>;

  /// Every implementation of this build, the fastest first.
  AttentionSet();
  /// Of these, the fastest first and the last one refusing nothing: for tests.
  explicit AttentionSet(Implementations implementations);

  std::vector<std::string_view> names() const;
  /// Why some of them compute nothing on this machine or are not in this build, "cudnn has no
  /// engines: NVRTC cannot be loaded (...)"; empty where nothing is missing.
  static std::string lacks();
  /// Whether the one of that name gives equal bits for equal inputs.
  bool repeats(std::string_view name) const;
  /// Throws Error when there is none of the wished name, listing the names, or when all refuse.
  AttentionChoice choose(const kernels::cuda::AttentionProblem& problem,
                         const AttentionPolicy& policy = {});

 private:
  Implementations implementations_;
};

}  // namespace shardwright::exec::cuda
