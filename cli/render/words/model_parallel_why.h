// SPDX-License-Identifier: Apache-2.0
// Why a model is divided as it is: a sentence for every size, with what its neighbours would take.
#pragma once

#include <string>
#include <vector>

#include "cli/render/tuning.h"

namespace shardwright::cli {

/// One sentence for each size of the chosen plan. `tuning` holds a model-parallel answer.
std::vector<std::string> model_parallel_sentences(const TuningQuestion& question,
                                                  const tuner::Tuning& tuning);

/// How the framework that lost compares; empty where there was one alone.
std::string other_sentence(const TuningQuestion& question, const tuner::Tuning& tuning);

/// How wide the prediction is and what the batch was, of a model-parallel answer.
/// The best plan that this program runs itself; empty where there is none, or it is the best.
std::string native_sentence(const TuningQuestion& question, const tuner::Tuning& tuning);
std::vector<std::string> uncertainty_sentences(const tuner::Tuning& tuning);

}  // namespace shardwright::cli
