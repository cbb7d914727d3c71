// SPDX-License-Identifier: Apache-2.0
// What the search knows of its candidates and how it learns more: bounds of all plans that
// recompute nothing first, then, for those that are asked about, the ways to recompute,
// simulations and full predictions. search_best.cc decides who is asked about, search_settle.cc how
// many layers must be recomputed where only the allocator's replay can tell.
//
// Recomputation only adds work, so a plan without it bounds all that recompute, and fewer layers
// bound more of them; and every layer that is recomputed takes less memory. So of each policy the
// plan with the fewest layers whose memory may fit comes first, found by interpolation, and those
// that recompute more follow it one by one, as far as anybody asks for them.
#include "tuner/search/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "sim/core/base/invalid_plan.h"

namespace shardwright::tuner {

namespace {

constexpr std::size_t kPlansPerRound = 4096;
constexpr std::size_t kPlansInARow = 32;  // by one thread: neighbours share schedules and lists
constexpr Bytes kFits = std::numeric_limits<Bytes>::max();

/// Of steps between `low`, which lacks `over` bytes, and `high`, which has `-room` left, the first
/// that may have any left. Bytes fall nearly in a line; where they do not, `halves`.
std::int32_t guess_between(std::int32_t low, std::int32_t high, Bytes over, Bytes room,
                           bool halves) {
  const double share = halves ? 0.5 : static_cast<double>(over) / static_cast<double>(over - room);
  const auto steps = static_cast<std::int32_t>(std::ceil(share * (high - low)));
  return low + std::clamp(steps, 1, high - low - 1);
}

}  // namespace

Search::Search(const Model& model, std::vector<Scenario> scenarios, Space space,
               const SearchOptions& options)
    : Search(model, {{std::move(scenarios), std::move(space), options.criteria.headroom}},
             options) {}

Search::Search(const Model& model, std::vector<FrameworkPlans> frameworks,
               const SearchOptions& options)
    : model_(model),
      frameworks_(std::move(frameworks)),
      options_(options),
      end_{options.stop, options.give_up},
      begin_(std::chrono::steady_clock::now()),
      told_(begin_),
      pool_(options.threads) {
  start();
  bound_all();
}

Search::Search(const Search& kinder, std::size_t framework, const Scenario& scenario,
               const SearchOptions& options)
    : model_(kinder.model_),
      frameworks_{{{scenario},
                   kinder.frameworks_[framework].space,
                   kinder.frameworks_[framework].headroom}},
      options_(options),
      end_{options.stop, options.give_up},
      begin_(std::chrono::steady_clock::now()),
      told_(begin_),
      pool_(options.threads) {
  start();
  const bool alone = kinder.frameworks_[framework].scenarios.size() == 1;
  candidates_.reserve(settings_.size());
  for (std::uint32_t i = 0; i < kinder.settings_.size(); ++i) {
    if (kinder.settings_[i].framework != framework) continue;
    Candidate& candidate = candidates_.emplace_back();
    candidate.setting = static_cast<std::uint32_t>(candidates_.size() - 1);
    candidate.stage = Stage::kPromised;
    // Bounds of the worst of several scenarios are none of one of them.
    if (alone && i < kinder.candidates_.size()) candidate.key = kinder.candidates_[i].key;
  }
}

void Search::start() {
  evaluators_.resize(pool_.size());
  for (std::size_t f = 0; f < frameworks_.size(); ++f) {
    const FrameworkPlans& framework = frameworks_[f];
    Criteria criteria = options_.criteria;
    criteria.headroom = framework.headroom;
    for (std::vector<Evaluator>& own : evaluators_)
      own.emplace_back(model_, framework.scenarios, criteria, options_.simulators, &end_);
    counts_.considered += framework.space.size();
    const bool sparing = criteria.objective != Objective::kHeadroom &&
                         !criteria.recompute_for_speed &&
                         framework.scenarios.front().profile.stack.memory != MemoryManager::kStatic;
    for (std::size_t i = 0; i < framework.space.plans.size(); ++i) {
      const Plan& plan = framework.space.plans[i];
      settings_.push_back({static_cast<std::uint32_t>(i), static_cast<std::uint16_t>(f),
                           evaluators_.front()[f].replays(plan), sparing});
    }
  }
  shortages_.assign(settings_.size(), {kFits});
}

Search::~Search() = default;

bool Search::stopped() const {
  return cut_short_ || end_.is_stopped();
}

void Search::tell(const char* doing) {
  if (!options_.progress) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - told_ < std::chrono::milliseconds(50)) return;
  told_ = now;
  options_.progress({doing, counts_.considered, std::chrono::duration<double>(now - begin_).count(),
                     best_so_far_ != nullptr ? &best_so_far_->prediction : nullptr});
}

const Space& Search::space(std::uint32_t setting) const {
  return frameworks_[settings_[setting].framework].space;
}

const Plan& Search::plan_of(std::uint32_t setting) const {
  return space(setting).plans[settings_[setting].plan];
}

Plan Search::plan_of(const Candidate& c) const {
  const Space& own = space(c.setting);
  if (c.policy == kNothing) return plan_of(c.setting);
  return own.at(plan_of(c.setting), own.recomputations[static_cast<std::size_t>(c.policy)], c.step);
}

std::int32_t Search::steps(const Candidate& c) const {
  const Space& own = space(c.setting);
  return static_cast<std::int32_t>(
      own.steps(plan_of(c.setting), own.recomputations[static_cast<std::size_t>(c.policy)]));
}

/// Whether memory is enough where all layers run again: nothing takes less.
bool Search::may_fit(Evaluator& evaluator, const Candidate& candidate, Outcome& outcome) const {
  const Space& own = space(candidate.setting);
  const auto full =
      std::find_if(own.recomputations.begin(), own.recomputations.end(),
                   [](const Recomputation& one) { return one.recompute == Recompute::kFull; });
  if (full == own.recomputations.end()) return true;
  Candidate most = candidate;
  most.policy = static_cast<std::int16_t>(full - own.recomputations.begin());
  most.step = steps(most);
  if (evaluator.may_fit(plan_of(most))) return true;
  outcome.misfits += own.recomputes_nothing ? 1 : 0;
  for (const Recomputation& one : own.recomputations)
    outcome.misfits += own.steps(plan_of(candidate.setting), one);
  return false;
}

void Search::bound(Evaluator& evaluator, Candidate& candidate, Outcome& outcome) {
  candidate.stage = Stage::kOpen;
  try {
    // A family is bounded as one, which is worth it where some plan of it may fit.
    const bool is_family = plan_of(candidate.setting).parallel.pp == 1;
    if (is_family && !may_fit(evaluator, candidate, outcome)) {
      candidate.stage = Stage::kGone;
      candidate.hopeless = true;
      return;
    }
    // Recomputation takes more time, but less memory: nothing is known of that yet.
    if (options_.criteria.objective == Objective::kHeadroom) return;
    candidate.key = std::max(
        candidate.key,
        evaluator.least_score(plan_of(candidate.setting), family_of(candidate.setting, kNothing)));
  } catch (const InvalidPlan&) {
    candidate.stage = Stage::kGone;  // makes no sense with this batch
  }
}

/// Settings, so that those are neighbours whose units are alike: one thread times them once.
std::vector<std::uint32_t> Search::by_units() const {
  std::vector<std::uint32_t> order(settings_.size());
  std::iota(order.begin(), order.end(), 0U);
  if (pool_.size() == 1) return order;
  const auto units = [this](std::uint32_t setting) {
    const Plan& plan = plan_of(setting);
    const Parallelism& p = plan.parallel;
    return std::make_tuple(settings_[setting].framework, p.replica() * p.ep > 1, p.tp, p.cp, p.ep,
                           p.etp, plan.micro_batch);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return units(a) < units(b); });
  return order;
}

void Search::bound_all() {
  candidates_.resize(settings_.size());
  for (std::uint32_t i = 0; i < candidates_.size(); ++i) candidates_[i].setting = i;
  const std::vector<std::uint32_t> order = by_units();
  for (std::size_t first = 0; first < order.size(); first += kPlansPerRound) {
    if (first > 0 && stopped()) {
      cut_short_ = true;
      for (std::size_t i = first; i < order.size(); ++i) candidates_[order[i]].stage = Stage::kGone;
      return;
    }
    std::vector<Outcome> outcomes(std::min(kPlansPerRound, order.size() - first));
    const auto work = [&](std::size_t worker, std::size_t i) {
      Candidate& candidate = candidates_[order[first + i]];
      bound(evaluator(worker, candidate.setting), candidate, outcomes[i]);
    };
    try {
      pool_.run(outcomes.size(), work, kPlansInARow);
    } catch (const SearchEnded&) {
      cut_short_ = true;
      for (std::size_t i = first; i < order.size(); ++i) candidates_[order[i]].stage = Stage::kGone;
      return;
    }
    for (const Outcome& outcome : outcomes) counts_.no_memory += outcome.misfits;
    tell("bounding");
  }
}

std::optional<Search::Candidate> Search::fewest(Evaluator& evaluator, Candidate of,
                                                std::int32_t step, Bytes limit, Outcome& outcome) {
  const std::uint64_t family = family_of(of.setting, of.policy);
  const auto memory_at = [&](std::int32_t at) {
    of.step = at;
    return evaluator.least_memory(plan_of(of), family);
  };
  const auto beyond = [limit](const Evaluator::LeastMemory& memory) {
    return std::max(memory.excess_bytes, memory.bytes - limit);
  };
  std::int32_t high = steps(of);
  if (step > high) return std::nullopt;
  Evaluator::LeastMemory memory = memory_at(high);
  if (beyond(memory) > 0) {
    outcome.misfits += high - step + 1;
    outcome.shortages.push_back({memory.excess_bytes, high, of.policy});
    return std::nullopt;
  }
  std::int32_t low = step - 1;  // too few
  std::optional<Bytes> over;    // there, once it is known
  for (int guesses = 0; low + 1 < high; ++guesses) {
    const std::int32_t guess =
        guesses == 0 ? step : guess_between(low, high, *over, beyond(memory), guesses % 3 == 0);
    const Evaluator::LeastMemory there = memory_at(guess);
    if (beyond(there) <= 0) {
      high = guess;
      memory = there;
    } else {
      low = guess;
      over = beyond(there);
    }
  }
  outcome.misfits += high - step;
  of.step = high;
  of.stage = Stage::kBounded;
  of.bytes = memory.bytes;
  of.key = std::max(of.key, evaluator.least_score(plan_of(of), family));
  return of;
}

void Search::open_policies(Evaluator& evaluator, const Candidate& candidate, Outcome& outcome) {
  const auto policies = static_cast<std::int16_t>(space(candidate.setting).recomputations.size());
  const bool most =
      options_.criteria.objective == Objective::kHeadroom && !settings_[candidate.setting].replays;
  for (std::int16_t policy = 0; policy < policies; ++policy) {
    Candidate of = candidate;
    of.policy = policy;
    of.spare = candidate.stage == Stage::kRest;
    std::optional<Candidate> first = fewest(evaluator, of, most ? steps(of) : 1, kFits, outcome);
    while (first) {
      outcome.next.push_back(*first);
      if (options_.criteria.objective != Objective::kHeadroom) break;
      // Bytes fall as layers are added, so none bounds those that follow.
      outcome.next.back().followed = true;
      first = fewest(evaluator, of, first->step + 1, kFits, outcome);
    }
  }
}

void Search::open(Evaluator& evaluator, const Candidate& candidate, Outcome& outcome) {
  if (space(candidate.setting).recomputes_nothing) {
    const Evaluator::LeastMemory memory =
        evaluator.least_memory(plan_of(candidate.setting), family_of(candidate.setting, kNothing));
    if (memory.excess_bytes <= 0) {
      Candidate nothing = candidate;
      nothing.stage = Stage::kBounded;
      nothing.followed = true;
      nothing.bytes = memory.bytes;
      if (options_.criteria.objective == Objective::kHeadroom)
        nothing.key = static_cast<double>(memory.bytes);
      outcome.next.push_back(nothing);
      const Setting& setting = settings_[candidate.setting];
      if (setting.spares && !setting.replays) {  // it fits, so nothing else is wanted
        outcome.next.push_back(candidate);
        outcome.next.back().stage = Stage::kRest;
        return;
      }
    } else {
      ++outcome.misfits;
      outcome.shortages.push_back({memory.excess_bytes, 0, kNothing});
    }
  }
  open_policies(evaluator, candidate, outcome);
}

/// The plan that recomputes one step more than this one.
void Search::follow(Evaluator& evaluator, const Candidate& candidate, Bytes limit,
                    Outcome& outcome) {
  Candidate of = candidate;
  of.spare = true;
  Outcome aside;  // those left out are larger than somebody wants, not than memory
  if (const auto next = fewest(evaluator, of, candidate.step + 1, limit, aside))
    outcome.next.push_back(*next);
}

Search::Outcome Search::look(std::size_t worker, const Candidate& candidate, bool sparing,
                             Bytes limit) {
  Outcome outcome;
  Evaluator& own = evaluator(worker, candidate.setting);
  if (candidate.stage == Stage::kPromised) {
    outcome.next.push_back(candidate);
    bound(own, outcome.next.back(), outcome);
    return outcome;
  }
  if (candidate.stage == Stage::kOpen) {
    open(own, candidate, outcome);
    return outcome;
  }
  if (candidate.stage == Stage::kRest) {
    open_policies(own, candidate, outcome);
    return outcome;
  }
  if (!candidate.followed && !sparing) follow(own, candidate, limit, outcome);
  if (candidate.bytes > limit || judged_.contains(key_of(candidate))) return outcome;
  const Plan plan = plan_of(candidate);
  if (candidate.stage == Stage::kBounded && settings_[candidate.setting].replays) {
    outcome.score = own.simulate(plan);
  } else {
    outcome.judgement = own.judge_whether_fits(plan);
  }
  return outcome;
}

void Search::look_at(const std::vector<std::uint32_t>& batch, bool sparing, Bytes limit) {
  std::vector<std::optional<Outcome>> outcomes(batch.size());
  pool_.run(batch.size(), [&](std::size_t worker, std::size_t i) {
    if (i > 0 && stopped()) return;  // it stays as it is
    const Candidate& candidate = candidates_[batch[i]];
    try {
      outcomes[i] = look(worker, candidate, sparing && settings_[candidate.setting].spares, limit);
    } catch (const SearchEnded&) {
    }
  });
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (!outcomes[i]) continue;
    Candidate& candidate = candidates_[batch[i]];
    if (!(sparing && settings_[candidate.setting].spares)) candidate.followed = true;
    take(batch[i], *std::move(outcomes[i]));
  }
  tell("simulating");
}

void Search::take(std::uint32_t index, Outcome outcome) {
  const Candidate candidate = candidates_[index];
  counts_.no_memory += outcome.misfits;
  for (const Shortage& shortage : outcome.shortages) note(candidate.setting, shortage);
  if (candidate.stage <= Stage::kRest) {
    candidates_[index].stage = Stage::kGone;
  } else if (outcome.score) {
    count_simulated(candidate);
    candidates_[index].stage = Stage::kSimulated;
    candidates_[index].key = std::max(candidate.key, *outcome.score);
  } else {
    if (outcome.judgement) keep(candidate, *std::move(outcome.judgement));
    const auto known = judged_.find(key_of(candidate));
    if (known != judged_.end()) {
      Candidate& now = candidates_[index];
      now.stage = known->second ? Stage::kJudged : Stage::kGone;
      if (known->second) {
        now.key = std::max(now.key, known->second->score);
        now.bytes = known->second->prediction.memory.total_bytes;
      }
    }
  }
  candidates_.insert(candidates_.end(), outcome.next.begin(), outcome.next.end());
}

void Search::count_simulated(const Candidate& candidate) {
  counts_.simulated += simulated_.insert(key_of(candidate)).second ? 1 : 0;
}

bool Search::keep(const Candidate& candidate, Judgement judgement) {
  count_simulated(candidate);
  ++counts_.predicted;
  std::optional<Judgement>& kept = judged_[key_of(candidate)];
  if (!judgement.fits) {
    ++counts_.no_reserve;
    if (judgement.complete) {
      note(candidate.setting, {judgement.excess_bytes, candidate.step, candidate.policy});
    } else {
      unmeasured_.push_back(candidate);
    }
    return false;
  }
  kept = std::move(judgement);
  end_.has_plan = true;
  if (best_so_far_ == nullptr || kept->score < best_so_far_->score) best_so_far_ = &*kept;
  return true;
}

void Search::note(std::uint32_t setting, const Shortage& shortage) {
  if (shortage.excess_bytes < shortages_[setting].excess_bytes) shortages_[setting] = shortage;
}

const Judgement* Search::judged(const Candidate& c) const {
  const auto known = judged_.find(key_of(c));
  return known == judged_.end() || !known->second ? nullptr : &*known->second;
}

Found Search::found(const Candidate& candidate) const {
  const Judgement& judgement = *judged(candidate);
  return {judgement.prediction, judgement.score, settings_[candidate.setting].framework};
}

std::optional<Found> Search::best_so_far(const Wanted& wanted) const {
  std::optional<Found> best;
  for (const auto& [key, judgement] : judged_) {
    const auto setting = static_cast<std::uint32_t>(key >> 32U);
    if (!judgement || (wanted && !wanted(plan_of(setting)))) continue;
    if (!best || judgement->score < best->score)
      best = Found{judgement->prediction, judgement->score, settings_[setting].framework};
  }
  return best;
}

bool Search::is_spare(const Candidate& candidate) const {
  if (!settings_[candidate.setting].spares) return false;
  if (candidate.spare || candidate.stage == Stage::kRest) return true;
  const auto at = settled_.find(family_of(candidate.setting, candidate.policy));
  return at != settled_.end() && at->second != candidate.step;
}

std::vector<Judgement> Search::judge(const std::vector<Plan>& plans, std::size_t framework) {
  std::vector<Judgement> judgements(plans.size());
  pool_.run(plans.size(), [&](std::size_t worker, std::size_t i) {
    judgements[i] = evaluators_[worker][framework].judge(plans[i]);
  });
  return judgements;
}

/// By how much those plans do not fit of which it is known only that they do not: whose replay
/// ended with that, or whose setting leaves no way.
void Search::measure_shortages(const Wanted& wanted) {
  for (const Candidate& candidate : candidates_) {
    const std::uint32_t setting = candidate.setting;
    if (!candidate.hopeless || shortages_[setting].excess_bytes != kFits ||
        (wanted && !wanted(plan_of(setting)))) {
      continue;
    }
    Outcome outcome;
    open(evaluator(0, setting), candidate, outcome);
    for (const Shortage& shortage : outcome.shortages) note(setting, shortage);
  }
  std::vector<Judgement> judgements(unmeasured_.size());
  pool_.run(unmeasured_.size(), [&](std::size_t worker, std::size_t i) {
    const Candidate& candidate = unmeasured_[i];
    judgements[i] = evaluator(worker, candidate.setting).judge(plan_of(candidate));
  });
  for (std::size_t i = 0; i < unmeasured_.size(); ++i) {
    note(unmeasured_[i].setting,
         {judgements[i].excess_bytes, unmeasured_[i].step, unmeasured_[i].policy});
  }
  unmeasured_.clear();
}

/// Of a setting, what was noted, or by how much nothing and all that is recomputed go beyond memory
/// where that was only known to be at least so much.
std::vector<std::pair<Bytes, Search::Candidate>> Search::shortages_of(std::uint32_t setting) {
  const Shortage& noted = shortages_[setting];
  Candidate candidate;
  candidate.setting = setting;
  candidate.policy = noted.policy;
  candidate.step = noted.step;
  std::vector<std::pair<Bytes, Candidate>> found;
  const auto add = [&] {
    const Plan plan = plan_of(candidate);
    const Bytes excess = evaluator(0, setting).least_memory(plan).excess_bytes;
    found.emplace_back(excess > 0 ? excess : noted.excess_bytes, candidate);
  };
  add();
  for (std::size_t policy = 0; policy < space(setting).recomputations.size(); ++policy) {
    candidate.policy = static_cast<std::int16_t>(policy);
    candidate.step = steps(candidate);
    add();
  }
  return found;
}

std::optional<Overshoot> Search::nearest(const Wanted& wanted) try {
  measure_shortages(wanted);
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < settings_.size(); ++i) {
    if (shortages_[i].excess_bytes != kFits && (!wanted || wanted(plan_of(i)))) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
    return shortages_[a].excess_bytes < shortages_[b].excess_bytes;
  });
  std::optional<std::pair<Bytes, Candidate>> least;
  for (const std::uint32_t i : order) {
    if (least && shortages_[i].excess_bytes >= least->first) break;
    for (const auto& [excess, candidate] : shortages_of(i)) {
      if (!least || excess < least->first) least = {excess, candidate};
    }
  }
  if (!least) return std::nullopt;
  const Candidate& closest = least->second;
  const Plan plan = plan_of(closest);
  return Overshoot{plan, evaluator(0, closest.setting).judge(plan).excess_bytes,
                   settings_[closest.setting].framework};
} catch (const SearchEnded&) {
  return std::nullopt;
}

}  // namespace shardwright::tuner
