// SPDX-License-Identifier: Apache-2.0
// The steps of a published training that divided its model: tensor, pipeline and expert parallel
// sizes as published, on model-parallel frameworks; what nobody published (micro-batch, virtual
// stages, context parallelism of 1, how much is recomputed) is searched.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/ledger/whole_runs.h"
#include "profiles/profile.h"
#include "sim/predict.h"
#include "tuner/search/space.h"

namespace shardwright::tuner {

/// Whether it divided the model, or has experts, which data parallelism alone does not express.
bool shares_more_than_data(const profiles::WholeRun& run);

/// What a word in a published name stands for.
struct NameWord {
  std::string_view in_name, stands_for;
};

/// What the first of `words` that `name` holds stands for, in small letters; else `otherwise`.
std::string by_words(const std::string& name, std::span<const NameWord> words,
                     std::string_view otherwise);

/// The stack with tensor and pipeline parallelism that stands for what a source calls its software,
/// by words in it; else megatron-core.
std::string model_parallel_stack_of(const std::string& software);

/// The fastest step with the published layout. `request` holds GPUs, sequence length and
/// recomputation; its batch and layout are set here. None where nothing of that layout fits or
/// makes sense. `run` has a model. Appends what it assumed.
std::optional<sim::Prediction> published_layout(const profiles::WholeRun& run, Request request,
                                                const profiles::Profile& profile,
                                                std::vector<std::string>& assumed);

}  // namespace shardwright::tuner
