// SPDX-License-Identifier: Apache-2.0
// The attention implementations of this build, and which of them computes a problem.
//
// Unless one is wished for by name, the fastest that takes the problem is chosen: cudnn, flash,
// naive in this order. (By published figures; `shardwright measure` times them on a machine.) A
// wish that cannot be granted falls to the next in the order, and `why` says so in one sentence.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/attention.h"

namespace shardwright::exec::cuda {

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
  /// `wish` is a name or "auto". Throws Error when there is none of that name, listing the names,
  /// or when all refuse.
  AttentionChoice choose(const kernels::cuda::AttentionProblem& problem,
                         std::string_view wish = "auto");

 private:
  Implementations implementations_;
};

}  // namespace shardwright::exec::cuda
