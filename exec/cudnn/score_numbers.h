// SPDX-License-Identifier: Apache-2.0
// What graphs of attention take from host memory while a plan runs.
#pragma once

#include <limits>
#include <utility>
#include <vector>

#include "exec/cudnn/attention_graph.h"
#include "sim/core/arena.h"

namespace shardwright::exec::cudnn {

using BoundArrays = std::vector<std::pair<Uid, const void*>>;

/// Of kOne, in the backward pass.
inline constexpr float kFactorOne = 1.0F;

/// Of parts of a workspace.
constexpr Bytes aligned(Bytes bytes) {
  return round_up(bytes, kArenaAlignment);
}

/// What scores are multiplied with and masked by.
struct ScoreNumbers {
  float scale, cap, inverse_cap;
  bool documents;

  explicit ScoreNumbers(const kernels::cuda::AttentionProblem& problem)
      : scale(static_cast<float>(problem.shape.scale)),
        cap(static_cast<float>(problem.shape.softcap)),
        inverse_cap(cap == 0 ? 0.0F : static_cast<float>(1 / problem.shape.softcap)),
        documents(problem.documents) {}
  void bind(BoundArrays& bound) const {
    static constexpr float kLowest = std::numeric_limits<float>::lowest();
    bound.emplace_back(kScale, &scale);
    bound.emplace_back(kMasked, &kLowest);
    if (documents) bound.emplace_back(kBeyond, &kLowest);
    if (cap == 0) return;
    bound.emplace_back(kCap, &cap);
    bound.emplace_back(kInverseCap, &inverse_cap);
  }
};

}  // namespace shardwright::exec::cudnn
