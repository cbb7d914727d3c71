// SPDX-License-Identifier: Apache-2.0
#include "tuner/critical_batch.h"

#include "sim/core/portable_math.h"

namespace shardwright::tuner {

double expected_loss(const Model& model, double tokens, const profiles::Operations& constants) {
  const ParameterCounts counts = count_parameters(model);
  const auto parameters = static_cast<double>(model.layers * counts.layer() + counts.final_norm);
  const double by_size = portable_pow(constants.parameters_c / parameters,
                                      constants.parameters_exponent / constants.tokens_exponent);
  return portable_pow(by_size + constants.tokens_c / tokens, constants.tokens_exponent);
}

double critical_tokens(const Model& model, double tokens, const profiles::Operations& constants) {
  return constants.batch_c /
         portable_pow(expected_loss(model, tokens, constants), 1 / constants.batch_exponent);
}

}  // namespace shardwright::tuner
