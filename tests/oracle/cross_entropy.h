// SPDX-License-Identifier: Apache-2.0
// Oracle for softmax cross-entropy over whole rows of logits, in double.
#pragma once

#include <cstdint>
#include <vector>

namespace shardwright::kernels::reference {

struct CrossEntropy {
  double sum = 0;                // of -log softmax(logits)[target] over counted rows
  std::int64_t count = 0;        // rows whose target is not ignored
  std::vector<double> d_logits;  // of grad_scale * sum; zero rows where ignored
};

/// logits[n, vocab] and n targets. With a softcap logits are softcap * tanh(logit / softcap) first.
CrossEntropy cross_entropy(const std::vector<double>& logits,
                           const std::vector<std::int32_t>& targets, std::int32_t ignore_index,
                           double grad_scale, double softcap = 0);

struct VocabularyPart {
  double maximum = 0;
  double exponents = 0;  // sum of exp(logit - maximum)
  double target = 0;     // the target's logit; 0 where another part has it
};

/// Of `count` columns from `first` on of one row of logits.
VocabularyPart vocabulary_part(const std::vector<double>& row, std::int32_t target,
                               std::int64_t first, std::int64_t count, double softcap = 0);

}  // namespace shardwright::kernels::reference
