// SPDX-License-Identifier: Apache-2.0
// How `tune` shows what it found: in words and tables for people, as the contract's JSON for
// programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/render/text/terminal.h"
#include "sim/job.h"
#include "tuner/advice/tuning.h"

namespace shardwright::cli {

/// What one framework can be told at best, beside the answer.
struct FrameworkLine {
  std::string name, title;
  std::optional<tuner::Found> best;    // none: nothing fits, or `refusal`
  std::vector<std::string> overrides;  // of the profile, with which `best` was predicted
  std::string refusal;
};

/// What was asked of the search; `job.plans` is empty.
struct TuningQuestion {
  sim::Job job;
  tuner::Request request;
  tuner::Criteria criteria;
  bool robust = false;
  std::optional<tuner::Judgement> given;  // the plan of --plan, for comparison
  std::vector<FrameworkLine> frameworks;
  bool fine_tunes = false;
  std::optional<std::string> usual_length;  // where sequences are as long as is usual: what that is
  bool told = false;  // only what named or usual frameworks can be told was searched
};

/// The whole answer.
std::string tuning_text(const TuningQuestion& question, const tuner::Tuning& tuning,
                        const Terminal& out);

nlohmann::ordered_json tuning_json(const TuningQuestion& question, const tuner::Tuning& tuning);

/// Why the best is the best, in full sentences; or why nothing fits, and what would.
std::vector<std::string> tuning_sentences(const TuningQuestion& question,
                                          const tuner::Tuning& tuning);

/// What would be better still, but is left out unless recomputation is asked for speed; or nothing.
std::string spare_sentence(const tuner::Tuning& tuning, tuner::Objective objective);

/// Where nothing fits: what does, by the first of the ways out.
std::string way_out_sentence(const TuningQuestion& question, const tuner::Tuning& tuning);

/// The answer in a sentence, and what it costs to stay in PyTorch's own frameworks.
std::string lead_sentence(const TuningQuestion& question, const tuner::Tuning& tuning);

/// What fine-tuning on short examples loses without packing; empty for other training.
std::string packing_sentence(const TuningQuestion& question, const tuner::Tuning& tuning);

/// One sentence for a search that found nothing that fits: the nearest plan that would.
std::string nothing_fits_sentence(const tuner::Tuning& tuning);

}  // namespace shardwright::cli
