// SPDX-License-Identifier: Apache-2.0
// How many parameters the units of a chunk have, as a strategy lays them out, and which are
// trained.
#include <algorithm>

#include "sim/core/model_units.h"
#include "sim/program/adapters.h"
#include "sim/strategies/step_writer.h"

namespace shardwright::sim {

namespace {

/// What a rank of the mesh holds of a unit, as a strategy lays it out over `ranks`.
std::int64_t unit_elements(const std::vector<WeightShape>& weights, bool is_layer,
                           const Parallelism& parallel, const UnitLayout& layout,
                           std::int64_t ranks) {
  std::int64_t elements = 0, rest = 0;
  for (const WeightShape& weight : weights) {
    if (weight.is_norm && layout.separates_norms) continue;
    const WeightSlices slices = slices_of(weight, parallel);
    const std::int64_t held = slices.elements(weight);
    const bool pads = layout.pads_rows && weight.is_matrix() && weight.weight != Weight::kPositions;
    if (!pads) {
      rest += held;
      continue;
    }
    const std::int64_t columns = slices.each.along == SliceAlong::kColumns
                                     ? slices.each.of(weight.columns).size()
                                     : weight.columns;
    elements += round_up(held / columns, ranks) * columns;
  }
  // Norms and biases of a layer are padded together.
  return elements + (layout.pads_rows && is_layer ? round_up(rest, ranks) : rest);
}

}  // namespace

void StepWriter::set_layout(const UnitLayout& layout) {
  layout_ = layout;
  const std::int64_t n = schedule_.shard_ranks();
  const auto pad = [n](std::int64_t elements) { return elements == 0 ? 0 : round_up(elements, n); };
  const auto elements = [&](ModelUnit unit) {
    return unit_elements(weights_of(model_, unit), false, plan_.parallel, layout, n);
  };
  const auto layer_elements = [&](LayerKind kind) {
    return pad(unit_elements(weights_of(model_, kind), true, plan_.parallel, layout, n));
  };
  const std::int64_t embedding = elements(ModelUnit::kEmbedding);
  const std::int64_t head = elements(ModelUnit::kHead);
  const TiedSum tied = tied_sum();
  UnitSizes& sizes = schedule_.unit_sizes;
  sizes = {};
  sizes.in_parts = !content_.whole;
  sizes.layer = layer_elements({});
  const bool together = content_.embedding && content_.head;
  const bool own_head = !together || (layout.wraps_embedding_and_head && !model_.tied_head);
  // A tied head without the embedding beside it has a copy of its table.
  const std::int64_t table = tied == TiedSum::kBetweenStages ? table_elements() : 0;
  const bool uses_apart = tied == TiedSum::kHere && is_static();
  const bool with_head = !own_head || uses_apart;
  if (content_.embedding) sizes.embedding = pad(with_head ? embedding + head : embedding);
  if (content_.head) sizes.head = with_head ? 0 : pad(head + table);
  if (content_.head && uses_apart) sizes.head_gradient = pad(embedding + head);
  if (table > 0 && is_static()) {
    // Ranks have the same share of both copies, whose sums they exchange.
    const std::int64_t both = pad(std::max(embedding, head + table));
    if (content_.embedding) sizes.embedding = both;
    if (content_.head) sizes.head = both;
  }
  if (model_.is_moe()) {
    sizes.moe_layers = content_.expert_layers;
    sizes.moe_layer = layer_elements({Mixer::kAttention, Channels::kExperts});
    sizes.experts =
        round_up(elements(ModelUnit::kExperts), schedule_.group(CommGroup::kExpertData).size);
  }
  if (layout.separates_norms) {
    const std::int64_t norms = ModelUnits(model_, plan_.parallel).elements(ModelUnit::kNorms);
    sizes.norms = pad(norms * content_.layers / model_.layers);
  }
  Elements& of_head = elements_[static_cast<std::size_t>(UnitKind::kHead)];
  elements_ = {};
  elements_[static_cast<std::size_t>(UnitKind::kEmbedding)].dense = sizes.embedding;
  of_head.dense = sizes.head;
  const auto of_kind = [&](LayerKind kind) -> Elements& {
    return elements_[static_cast<std::size_t>(unit_kind(kind))];
  };
  of_kind({}).dense = sizes.layer;
  of_kind({Mixer::kAttention, Channels::kExperts}) = {sizes.moe_layer, sizes.experts};
  if (!model_.kinds.empty()) {
    sizes.layer = sizes.moe_layer = 0;
    for (const LayerKind kind : kinds_of(model_)) {
      const bool experts = kind.channels == Channels::kExperts;
      of_kind(kind) = {layer_elements(kind), experts ? sizes.experts : 0};
      std::int64_t& largest = experts ? sizes.moe_layer : sizes.layer;
      largest = std::max(largest, of_kind(kind).dense);
    }
    for (std::int64_t i = 0; i < content_.layers; ++i)
      sizes.mixed_layers += of_kind(model_.kind(content_.first_layer + i)).dense;
  }
  const std::int64_t predictions = content_.extra_predictions;
  if (predictions > 0) {
    // Modules of multi-token prediction: a projection and a layer like the last one, each.
    const ModelUnits units(model_, plan_.parallel);
    const Elements layer = {layer_elements(model_.mtp_kind()), sizes.experts};
    sizes.predictions = predictions * (layer.dense + pad(units.prediction_projection()));
    sizes.prediction_experts = predictions * layer.experts;
    Elements& of_predictions =
        content_.head ? of_head : elements_[static_cast<std::size_t>(UnitKind::kPrediction)];
    of_predictions.dense += sizes.predictions;
    of_predictions.experts += sizes.prediction_experts;
  }
  total_ = {sizes.total(content_.layers), sizes.all_experts()};
  set_trained();
}

StepWriter::TiedSum StepWriter::tied_sum() const {
  if (!model_.tied_head || plan_.use_parts() < 2) return TiedSum::kNone;
  if (content_.whole) return is_static() ? TiedSum::kHere : TiedSum::kNone;
  // A pipeline in the shape of a V ends where it begins.
  const bool is_v = info_of(plan_.parallel.schedule()).order == ChunkOrder::kV;
  return is_v ? TiedSum::kHere : TiedSum::kBetweenStages;
}

std::int64_t StepWriter::table_elements() const {
  return ModelUnits(model_, plan_.parallel).vocabulary();
}

void StepWriter::set_trained() {
  trained_ = elements_;
  total_trained_ = total_;
  if (plan_.numerics.lora == 0) return;
  trained_ = {};
  total_trained_ = {};
  const std::int64_t expert_ranks = schedule_.group(CommGroup::kExpertData).size;
  const auto at = [](LayerKind kind) { return static_cast<std::size_t>(unit_kind(kind)); };
  for (const LayerKind kind : kinds_of(model_)) {
    const AdapterElements adapters = adapter_elements(model_, plan_, stack_, kind);
    trained_[at(kind)] = {round_up(adapters.dense, shard_ranks()),
                          round_up(adapters.experts, expert_ranks)};
    elements_[at(kind)] += trained_[at(kind)];
  }
  for (std::int64_t i = 0; i < content_.layers; ++i)
    total_trained_ += trained_[at(model_.kind(content_.first_layer + i))];
  total_ += total_trained_;
}

}  // namespace shardwright::sim
