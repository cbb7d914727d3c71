// SPDX-License-Identifier: Apache-2.0
// The best plan of all that a request leaves open, whatever framework runs it.
//
// Data parallelism and model parallelism are searched one after another, the next one only below
// the best score so far; the least score is the answer. Plans that one framework runs in both
// searches are left to the first. A preference for the plan that changes less is a sentence beside
// the answer (OtherFramework::within_uncertainty), never the answer. Where data parallelism has no
// plan (nothing fits, experts, fewer sequences than GPUs) there is nothing to compare. What lost is
// told beside the answer.
#pragma once

#include <string>
#include <vector>

#include "tuner/model_parallel_space.h"
#include "tuner/tuning.h"

namespace shardwright::tuner {

/// Software whose model-parallel plans are candidates.
struct ParallelCandidate {
  const profiles::Profile* profile = nullptr;
  double headroom = 0;  // Criteria::headroom of these plans
  /// kModelParallel: its data-parallel plans are those of Candidates::data_parallel already.
  Extent extent = Extent::kAll;
};

struct Candidates {
  /// For data parallelism; null where the model or the request rules that out, and why.
  const profiles::Profile* data_parallel = nullptr;
  std::string refusal;
  std::vector<ParallelCandidate> parallel;
  /// This project's executor, where it trains such a model; null elsewhere.
  const profiles::Profile* native = nullptr;
};

/// At least one candidate must be there. Throws Error as tune() does.
Tuning tune_all(const Model& model, const Candidates& candidates, const Request& request,
                const TuneOptions& options = {});

/// Whether a model-parallel plan is better than a plain one by more than both predictions are
/// uncertain: half-widths of logarithms in quadrature, without the uncertainty of the machine's
/// loss with scale, which is the same for both. Scores are those of the predictions.
bool is_better_beyond_uncertainty(const sim::Prediction& model_parallel, double score,
                                  const sim::Prediction& plain, double plain_score,
                                  Objective objective);

}  // namespace shardwright::tuner
