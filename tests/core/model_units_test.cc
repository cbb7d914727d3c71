// SPDX-License-Identifier: Apache-2.0
// Units of a rank: what tensor and expert parallelism leave of a layer, and what they do not cut.
#include "sim/core/model_units.h"

#include <gtest/gtest.h>

#include "sim/core/hf/config.h"

namespace shardwright {
namespace {

Model named(const char* name) {
  return load_model(SHARDWRIGHT_TEST_DATA "/../../profiles/data/models", name);
}

ModelUnits units_of(const Model& model, std::int64_t tp, std::int64_t ep = 1,
                    std::int64_t etp = 1) {
  Parallelism p;
  p.tp = tp;
  p.ep = ep;
  p.etp = etp;
  return {model, p};
}

TEST(ModelUnitsTest, OneRankHoldsTheModel) {
  for (const char* name : {"llama-3-70b", "gpt2", "deepseek-v3", "gpt-oss-20b", "mixtral-8x7b"}) {
    SCOPED_TRACE(name);
    const Model model = named(name);
    const ModelUnits units = units_of(model, 1);
    const auto held = [&](ModelUnit unit) { return units.elements(unit); };
    const std::int64_t moe_layers = model.expert_layers();
    EXPECT_EQ(held(ModelUnit::kEmbedding) + held(ModelUnit::kHead) +
                  (model.layers - moe_layers) * held(ModelUnit::kDenseLayer) +
                  moe_layers * (held(ModelUnit::kMoeLayer) + held(ModelUnit::kExperts)),
              count_parameters(model).total(model.layers));
  }
}

// Norms, and of DeepSeek-V3 routers and the products down to latent vectors, are on every tensor
// rank; everything else of a layer is divided.
TEST(ModelUnitsTest, TensorRanksRepeatWhatTheyDoNotDivide) {
  const std::int64_t tp = 8;
  const Model llama = named("llama-3-70b");
  EXPECT_EQ(tp * units_of(llama, tp).elements(ModelUnit::kDenseLayer),
            count_parameters(llama).layer() + (tp - 1) * 2 * llama.hidden);
  const Model deepseek = named("deepseek-v3");
  const ParameterCounts counts = count_parameters(deepseek);
  const LatentAttention& l = deepseek.latent;
  const std::int64_t down = deepseek.hidden * (l.q_rank + l.kv_rank + l.rope_dim);
  EXPECT_EQ(tp * units_of(deepseek, tp).elements(ModelUnit::kMoeLayer),
            counts.expert_layer() - counts.experts +
                (tp - 1) * (counts.layer_norms + counts.router + down));
}

TEST(ModelUnitsTest, RoutedExpertsAreAUnitWithAGroupOfItsOwn) {
  const Model model = named("mixtral-8x7b");
  const std::int64_t all = count_parameters(model).experts;
  EXPECT_EQ(units_of(model, 2, 4).elements(ModelUnit::kExperts), all / 4) << "tp does not cut them";
  EXPECT_EQ(units_of(model, 1, 4, 2).elements(ModelUnit::kExperts), all / 8);
  EXPECT_EQ(sharded_over(ModelUnit::kExperts), CommGroup::kExpertData);
  EXPECT_EQ(sharded_over(ModelUnit::kMoeLayer), CommGroup::kShard);
}

TEST(ModelUnitsTest, NormsOfAllLayersMayBeAUnit) {
  const Model model = named("llama-3-8b");
  for (const std::int64_t tp : {1, 8})
    EXPECT_EQ(units_of(model, tp).elements(ModelUnit::kNorms), (2 * 32 + 1) * 4096);
}

}  // namespace
}  // namespace shardwright
