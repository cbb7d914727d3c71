// SPDX-License-Identifier: Apache-2.0
#include "tuner/runs/critical_batch.h"

#include <algorithm>

#include "sim/core/base/portable_math.h"

namespace shardwright::tuner {

double expected_loss(const Model& model, double tokens, const profiles::Operations& constants) {
  const ParameterCounts counts = count_parameters(model);
  const std::int64_t of_layers =
      counts.all_layers > 0 ? counts.all_layers : model.layers * counts.layer();
  const auto parameters = static_cast<double>(of_layers + counts.final_norm);
  const double by_size = portable_pow(constants.parameters_c / parameters,
                                      constants.parameters_exponent / constants.tokens_exponent);
  return portable_pow(by_size + constants.tokens_c / tokens, constants.tokens_exponent);
}

double critical_tokens(const profiles::BatchLaw& law, const Model& model, double tokens,
                       const profiles::Operations& constants) {
  if (!law.by_loss) return law.coefficient * portable_pow(tokens, law.tokens_exponent);
  return constants.batch_c /
         portable_pow(expected_loss(model, tokens, constants), 1 / constants.batch_exponent);
}

double critical_tokens(const Model& model, double tokens, const profiles::Operations& constants) {
  return critical_tokens(profiles::load_critical_batch().chosen(), model, tokens, constants);
}

CriticalTokens critical_range(const profiles::CriticalBatch& fitted, const Model& model,
                              double tokens, const profiles::Operations& constants) {
  const profiles::BatchLaw& chosen = fitted.chosen();
  CriticalTokens result;
  result.middle = critical_tokens(chosen, model, tokens, constants);
  result.range = {result.middle, result.middle};
  result.published = chosen.greatest_share;
  result.words = chosen.words;
  for (const profiles::BatchLaw& law : fitted.laws) {
    if (law.id == chosen.id || law.beyond > 0) continue;
    const double other = critical_tokens(law, model, tokens, constants);
    result.range = {std::min(result.range[0], other), std::max(result.range[1], other)};
    result.words += "; " + law.words;
  }
  return result;
}

}  // namespace shardwright::tuner
