// SPDX-License-Identifier: Apache-2.0
// What a rank that has some columns of the logits tells the others of each row, so that every rank
// can compute the loss of the row: a softmax in parts.
//
// The parts of a row are merged in order: the largest maximum M, and the sum of
// exponents * e^(maximum - M). As parts are of the vocabulary and not of ranks, the loss has the
// same bits however parts are spread over ranks.
#pragma once

#include <cstdint>

namespace shardwright::kernels {

struct VocabularyPart {
  float maximum;    // of the part's logits
  float exponents;  // sum of e^(logit - maximum)
  float target;     // the target's logit, never -0; -0 where another part has it or it is ignored
};

/// The parts of all rows: part p of row r is data[p * stride + r].
struct VocabularyParts {
  const VocabularyPart* data = nullptr;
  std::int64_t count = 0;
  std::int64_t stride = 0;
};

/// The maximum of a part without numbers above it: finite, so that differences are numbers.
inline constexpr float kLowestMaximum = -3.0e38f;

}  // namespace shardwright::kernels
