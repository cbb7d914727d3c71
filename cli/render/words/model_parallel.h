// SPDX-License-Identifier: Apache-2.0
// How a plan is model-parallel, in a few words.
#pragma once

#include <string>
#include <vector>

#include "cli/render/tuning.h"
#include "sim/core/plan.h"

namespace shardwright::cli {

// Why a model is divided as it is: a sentence for every size, with what its neighbours would take.

/// One sentence for each size of the chosen plan. `tuning` holds a model-parallel answer.
std::vector<std::string> model_parallel_sentences(const TuningQuestion& question,
                                                  const tuner::Tuning& tuning);

/// How the framework that lost compares; empty where there was one alone.
std::string other_sentence(const TuningQuestion& question, const tuner::Tuning& tuning);

/// How wide the prediction is and what the batch was, of a model-parallel answer.
/// The best plan that this program runs itself; empty where there is none, or it is the best.
std::string native_sentence(const TuningQuestion& question, const tuner::Tuning& tuning);
std::vector<std::string> uncertainty_sentences(const tuner::Tuning& tuning);

/// "tp 8, pp 8 x 4, cp 2, dp 8", with what only such plans choose; empty where nothing is divided.
std::string model_parallel_words(const Plan& plan);

/// The same in as few letters as a table has room for: "tp8 pp8x4 cp2".
std::string short_layout(const Plan& plan);

}  // namespace shardwright::cli
