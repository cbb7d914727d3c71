// SPDX-License-Identifier: Apache-2.0
#include "sim/trace/measured_passes.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "sim/trace/norm_meetings.h"

namespace shardwright::sim {
namespace {

/// The pass that each operation of a stage belongs to, by its first id.
class PassesOfStage {
 public:
  explicit PassesOfStage(const Schedule& schedule) : schedule_(schedule) {
    std::uint32_t section = ~std::uint32_t{0};
    for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
      if (op.kind == OpKind::kGradientNorm) norms_.insert(at.id);
      if (at.section == section) return;
      section = at.section;
      sections_[at.id] = section;
    });
  }
  bool is_norm(OpId id) const { return norms_.contains(id); }
  const Section& section_of(OpId id) const {
    return schedule_.sections[std::prev(sections_.upper_bound(id))->second];
  }
  /// Gradients of a tied embedding, behind the passes.
  bool sums(const Section& section) const {
    return schedule_.blocks[section.first_block].phase == Phase::kReduce;
  }

 private:
  const Schedule& schedule_;
  std::map<OpId, std::uint32_t> sections_;
  std::set<OpId> norms_;
};

StageOfRank stage_of_rank(const Schedule& schedule, std::int32_t stage) {
  std::string content;
  const auto add = [&](const std::string& what) {
    content += content.empty() ? what : ", " + what;
  };
  for (const Schedule::UnitRange& range : schedule.stage_layers) {
    if (range.count == 0) continue;
    add(range.count == 1
            ? fmt::format("layer {}", range.first - 1)
            : fmt::format("layers {} to {}", range.first - 1, range.first + range.count - 2));
  }
  if (schedule.unit_sizes.embedding > 0) add("embedding");
  if (schedule.unit_sizes.head > 0) add("head");
  return {stage, static_cast<std::int32_t>(schedule.stage_layers.size()), content};
}

/// Of one rank in one step, in order of begin, without gaps since the step began.
void append_passes(const PassesOfStage& stage, Nanoseconds step_begin_ns, Nanoseconds met_ns,
                   const std::vector<const Span*>& spans, std::vector<PassSpan>& passes) {
  const std::size_t first = passes.size();
  const PassSpan like{StageWork::kBubble, spans.front()->rank, spans.front()->step};
  for (const Span* span : spans) {
    const Section& section = stage.section_of(span->id);
    const std::optional<Action>& action = section.pass;
    PassSpan pass = like;
    pass.begin_ns = span->begin_ns;
    pass.end_ns = span->end_ns;
    if (action) {
      pass.work = static_cast<StageWork>(action->kind);
      pass.chunk = action->chunk;
      pass.micro_batch = action->micro_batch;
    } else {
      pass.work = stage.sums(section) ? StageWork::kReduction : StageWork::kOptimizer;
      // A stage that waits for others at the norm does not update yet.
      if (pass.work == StageWork::kOptimizer)
        pass.begin_ns = std::clamp(met_ns, pass.begin_ns, pass.end_ns);
    }
    PassSpan* last = passes.size() > first ? &passes.back() : nullptr;
    const bool goes_on = last != nullptr && last->work == pass.work && last->chunk == pass.chunk &&
                         last->micro_batch == pass.micro_batch;
    if (goes_on) {
      last->end_ns = std::max(last->end_ns, pass.end_ns);
      continue;
    }
    const Nanoseconds end = last != nullptr ? last->end_ns : step_begin_ns;
    if (pass.begin_ns > end) {
      PassSpan bubble = like;
      bubble.begin_ns = end;
      bubble.end_ns = pass.begin_ns;
      passes.push_back(bubble);
    }
    pass.begin_ns = std::max(pass.begin_ns, end);
    pass.end_ns = std::max(pass.end_ns, pass.begin_ns);
    passes.push_back(pass);
  }
}

}  // namespace

void add_measured_passes(const std::vector<Schedule>& stages, const RankMesh& mesh,
                         Timeline& timeline) {
  if (mesh.pp == 1) return;
  std::vector<PassesOfStage> passes_of;
  for (const Schedule& stage : stages) passes_of.emplace_back(stage);
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<const Span*>> by_rank;  // and step
  std::map<std::int32_t, Nanoseconds> begins;  // of steps: the first one at 0, others at a span
  for (const Span& span : timeline.spans) {
    Nanoseconds& begin = begins.try_emplace(span.step, span.begin_ns).first->second;
    begin = std::min(begin, span.begin_ns);
    if (span.stream == 0 && span.id >= 0) by_rank[{span.rank, span.step}].push_back(&span);
  }
  if (!begins.empty()) begins.begin()->second = 0;
  const std::map<LaneKey, Nanoseconds> meetings = norm_meetings(timeline, [&](OpId id) {
    return std::any_of(passes_of.begin(), passes_of.end(),
                       [id](const PassesOfStage& stage) { return stage.is_norm(id); });
  });
  for (auto& [key, spans] : by_rank) {
    const auto stage = static_cast<std::int32_t>(mesh.place_of(key.first).pp);
    const Schedule& schedule = stages[static_cast<std::size_t>(stage)];
    timeline.stages[key.first] = stage_of_rank(schedule, stage);
    std::stable_sort(spans.begin(), spans.end(),
                     [](const Span* a, const Span* b) { return a->begin_ns < b->begin_ns; });
    const auto met = meetings.find({key.second, key.first});
    append_passes(passes_of[static_cast<std::size_t>(stage)], begins.at(key.second),
                  met == meetings.end() ? 0 : met->second, spans, timeline.passes);
  }
}

}  // namespace shardwright::sim
