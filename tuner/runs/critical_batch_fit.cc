// SPDX-License-Identifier: Apache-2.0
#include "tuner/runs/critical_batch_fit.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "profiles/operations.h"
#include "sim/core/base/error.h"
#include "sim/core/base/quantile.h"
#include "tuner/runs/critical_batch.h"

namespace shardwright::tuner {

profiles::CriticalBatch judge_batch_laws(std::vector<profiles::BatchLaw> laws,
                                         const std::vector<profiles::WholeRun>& runs) {
  const profiles::Operations constants = profiles::load_operations();
  for (profiles::BatchLaw& law : laws) {
    std::vector<double> shares;
    for (const profiles::WholeRun& run : runs) {
      if (!run.model || !run.global_batch_tokens || run.tokens <= 0) continue;
      shares.push_back(*run.global_batch_tokens /
                       critical_tokens(law, *run.model, run.tokens, constants));
    }
    if (shares.empty()) throw Error("no published training has a batch and an architecture");
    const auto n = static_cast<double>(shares.size());
    law.n = static_cast<std::int64_t>(shares.size());
    law.beyond = std::count_if(shares.begin(), shares.end(), [](double s) { return s > 1; });
    law.greatest_share = *std::max_element(shares.begin(), shares.end());
    law.median_share = quantile(shares, 0.5);
    const auto sum = [&](auto of) {
      return std::accumulate(shares.begin(), shares.end(), 0.0,
                             [&](double total, double share) { return total + of(share); });
    };
    const double mean = sum([](double share) { return std::log(share); }) / n;
    law.spread =
        std::sqrt(sum([&](double share) { return std::pow(std::log(share) - mean, 2); }) / n);
  }
  const auto key = [](const profiles::BatchLaw& law) {
    return std::make_tuple(law.beyond, law.spread);
  };
  profiles::CriticalBatch result;
  result.law = std::min_element(laws.begin(), laws.end(), [&](const auto& a, const auto& b) {
                 return key(a) < key(b);
               })->id;
  result.laws = std::move(laws);
  return result;
}

}  // namespace shardwright::tuner
