// SPDX-License-Identifier: Apache-2.0
// How many layers a policy must recompute where only the replay of the allocator can tell.
//
// Replays are most of what a search costs where little fits, so most plans of a policy are never
// replayed: memory falls with every layer that is recomputed. The allocator alone may turn that
// round, by a few layers near the edge, which are replayed; whatever lies beyond them does as they
// do. tests/tuner/search_test.cc replays all of them. A replay ends as soon as it shows that its
// plan does not fit; by how much is asked only where nothing fits.
#include <algorithm>
#include <limits>
#include <utility>

#include "tuner/search/search.h"

namespace shardwright::tuner {

namespace {

constexpr std::int32_t kStepsAtOnce = 2;  // replayed, one for each of two threads
constexpr std::int32_t kStepsAtEdge = 4;

}  // namespace

/// The first step of [begin, end) that fits, each judged in full.
std::optional<std::int32_t> Search::first_that_fits(const Candidate& of, std::int32_t begin,
                                                    std::int32_t end) {
  std::vector<Candidate> unknown;
  for (std::int32_t step = begin; step < end; ++step) {
    Candidate at = of;
    at.step = step;
    if (!judged_.contains(key_of(at))) unknown.push_back(at);
  }
  std::vector<Judgement> judgements(unknown.size());
  pool_.run(unknown.size(), [&](std::size_t worker, std::size_t i) {
    judgements[i] = evaluator(worker, of.setting).judge_whether_fits(plan_of(unknown[i]));
  });
  for (std::size_t i = 0; i < unknown.size(); ++i) {
    keep(unknown[i], std::move(judgements[i]));
  }
  for (std::int32_t step = begin; step < end; ++step) {
    Candidate at = of;
    at.step = step;
    if (judged(at) != nullptr) return step;
  }
  return std::nullopt;
}

/// Whether not even those plans of a policy fit that recompute most.
bool Search::is_hopeless(const Candidate& of) {
  const std::int32_t end = steps(of) + 1;
  const std::int32_t edge = std::max(of.step, end - kStepsAtEdge);
  return !first_that_fits(of, end - 1, end) && !first_that_fits(of, edge, end - 1);
}

/// What a plan that fits takes beyond what its bound says.
Bytes Search::allocator_bytes(Candidate of, std::int32_t step) {
  of.step = step;
  const Bytes least =
      evaluator(0, of.setting).least_memory(plan_of(of), family_of(of.setting, of.policy)).bytes;
  return judged(of)->prediction.memory.total_bytes - least;
}

/// The first step of [begin, end) that fits by its bound if the allocator takes so much beyond it;
/// `end` where none does.
std::int32_t Search::first_with(Candidate of, std::int32_t begin, std::int32_t end, Bytes beyond) {
  Evaluator& own = evaluator(0, of.setting);
  const std::uint64_t family = family_of(of.setting, of.policy);
  while (begin < end) {
    const std::int32_t middle = begin + (end - begin) / 2;
    of.step = middle;
    if (own.least_memory(plan_of(of), family).excess_bytes + beyond <= 0) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return end;
}

/// The step that recomputes least and fits, `of` the first whose bound does. Memory falls with
/// every layer but for what the allocator makes of it, which a few layers more or less decide:
/// those next to the edge are replayed one by one, the others are taken to do as the edge does.
/// Where the edge is, a plan that fits tells: the allocator takes about as much of its neighbours.
std::optional<std::int32_t> Search::least_that_fits(const Candidate& of, double give_up) {
  const std::int32_t begin = of.step, end = steps(of) + 1;
  if (const auto fits = first_that_fits(of, begin, begin + 1)) return fits;
  if (begin + 1 == end || is_hopeless(of)) return std::nullopt;
  std::int32_t low = begin + 1, found = end - 1;
  for (Candidate at = of; at.step = found, judged(at) == nullptr;) --found;
  std::int32_t stride = 0;  // beyond guesses that were wrong
  while (low < found && !stopped()) {
    const std::int32_t edge = first_with(of, low, found, allocator_bytes(of, found));
    const std::int32_t guess = std::min(std::max(edge, low + stride), found - 1);
    const std::int32_t first = std::max(low, guess + 1 - kStepsAtOnce);
    if (const auto fits = first_that_fits(of, first, guess + 1)) {
      found = *fits;
      if (found > first) low = found;
      continue;
    }
    low = guess + 1;
    stride = 2 * stride + 1;
    if (low < found && postpones(of, low, give_up)) return std::nullopt;
  }
  return first_that_fits(of, found - std::min(found - begin, kStepsAtEdge), found).value_or(found);
}

/// Whether the plan of this step, the first that may still fit, is no better than others promise to
/// be; then it becomes a candidate, and the rest is asked again when it is in front.
bool Search::postpones(const Candidate& of, std::int32_t step, double give_up) {
  if (give_up == std::numeric_limits<double>::infinity()) return false;
  Candidate open = of;
  open.step = step;
  const double score = evaluator(0, of.setting).simulate(plan_of(open));
  if (score <= give_up) return false;
  count_simulated(open);
  open.stage = Stage::kSimulated;
  open.key = std::max(open.key, score);
  open.bytes =
      evaluator(0, of.setting).least_memory(plan_of(open), family_of(of.setting, of.policy)).bytes;
  candidates_.push_back(open);
  return true;
}

std::optional<std::uint32_t> Search::with_flash_attention(std::uint32_t setting) const {
  Plan flash = plan_of(setting);
  if (flash.attention != AttentionKind::kEager) return std::nullopt;
  flash.attention = AttentionKind::kFlash;
  for (std::uint32_t other = 0; other < settings_.size(); ++other) {
    if (settings_[other].framework == settings_[setting].framework && plan_of(other) == flash)
      return other;
  }
  return std::nullopt;
}

/// How many steps plans like these recompute at least, where they fit.
std::optional<std::int32_t> Search::layers_needed(std::uint32_t setting, std::int16_t policy) {
  for (const std::int16_t one : {kNothing, policy}) {
    if (const auto needed = settled(setting, one)) return needed;
  }
  return std::nullopt;
}

/// None is wanted of a policy when the same plan without recomputation fits, or with the attention
/// that keeps less and so recomputes less. Otherwise the plan that is becomes a candidate.
std::optional<std::int32_t> Search::settled(std::uint32_t setting, std::int16_t policy,
                                            double give_up) {
  const std::uint64_t family = family_of(setting, policy);
  if (const auto at = settled_.find(family); at != settled_.end()) return at->second;
  settled_[family] = std::nullopt;
  Candidate of;
  of.setting = setting;
  of.policy = policy;
  std::optional<std::int32_t> least;
  std::optional<Candidate> first;
  if (policy == kNothing) {
    const bool may_fit =
        space(setting).recomputes_nothing &&
        evaluator(0, setting).least_memory(plan_of(setting), family).excess_bytes <= 0;
    if (may_fit) least = first_that_fits(of, 0, 1);
  } else {
    if (settled(setting, kNothing)) return std::nullopt;
    Outcome aside;
    first = fewest(evaluator(0, setting), of, 1, std::numeric_limits<Bytes>::max(), aside);
    if (first) {
      const std::size_t count = candidates_.size();
      least = least_that_fits(*first, give_up);
      if (!least && candidates_.size() > count) {  // postponed
        settled_.erase(family);
        return std::nullopt;
      }
      // Those that were not replayed are taken not to fit, since others do not.
      const std::int32_t end = least.value_or(steps(of) + 1);
      for (of.step = first->step; of.step < end && !stopped(); ++of.step) {
        if (!judged_.try_emplace(key_of(of)).second) continue;
        ++counts_.no_memory;
      }
    }
  }
  if (least.value_or(0) > 0) {
    if (const auto flash = with_flash_attention(setting)) {
      const std::optional<std::int32_t> needed = layers_needed(*flash, policy);
      if (needed && *needed < *least) least.reset();
    }
  }
  if (least && first && *least != first->step) {
    Candidate wanted = *first;
    wanted.step = *least;
    wanted.stage = Stage::kJudged;
    const Judgement& judgement = *judged(wanted);
    wanted.key = std::max(wanted.key, judgement.score);
    wanted.bytes = judgement.prediction.memory.total_bytes;
    candidates_.push_back(wanted);
  }
  return settled_[family] = least;
}

bool Search::is_settled(const Candidate& candidate) const {
  return settled_.contains(family_of(candidate.setting, candidate.policy));
}

}  // namespace shardwright::tuner
