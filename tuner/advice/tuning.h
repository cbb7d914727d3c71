// SPDX-License-Identifier: Apache-2.0
// All that `tune` answers: the best plan, whatever framework runs it, its candidates, why it is the
// best, whether it stays so, and what to change when nothing fits.
//
// All frameworks are one search. A preference for the plan that changes less is a sentence beside
// the answer (OtherFramework::within_uncertainty), never the answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tuner/advice/advice.h"
#include "tuner/search/request.h"
#include "tuner/search/robustness.h"
#include "tuner/search/search.h"
#include "tuner/search/steps.h"

namespace shardwright::tuner {

struct TuneOptions {
  SearchOptions search;
  bool robust = false;  // the best under the worst of the adverse scenarios
  std::size_t top = 10;
};

/// Whose plans are searched. The first is the one that data parallelism alone would take.
struct Frameworks {
  std::vector<Framework> searched;
  std::string refusal;  // why the first has no plan of data parallelism alone, in words
};

/// What the answer is compared with: data parallelism alone on the first framework; where that is
/// the answer, the other frameworks.
struct OtherFramework {
  std::string stack;                 // several: joined by " or "
  std::optional<Found> best;         // none: nothing fits, or nothing is better than the choice
  std::string refusal;               // why there is no plan of it, in words
  std::optional<Judgement> closest;  // to fitting, where nothing fits
  double cost = 0;                   // of `best`: its score against the choice's, minus 1
  bool within_uncertainty = false;   // the two predictions cannot tell `best` and the choice apart
};

/// The best plan that this project's executor runs, where the best of all is another's and the
/// prediction of that does not tell the two apart.
struct NativePlan {
  Found best;
  profiles::Profile profile;
  double cost = 0;  // its score against the choice's, minus 1
};

struct Tuning {
  std::vector<Strategy> strategies;  // of the answer's framework
  std::vector<Found> top;            // of it, best first; empty: nothing fits
  std::vector<Found> pareto;
  std::vector<KnobStep> steps;
  std::vector<OtherStrategy> others;
  std::optional<Robustness> robustness;  // of `top`; none when stopped
  std::optional<Advice> advice;          // when nothing fits
  Counts counts;                         // of the search for all of the above but robustness
  double search_s = 0, total_s = 0;
  bool stopped = false;                      // from outside: the best so far
  bool model_parallel = false;               // the steps are sizes, halved and doubled
  std::optional<profiles::Profile> profile;  // of the answer
  std::int64_t usual_global_batch = 0;       // of the answer, where the request gave none
  std::optional<OtherFramework> other;
  std::optional<NativePlan> native;  // set by who asks what each framework can be told
};

/// Throws Error when the request contradicts itself, the model or the cluster, or when no framework
/// does what it holds fixed.
Tuning tune(const Model& model, const Frameworks& frameworks, const Request& request,
            const TuneOptions& options = {});
/// Of one framework.
Tuning tune(const Model& model, const profiles::Profile& profile, const Request& request,
            const TuneOptions& options = {});

/// Whether a plan is better than another by more than both predictions are uncertain: half-widths
/// of logarithms in quadrature, without the uncertainty of the machine's loss with scale, which is
/// the same for both. Scores are those of the predictions.
bool is_better_beyond_uncertainty(const sim::Prediction& better, double score,
                                  const sim::Prediction& other, double other_score,
                                  Objective objective);

// The best plan of several requests on one framework, without the reasons: what a framework can be
// told is often no one space but a few (all layers recomputed, or none), each a request.

/// Which plans of a request.
enum class Extent : std::uint8_t {
  kAll,
  kDataAlone,      // ranks share nothing but data
  kModelParallel,  // they share more
};

struct AskedPlans {
  Request request;
  Extent extent = Extent::kAll;
};

/// The request whose space has exactly those plans, but for kModelParallel, whose has all.
Request request_of(const AskedPlans& asked);

struct BestOfRequests {
  std::size_t index = 0;  // of the request
  std::optional<Found> best;
  std::string refusal;  // of the first request that contradicts itself, the model or the cluster
};

/// Later requests have to be better than earlier ones. Errors of a request are its refusal.
BestOfRequests best_of_requests(const Model& model, const std::vector<Scenario>& scenarios,
                                const std::vector<AskedPlans>& asked, const SearchOptions& options);

}  // namespace shardwright::tuner
