// SPDX-License-Identifier: Apache-2.0
#include "tuner/runs/same_model.h"

#include <utility>

namespace shardwright::tuner {

std::vector<profiles::WholeRun> trainings_of(const Model& model,
                                             std::vector<profiles::WholeRun> runs) {
  std::erase_if(runs, [&](const profiles::WholeRun& run) {
    if (!run.not_scorable.empty() || !run.model) return true;
    const Model& other = *run.model;
    return other.layers != model.layers || other.hidden != model.hidden ||
           other.heads != model.heads || other.kv_heads != model.kv_heads ||
           other.ffn != model.ffn || other.vocab != model.vocab ||
           other.experts.count != model.experts.count ||
           other.experts.per_token != model.experts.per_token ||
           other.experts.ffn != model.experts.ffn;
  });
  return runs;
}

}  // namespace shardwright::tuner
