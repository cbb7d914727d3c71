// SPDX-License-Identifier: Apache-2.0
// Slices of weights: those of all ranks put together are the weight, for every model that ships and
// every tensor and expert parallelism that divides it.
#include "sim/core/local_shape.h"

#include <array>
#include <iterator>
#include <map>

#include "sim/core/hf/config.h"
#include "tests/core/common.h"

namespace shardwright {

namespace {

constexpr std::array<ModelUnit, 5> kUnits = {ModelUnit::kEmbedding, ModelUnit::kDenseLayer,
                                             ModelUnit::kMoeLayer, ModelUnit::kExperts,
                                             ModelUnit::kHead};

const std::filesystem::path kConfigs = SHARDWRIGHT_TEST_DATA "/../../profiles/data/models";

std::vector<Model> all_models() {
  std::vector<Model> models;
  for (const std::string& name : builtin_models(kConfigs))
    models.push_back(load_model(kConfigs, name));
  return models;
}

bool has(const Model& model, ModelUnit unit) {
  if (unit == ModelUnit::kMoeLayer || unit == ModelUnit::kExperts) return model.is_moe();
  return unit != ModelUnit::kDenseLayer || model.expert_layers() < model.layers;
}

std::int64_t elements_of(const Model& model, ModelUnit unit) {
  std::int64_t sum = 0;
  for (const WeightShape& weight : weights_of(model, unit)) sum += weight.elements();
  return sum;
}

/// Of all layers, each of its kind, and the last one.
std::int64_t norms_of(const Model& model, const ParameterCounts& counts) {
  std::int64_t sum = counts.final_norm;
  if (model.kinds.empty()) sum += model.layers * counts.layer_norms;
  for (const LayerKind kind : model.kinds) {
    for (const WeightShape& weight : weights_of(model, kind))
      sum += weight.is_norm ? weight.elements() : 0;
  }
  return sum;
}

TEST(LocalShapeTest, WeightsAreTheParametersThatAreCounted) {
  for (const Model& model : all_models()) {
    SCOPED_TRACE(model.name);
    const ParameterCounts counts = count_parameters(model);
    EXPECT_EQ(elements_of(model, ModelUnit::kEmbedding), counts.embedding + counts.positions);
    EXPECT_EQ(elements_of(model, ModelUnit::kDenseLayer), counts.layer());
    EXPECT_EQ(elements_of(model, ModelUnit::kHead), counts.head + counts.final_norm);
    EXPECT_EQ(elements_of(model, ModelUnit::kNorms), norms_of(model, counts));
    if (!model.is_moe()) continue;
    EXPECT_EQ(elements_of(model, ModelUnit::kMoeLayer), counts.expert_layer() - counts.experts);
    EXPECT_EQ(elements_of(model, ModelUnit::kExperts), counts.experts);
  }
}

using Rectangle = std::array<std::int64_t, 6>;  // experts, rows, columns: from, to

Rectangle held(const WeightShape& weight, const Parallelism& p, const RankPlace& place) {
  const WeightSlices slices = slices_of(weight, p, place);
  const auto range = [&](SliceAlong along, std::int64_t size) {
    const Slice& slice = along == SliceAlong::kExperts ? slices.experts : slices.each;
    return slice.along == along ? slice.of(size) : Slice::Range{0, size};
  };
  const Slice::Range e = range(SliceAlong::kExperts, weight.experts);
  const Slice::Range r = range(SliceAlong::kRows, weight.rows);
  const Slice::Range c = range(SliceAlong::kColumns, weight.columns);
  EXPECT_EQ(slices.elements(weight), e.size() * r.size() * c.size());
  return {e.begin, e.end, r.begin, r.end, c.begin, c.end};
}

bool overlap(const Rectangle& a, const Rectangle& b) {
  for (std::size_t i = 0; i < 6; i += 2) {
    if (a[i + 1] <= b[i] || b[i + 1] <= a[i]) return false;
  }
  return true;
}

/// Ranks hold equal parts or parts that have nothing in common, each as many ranks as another, and
/// the parts are the whole.
void expect_tiled(const WeightShape& weight, const Parallelism& p) {
  SCOPED_TRACE("weight " + std::to_string(static_cast<int>(weight.weight)));
  std::map<Rectangle, int> parts;
  const bool routed = weight.is_routed();
  for (std::int64_t outer = 0; outer < (routed ? p.ep : 1); ++outer) {
    for (std::int64_t inner = 0; inner < (routed ? p.etp : p.tp); ++inner) {
      RankPlace place;
      (routed ? place.etp : place.tp) = inner;
      place.ep = outer;
      ++parts[held(weight, p, place)];
    }
  }
  std::int64_t elements = 0;
  for (auto part = parts.begin(); part != parts.end(); ++part) {
    const Rectangle& r = part->first;
    elements += (r[1] - r[0]) * (r[3] - r[2]) * (r[5] - r[4]);
    ASSERT_EQ(part->second, parts.begin()->second);
    for (auto other = std::next(part); other != parts.end(); ++other) {
      ASSERT_FALSE(overlap(r, other->first));
    }
  }
  ASSERT_EQ(elements, weight.elements());
}

bool divides(const Model& model, const Parallelism& p) {
  Plan plan;
  plan.parallel = p;
  plan.seq_len = 8192;
  plan.gpus = p.tp * p.ep * p.etp;
  try {
    check_parallelism(plan, model);
  } catch (const Error&) {
    return false;
  }
  return true;
}

TEST(LocalShapeTest, SlicesOfAllRanksTileEveryWeight) {
  int layouts = 0;
  for (const Model& model : all_models()) {
    for (const std::int64_t tp : {1, 2, 3, 5, 8, 16, 64}) {
      for (const std::int64_t ep : {1, 2, 5, 8, 64}) {
        for (const std::int64_t etp : {1, 2, 4}) {
          Parallelism p;
          p.tp = tp;
          p.ep = ep;
          p.etp = etp;
          if (!divides(model, p)) continue;
          ++layouts;
          SCOPED_TRACE(model.name + " tp " + std::to_string(tp) + " ep " + std::to_string(ep) +
                       " etp " + std::to_string(etp));
          for (const ModelUnit unit : kUnits) {
            if (!has(model, unit)) continue;
            for (const WeightShape& weight : weights_of(model, unit))
              ASSERT_NO_FATAL_FAILURE(expect_tiled(weight, p));
          }
        }
      }
    }
  }
  EXPECT_GT(layouts, 250);
}

// The sizes of products are those of the slices.
TEST(LocalShapeTest, ShapesOfARankAreThoseOfItsSlices) {
  for (const Model& model : all_models()) {
    for (const std::int64_t tp : {1, 2, 4, 8, 16}) {
      Plan plan;
      plan.parallel.tp = tp;
      plan.parallel.ep = model.is_moe() ? 2 : 1;
      plan.gpus = tp * plan.parallel.ep;
      if (!divides(model, plan.parallel)) continue;
      SCOPED_TRACE(model.name + " tp " + std::to_string(tp));
      const RankShape shape = rank_shape(model, plan);
      std::map<Weight, std::int64_t> rows, columns, experts;
      for (const ModelUnit unit : kUnits) {
        if (!has(model, unit)) continue;
        for (const WeightShape& weight : weights_of(model, unit)) {
          if (!weight.is_matrix()) continue;
          const Rectangle r = held(weight, plan.parallel, {});
          experts[weight.weight] = r[1];
          rows[weight.weight] = r[3];
          columns[weight.weight] = r[5];
        }
      }
      EXPECT_EQ(rows[Weight::kEmbedding], shape.vocab);
      EXPECT_EQ(columns[Weight::kOutput], shape.attention_out_dim());
      if (model.latent.kv_rank == 0) {
        EXPECT_EQ(rows[Weight::kQuery], (model.attention_gate ? 2 : 1) * shape.q_dim());
        EXPECT_EQ(rows[Weight::kKey], shape.kv_dim());
      }
      if (has(model, ModelUnit::kDenseLayer)) {
        EXPECT_EQ(columns[Weight::kDown], shape.ffn);
      }
      if (!model.is_moe()) continue;
      EXPECT_EQ(experts[Weight::kExpertDown], shape.experts);
      EXPECT_EQ(columns[Weight::kExpertDown], shape.expert_ffn);
      EXPECT_EQ(columns[Weight::kSharedDown], shape.shared_ffn);
    }
  }
}

TEST(LocalShapeTest, TheLastRanksOfAVocabularyHaveFewerRows) {
  const Slice last{SliceAlong::kRows, 7, 8};
  EXPECT_EQ(last.of(50257).begin, 7 * 6283);
  EXPECT_EQ(last.of(50257).end, 50257);
  EXPECT_EQ((Slice{SliceAlong::kRows, 0, 8}).of(50257).size(), 6283);
}

TEST(LocalShapeTest, MoreTensorRanksThanKeyHeadsShareThem) {
  const Model model = load_model(kConfigs, "llama-3-70b");  // 8 key/value heads
  Parallelism p;
  p.tp = 16;
  for (const WeightShape& weight : weights_of(model, ModelUnit::kDenseLayer)) {
    if (weight.weight != Weight::kKey || weight.is_bias) continue;
    RankPlace place;
    place.tp = 5;
    EXPECT_EQ(slices_of(weight, p, place).each, (Slice{SliceAlong::kRows, 2, 8}));
  }
}

}  // namespace

// Units of a rank: what tensor and expert parallelism leave of a layer, and what they do not cut.

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

TEST(ModelUnitsTest, RoutedExpertsAreAUnitOfTheirOwn) {
  const Model model = named("mixtral-8x7b");
  const std::int64_t all = count_parameters(model).experts;
  EXPECT_EQ(units_of(model, 2, 4).elements(ModelUnit::kExperts), all / 4) << "tp does not cut them";
  EXPECT_EQ(units_of(model, 1, 4, 2).elements(ModelUnit::kExperts), all / 8);
}

TEST(ModelUnitsTest, NormsOfAllLayersMayBeAUnit) {
  const Model model = named("llama-3-8b");
  for (const std::int64_t tp : {1, 8})
    EXPECT_EQ(units_of(model, tp).elements(ModelUnit::kNorms), (2 * 32 + 1) * 4096);
}

}  // namespace

}  // namespace shardwright
