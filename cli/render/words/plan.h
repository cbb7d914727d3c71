// SPDX-License-Identifier: Apache-2.0
// A plan in a few words, for tables and sentences: "hsdp of 32, 2 x 4, 12 layers full".
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/render/text/terminal.h"
#include "cli/render/tuning.h"
#include "profiles/profile.h"
#include "sim/core/cluster.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/job.h"
#include "sim/predict.h"

namespace shardwright::cli {

/// Strategy, batch and checkpointing, then whatever is not as usual.
std::string plan_words(const Plan& plan);

/// "12 layers full", "nothing recomputed".
std::string checkpoint_words(const Plan& plan);

/// "a part of one node: 7 of its 8 GPUs, with nothing beside them"; empty for one GPU, whole nodes
/// and racks.
std::string part_of_node_words(const Cluster& cluster, std::int64_t gpus);

/// "61.2 of 79.1 GiB": with the runtime, of what is usable.
std::string needed_words(const sim::MemoryPrediction& memory);

/// What the peak is of that MFU and HFU refer to: "dense bf16", of a processor "fp32".
std::string peak_type_words(const Gpu& gpu, const Plan& plan);

// What a person should know of a job before reading its answer: what its model's configuration says
// and the answer does not contain.

/// One sentence each; none for most models. `longest` is the longest sequence that is asked about;
/// 0: none is.
std::vector<std::string> model_notes(const Model& model, std::int64_t longest);

/// Each on stderr as "note: ...".
void tell_notes(const Terminal& err, const std::vector<std::string>& notes);

// Which software an answer is about, and what stands behind it: the first thing to read.

/// "The steps are those of torch-compile, checked against 6 published runs on h100-80g; never on
/// b200."
std::string software_sentence(const profiles::Profile& profile);

/// Whose software a strategy is, as "FSDP2 on torch-compile", or "megatron-core".
std::string strategy_software(const Plan& plan, const Stack& stack);

/// Where strategies of Megatron are priced with the kernels of another framework; else empty.
std::string foreign_strategy_sentence(const std::vector<sim::Prediction>& predictions,
                                      const Stack& stack);

// Why a model is divided as it is: a sentence for every size, with what its neighbours would take.

/// One sentence for each size of the chosen plan. `tuning` holds a model-parallel answer.
std::vector<std::string> model_parallel_sentences(const TuningQuestion& question,
                                                  const tuner::Tuning& tuning);

/// How the framework that lost compares; empty where there was one alone.
std::string other_sentence(const TuningQuestion& question, const tuner::Tuning& tuning);

/// The best plan that this program runs itself; empty where there is none, or it is the best.
std::string native_sentence(const TuningQuestion& question, const tuner::Tuning& tuning);

/// How wide the prediction is and what the batch was, of a model-parallel answer.
std::vector<std::string> uncertainty_sentences(const tuner::Tuning& tuning);

/// "tp 8, pp 8 x 4, cp 2, dp 8", with what only such plans choose; empty where nothing is divided.
std::string model_parallel_words(const Plan& plan);

/// The same in as few letters as a table has room for: "tp8 pp8x4 cp2".
std::string short_layout(const Plan& plan);

// Where the numbers of a prediction come from, how sure they are and what would change them: a few
// lines for whoever signs. Each value's own source is in `inspect cluster` and `inspect gpu`.

struct NumberOrigin {
  std::string what;   // "kernels", "network", "scale", "interval", "memory", "price", "change"
  std::string words;  // one sentence or more
};

/// In the order of the page. What plays no part in this prediction (a network inside one node) is
/// left out.
std::vector<NumberOrigin> number_origins(const profiles::Profile& profile,
                                         const sim::Prediction& prediction);

// Why an interval is as wide as it is, in words: what is new about a run, what that adds to the
// half-width, and which measurement would take it away.

struct NoveltyWords {
  std::string_view axis;
  std::string what;     // the class of the run on that axis
  double adds = 0;      // of the logarithm; axes add up as squares
  std::string measure;  // what would take it away
};

/// The widest first; axes that add nothing are left out.
std::vector<NoveltyWords> novelty_words(const profiles::Profile& profile,
                                        const sim::Prediction& prediction);

// Whether this program trains by a plan itself, with the command, or why it does not; and what this
// build and machine lack for it.

struct RunsHere {
  std::string command;       // empty where it does not
  std::string why_not;       // in words; empty where it does
  std::string why_not_here;  // likewise, of a plan that it trains by
  bool possible() const { return why_not.empty(); }
};
RunsHere runs_here(const sim::Job& inputs, const Plan& plan);

/// {"possible", "command", "why_not", "why_not_here"}; null stands for what is empty.
nlohmann::ordered_json runs_here_json(const RunsHere& here);

}  // namespace shardwright::cli
