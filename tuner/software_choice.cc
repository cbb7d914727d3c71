// SPDX-License-Identifier: Apache-2.0
#include "tuner/software_choice.h"

#include <exception>
#include <optional>
#include <utility>

#include "profiles/software_settings.h"
#include "sim/core/error.h"
#include "tuner/model_parallel_search.h"

namespace shardwright::tuner {
namespace {

/// Every request so far with every setting in place of what the stack does, after itself.
template <typename Enum>
void try_settings(const std::vector<Enum>& settings, std::optional<Enum> usual,
                  std::optional<Enum> GivenParallelism::*given, std::vector<Request>& requests) {
  const std::size_t count = requests.size();
  for (const Enum setting : settings) {
    if (setting == usual) continue;
    for (std::size_t i = 0; i < count; ++i) {
      if (requests[i].parallel.*given) continue;
      Request changed = requests[i];
      changed.parallel.*given = setting;
      requests.push_back(std::move(changed));
    }
  }
}

}  // namespace

Request with_best_software(const Model& model, const std::vector<Scenario>& scenarios,
                           const Request& request, Extent extent, const SearchOptions& options) {
  const profiles::Profile& profile = scenarios.front().profile;
  const Stack& stack = profile.stack;
  const profiles::SoftwareSettings& settings = profiles::software_settings(stack);
  std::vector<Request> requests{request};
  try_settings(settings.tensor_overlaps, std::optional(profiles::usual_overlap(stack, model)),
               &GivenParallelism::tp_overlap, requests);
  if (model.is_moe()) {
    try_settings(settings.dispatchers, std::optional(profiles::usual_dispatcher(stack)),
                 &GivenParallelism::dispatcher, requests);
  }
  try_settings(settings.schedules, std::optional<PipelineKind>(), &GivenParallelism::pp_schedule,
               requests);

  Request best = request;
  std::optional<double> score;
  std::exception_ptr refusal;
  bool searched = false;
  for (Request& tried : requests) {
    if (options.stop != nullptr && options.stop->load()) break;
    try {
      const ModelParallelSpace space = model_parallel_space(tried, model, profile, extent);
      ModelParallelSearch search(model, scenarios, space, options);
      const std::vector<Found> found = search.best(1, score);
      searched = true;
      if (found.empty() || (score && found.front().score >= *score)) continue;
      score = found.front().score;
      best = std::move(tried);
    } catch (const Error&) {
      if (refusal == nullptr) refusal = std::current_exception();
    }
  }
  if (!searched && refusal != nullptr) std::rethrow_exception(refusal);
  return best;
}

}  // namespace shardwright::tuner
