// SPDX-License-Identifier: Apache-2.0
// What a framework can be told of a plan, as requests to the search: every plan of them is followed
// to the letter by what `export` writes for it (settings.h), so a search that stays in them finds
// the best that the framework does.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/export/settings.h"
#include "sim/core/model.h"
#include "sim/job.h"
#include "sim/predict.h"
#include "tuner/advice/tuning.h"

namespace shardwright::cli {

struct ToldFramework {
  std::string_view name;         // as --for takes it
  std::string_view title;        // as people write it
  std::string_view format;       // of `export`; empty: none, a script of one's own does it
  std::string_view stack;        // whose steps are predicted
  std::string_view adapters_on;  // the same where adapters are trained; empty: it has none
};

/// All of them, in the order of the documentation.
const std::vector<ToldFramework>& told_frameworks();
/// Throws Error naming --for and the word.
const ToldFramework& told_framework(const std::string& name);

/// The framework that runs a request's plans, and what of the profile it sets.
std::string stack_of(const ToldFramework& framework, const tuner::Request& request);
std::vector<std::string> overrides_of(const ToldFramework& framework);

/// `request` in the words of the framework. Throws Error where it holds something fixed that the
/// framework cannot be told.
std::vector<tuner::AskedPlans> told_requests(const ToldFramework& framework,
                                             const tuner::Request& request, const Model& model);

// The best plan of each framework, among those that it can be told (told.h).

struct FrameworkPlan {
  const ToldFramework* framework = nullptr;
  profiles::Profile profile;             // with what the framework sets
  std::vector<tuner::AskedPlans> asked;  // empty: the request is none of its
  tuner::BestOfRequests found;
  double headroom = 0;

  /// Why it has no plan at all; empty where it has one, or where none fits.
  const std::string& refusal() const { return found.refusal; }
};

struct FrameworkSearch {
  tuner::SearchOptions options;
  std::optional<double> headroom;  // of all; not given: what each framework's memory asks for
  bool robust = false;
};

/// In the order of `frameworks`.
std::vector<FrameworkPlan> framework_plans(const sim::Job& job, const tuner::Request& request,
                                           const std::vector<const ToldFramework*>& frameworks,
                                           const FrameworkSearch& search);

/// Of Transformers' Trainer, on which fine-tuning runs where nobody says otherwise. Throws Error
/// where the request holds something fixed that it has not.
FrameworkPlan trainer_plan(const sim::Job& job, const tuner::Request& request,
                           const FrameworkSearch& search);

/// The one whose best plan has the least score; of those where nothing fits the first. Throws Error
/// with the first refusal where none has a plan at all.
const FrameworkPlan& best_of_frameworks(const std::vector<FrameworkPlan>& plans);

/// For the whole answer about `plan`'s framework.
tuner::Frameworks frameworks_for(const FrameworkPlan& plan);

// What a trainer will do with exported settings, predicted.

struct AsRun {
  sim::Job inputs;  // with the plan that the trainer follows
  std::optional<sim::Prediction> prediction;
  std::string refusal;  // why there is none
};

AsRun predict_as_run(const sim::Job& inputs, const TrainerSettings& settings);

}  // namespace shardwright::cli
