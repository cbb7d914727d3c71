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

/// Of an optional knob, or of one with a value that leaves the choice to others.
template <typename Knob, typename Value>
void unsay(Knob& knob, const Value& usual, Knob unsaid = {}) {
  if (knob == usual) knob = unsaid;
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

Plan without_defaults(Plan plan, const Model& model, const Stack& stack) {
  const ParallelSoftware& software = stack.parallel;
  Parallelism& p = plan.parallel;
  Parallelism unsaid;
  unsaid.virtual_stages = p.virtual_stages;
  unsay(p.pp_schedule, unsaid.schedule());
  unsay(p.sp, p.tp > 1);
  unsay(p.tp_overlap, p.sequence_parallel() ? usual_overlap(stack, model, plan.numerics.precision)
                                            : TensorOverlap::kNone);
  if (p.cp == 1) p.cp_comm.reset();
  unsay(p.cp_comm, parallel_word<ContextComm>(software.cp_comm).value_or(ContextComm::kRing));
  unsay(p.ep_overlap, false);
  unsay(p.cuda_graphs, parallel_word<CudaGraphs>(software.cuda_graphs).value_or(CudaGraphs::kNone));
  if (model.is_moe()) {
    unsay(p.dispatcher, usual_dispatcher(stack));
    unsay(p.expert_load, ExpertLoad{});
  }
  if (plan.numerics.precision == Precision::kFp8)
    unsay(plan.numerics.fp8_recipe, Numerics{}.recipe());
  unsay(plan.allocator,
        stack.allocator.expandable_segments ? AllocatorKind::kExpandable : AllocatorKind::kNative);
  unsay(plan.sum_features, p.tp);
  unsay(plan.sum_uses, std::int64_t{p.pp > 1 ? 2 : 1});
  if (plan.packed_length >= plan.seq_len) plan.packed_length = 0;
  return plan;
}

}  // namespace shardwright::profiles
