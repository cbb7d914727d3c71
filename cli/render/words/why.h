// SPDX-License-Identifier: Apache-2.0
// The words in which `tune` says what a change costs and what holds a plan back.
#pragma once

#include <string>

#include "tuner/advice/advice.h"
#include "tuner/search/request.h"
#include "tuner/search/steps.h"

namespace shardwright::cli {

/// "3.1 % slower", "0.4 % cheaper", "12 % more memory", "no difference".
std::string cost_words(tuner::Objective objective, double cost);

/// "does not fit: 1.2 GiB too much". `thrashes` as in tuner::Judgement.
std::string excess_words(Bytes excess_bytes, bool thrashes);

/// What moving one knob would do.
std::string step_words(const tuner::KnobStep& step, tuner::Objective objective);

/// What a strategy's best plan loses on the choice, or what fills the memory when none fits.
std::string held_back_words(const tuner::OtherStrategy& other, const sim::Prediction& choice);

}  // namespace shardwright::cli
