// SPDX-License-Identifier: Apache-2.0
#include "tests/oracle/cross_entropy.h"

#include <algorithm>
#include <cmath>

namespace shardwright::kernels::reference {

CrossEntropy cross_entropy(const std::vector<double>& raw, const std::vector<std::int32_t>& targets,
                           std::int32_t ignore_index, double grad_scale, double softcap) {
  std::vector<double> logits = raw;
  for (double& x : logits) {
    if (softcap > 0) x = softcap * std::tanh(x / softcap);
  }
  const std::size_t vocab = logits.size() / targets.size();
  CrossEntropy result;
  result.d_logits.assign(logits.size(), 0.0);
  for (std::size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] == ignore_index) continue;
    const double* x = logits.data() + row * vocab;
    const auto target = static_cast<std::size_t>(targets[row]);
    const double top = *std::max_element(x, x + vocab);
    double total = 0;
    for (std::size_t v = 0; v < vocab; ++v) total += std::exp(x[v] - top);
    result.sum += std::log(total) + top - x[target];
    ++result.count;
    for (std::size_t v = 0; v < vocab; ++v) {
      const double p = std::exp(x[v] - top) / total;
      const double share = softcap > 0 ? x[v] / softcap : 0;
      result.d_logits[row * vocab + v] =
          grad_scale * (p - (v == target ? 1.0 : 0.0)) * (1 - share * share);
    }
  }
  return result;
}

VocabularyPart vocabulary_part(const std::vector<double>& row, std::int32_t target,
                               std::int64_t first, std::int64_t count, double softcap) {
  const auto logit = [&](std::int64_t v) {
    const double x = row[static_cast<std::size_t>(v)];
    return softcap > 0 ? softcap * std::tanh(x / softcap) : x;
  };
  VocabularyPart part{.maximum = logit(first)};
  for (std::int64_t v = first; v < first + count; ++v) {
    part.maximum = std::max(part.maximum, logit(v));
  }
  for (std::int64_t v = first; v < first + count; ++v) {
    part.exponents += std::exp(logit(v) - part.maximum);
  }
  if (target >= first && target < first + count) part.target = logit(target);
  return part;
}

}  // namespace shardwright::kernels::reference
