// SPDX-License-Identifier: Apache-2.0
// The words in which `tune` says what a change costs and what holds a plan back.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/core/model.h"
#include "sim/job.h"
#include "sim/predict.h"
#include "tuner/advice/advice.h"
#include "tuner/search/request.h"
#include "tuner/search/steps.h"

namespace shardwright::cli {

/// Of a MemoryCategory: "gather buffers".
std::string category_words(std::size_t category);

/// "3.1 % slower", "0.4 % cheaper", "12 % more memory", "no difference".
std::string cost_words(tuner::Objective objective, double cost);

/// "does not fit: 1.2 GiB too much". `thrashes` as in tuner::Judgement.
std::string excess_words(Bytes excess_bytes, bool thrashes);

/// What moving one knob would do.
std::string step_words(const tuner::KnobStep& step, tuner::Objective objective);

/// What a strategy's best plan loses on the choice, or what fills the memory when none fits.
std::string held_back_words(const tuner::OtherStrategy& other, const sim::Prediction& choice);

// What uneven experts cost, in words and as JSON.

/// Empty where experts are balanced or there are none.
std::string routing_sentence(const sim::Job& inputs, const sim::Prediction& prediction);
/// Of a prediction with a RoutingPrice.
nlohmann::ordered_json routing_json(const sim::Job& inputs, const sim::Prediction& prediction);

// The rule of thumb of the field, 16 to 24 bytes a parameter, beside what is predicted: where it
// agrees, and what it leaves out.

/// Full sentences.
std::vector<std::string> rule_of_thumb_sentences(const Model& model,
                                                 const sim::Prediction& prediction);
nlohmann::ordered_json rule_of_thumb_json(const Model& model, const sim::Prediction& prediction);

// Whether the host or the device bounds a step, in words and as JSON.

/// Empty where the host issues nothing.
std::string host_sentence(const sim::Prediction& prediction);
nlohmann::ordered_json host_json(const sim::Prediction& prediction);

}  // namespace shardwright::cli
