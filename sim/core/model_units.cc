// SPDX-License-Identifier: Apache-2.0
#include "sim/core/model_units.h"

namespace shardwright {

ModelUnits::ModelUnits(const Model& model, const Parallelism& parallel) {
  const auto count = [&](ModelUnit unit) {
    std::int64_t norms = 0;
    for (const WeightShape& weight : weights_of(model, unit)) {
      const std::int64_t held = slices_of(weight, parallel).elements(weight);
      elements_[static_cast<std::size_t>(unit)] += held;
      if (weight.is_norm) norms += held;
      if (weight.weight == Weight::kEmbedding) vocabulary_ = held;
    }
    return norms;
  };
  count(ModelUnit::kEmbedding);
  const std::int64_t norms_of_layer = count(ModelUnit::kDenseLayer);
  if (model.is_moe()) {
    count(ModelUnit::kMoeLayer);
    count(ModelUnit::kExperts);
  }
  const std::int64_t last_norm = count(ModelUnit::kHead);
  if (model.kinds.empty()) {
    elements_[static_cast<std::size_t>(ModelUnit::kNorms)] =
        model.layers * norms_of_layer + last_norm;
  } else {
    count(ModelUnit::kNorms);
  }
  prediction_projection_ = 2 * model.hidden * model.hidden;
}

}  // namespace shardwright
