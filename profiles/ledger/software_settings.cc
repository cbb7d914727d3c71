// SPDX-License-Identifier: Apache-2.0
#include "profiles/ledger/software_settings.h"

#include <string>

namespace shardwright::profiles {
namespace {

template <typename Enum>
std::vector<Enum> settings_of(const std::vector<std::string>& words) {
  std::vector<Enum> settings;
  for (const std::string& word : words) {
    if (const auto setting = parallel_word<Enum>(word)) settings.push_back(*setting);
  }
  return settings;
}

}  // namespace

SoftwareSettings software_settings(const Stack& stack) {
  const SoftwareChoices& choices = stack.parallel.choices;
  return {settings_of<TensorOverlap>(choices.tp_overlap),
          settings_of<Dispatcher>(choices.dispatcher),
          settings_of<PipelineKind>(choices.pp_schedule),
          choices.ep_overlap ? std::vector{false, true} : std::vector<bool>{}};
}

TensorOverlap usual_overlap(const Stack& stack, const Model& model, Precision precision) {
  if (model.is_moe()) return TensorOverlap::kNone;
  const auto usual =
      parallel_word<TensorOverlap>(stack.parallel.tp_overlap).value_or(TensorOverlap::kNone);
  const bool unknown_there = precision == Precision::kNvfp4 && usual == TensorOverlap::kUserbuffers;
  return unknown_there ? TensorOverlap::kNone : usual;
}

Dispatcher usual_dispatcher(const Stack& stack) {
  return parallel_word<Dispatcher>(stack.parallel.dispatcher).value_or(Dispatcher::kAllToAll);
}

}  // namespace shardwright::profiles
