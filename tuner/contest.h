// SPDX-License-Identifier: Apache-2.0
// Two ways to train compete: data parallelism as it always was, and plans that divide the model, on
// software that does so.
//
// Nobody should be moved to other software for a gain that the predictions cannot tell from none:
// where both ways can train the model, the divided plan is the answer only if it is faster even at
// the slow end of the interval of the ratio, which is that of two predictions with errors of their
// own: half-widths of logarithms in quadrature, without the doubt of the machine's loss with scale,
// which is the same for both. Plans that divide nothing but data do not take part for the divided
// side. Where data parallelism has no plan (nothing fits, experts, fewer sequences than GPUs) there
// is nothing to compare. The one that lost is told beside the answer.
#pragma once

#include <string>

#include "tuner/tuning.h"

namespace shardwright::tuner {

struct Contestants {
  /// For data parallelism; null where the model or the request rules that out, and why.
  const profiles::Profile* plain = nullptr;
  std::string plain_refusal;
  /// For plans that divide the model; null where that is ruled out.
  const profiles::Profile* divided = nullptr;
  double divided_headroom = 0;  // Criteria::headroom of those plans
};

/// At least one of the two must be there. Throws Error as tune() does.
Tuning compete(const Model& model, const Contestants& contestants, const Request& request,
               const TuneOptions& options = {});

/// Whether a divided plan takes the answer from a plain one. Scores are those of the predictions.
bool takes_over(const sim::Prediction& divided, double score, const sim::Prediction& plain,
                double plain_score, Objective objective);

}  // namespace shardwright::tuner
