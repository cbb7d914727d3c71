// SPDX-License-Identifier: Apache-2.0
// What the search knows of its candidates and how it learns more: bounds of all plans that
// recompute nothing first, then, for those that are asked about, the ways to recompute,
// simulations and full predictions. Best decides who is asked about, the others how
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
#include <set>
#include <tuple>
#include <utility>

#include "sim/core/base/error.h"
#include "tuner/search/robustness.h"
#include "tuner/search/space.h"

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

/// Moved into place, as items of an initializer list are not.
template <typename Item>
std::vector<Item> only(Item item) {
  std::vector<Item> items;
  items.push_back(std::move(item));
  return items;
}

}  // namespace

Search::Search(const Model& model, std::vector<Scenario> scenarios, Space space,
               const SearchOptions& options)
    : Search(
          model,
          only<FrameworkPlans>({std::move(scenarios), std::move(space), options.criteria.headroom}),
          options) {}

Search::Search(const Model& model, Scenario scenario, Space space, const SearchOptions& options)
    : Search(model, only(std::move(scenario)), std::move(space), options) {}

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
    const bool sparing =
        criteria.objective != Objective::kHeadroom && !criteria.recompute_for_speed;
    const bool is_static =
        framework.scenarios.front().profile.stack.memory == MemoryManager::kStatic;
    for (std::size_t i = 0; i < framework.space.plans.size(); ++i) {
      const Plan& plan = framework.space.plans[i];
      const bool replays = evaluators_.front()[f].replays(plan);
      settings_.push_back({static_cast<std::uint32_t>(i), static_cast<std::uint16_t>(f), replays,
                           replays && is_static, sparing && (replays || !is_static)});
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
  if (evaluator.least_memory_or_too_much(plan_of(most)).excess_bytes <= 0) return true;
  outcome.misfits += own.recomputes_nothing ? 1 : 0;
  for (const Recomputation& one : own.recomputations)
    outcome.misfits += own.steps(plan_of(candidate.setting), one);
  return false;
}

bool Search::is_pipeline(const Candidate& candidate) const {
  return plan_of(candidate.setting).parallel.pp > 1;
}

void Search::bound(Evaluator& evaluator, Candidate& candidate, Outcome& outcome) {
  candidate.stage = Stage::kOpen;
  try {
    // A family is bounded as one, which is worth it where some plan of it may fit.
    if (!is_pipeline(candidate) && !may_fit(evaluator, candidate, outcome)) {
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
  const auto memory_at = [&](std::int32_t at) {
    of.step = at;
    return evaluator.least_memory_or_too_much(plan_of(of));
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
  of.key = std::max(of.key, evaluator.least_score(plan_of(of), family_of(of.setting, of.policy)));
  return of;
}

void Search::open_policies(Evaluator& evaluator, const Candidate& candidate, Outcome& outcome) {
  const auto policies = static_cast<std::int16_t>(space(candidate.setting).recomputations.size());
  const bool saves = options_.criteria.objective == Objective::kHeadroom;
  const bool most = saves && !settings_[candidate.setting].replays;
  for (std::int16_t policy = 0; policy < policies; ++policy) {
    Candidate of = candidate;
    of.policy = policy;
    of.spare = candidate.stage == Stage::kRest;
    if (is_pipeline(candidate) && !saves) {  // its time is known sooner than its memory
      if (steps(of) == 0) continue;
      of.step = 1;
      of.stage = Stage::kPolicy;
      of.key = std::max(of.key,
                        evaluator.least_score(plan_of(of), family_of(candidate.setting, policy)));
      outcome.next.push_back(of);
      continue;
    }
    std::optional<Candidate> first = fewest(evaluator, of, most ? steps(of) : 1, kFits, outcome);
    while (first) {
      outcome.next.push_back(*first);
      if (!saves) break;
      // Bytes fall as layers are added, so none bounds those that follow.
      outcome.next.back().followed = true;
      first = fewest(evaluator, of, first->step + 1, kFits, outcome);
    }
  }
}

void Search::open(Evaluator& evaluator, const Candidate& candidate, Outcome& outcome) {
  if (space(candidate.setting).recomputes_nothing) {
    const Evaluator::LeastMemory memory =
        evaluator.least_memory_or_too_much(plan_of(candidate.setting));
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
  if (candidate.stage == Stage::kPolicy) {
    if (const auto first = fewest(own, candidate, candidate.step, kFits, outcome))
      outcome.next.push_back(*first);
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
  if (candidate.stage <= Stage::kPolicy) {
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
  if (candidate.stage == Stage::kPolicy) return false;
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

// Which plans are best, and why nothing can be better.
//
// Every candidate has a key that is never above the score of its full prediction, nor above the key
// of what it opens into, and only rises. The queue holds candidates by key. The one in front
// decides what happens next:
//
//   kDrop     its kind has been reported, or it recomputes more than is wanted: it goes.
//   kSettle   it is about to be judged or reported, and nobody knows yet how many layers must be
//             recomputed: that is found first, which may put another one in its place.
//   kReport   it is judged. Its key is its score, all other keys are no lower, and scores are never
//             below keys: no plan that is left can be better. It is an answer.
//   kLook     it is only promised to be good. It leaves the queue for the batch, where it waits for
//             its next dearer judgement, or to be opened.
//   kWorkOff  something is to be decided on the strength of the front while candidates are in the
//             batch, whose new keys may put one of them in front; or the batch is full. All of the
//             batch are looked at, and who was not rejected returns to the queue.
//
// The batch is there for the threads. Whoever joins it stood in front, so it would have been looked
// at sooner or later unless one before it in the batch turns out to be an answer; rounds have fixed
// sizes, small where judging is dear, so that little is wasted and the answer and its counts do not
// depend on the number of threads.

namespace {

constexpr std::size_t kLooksPerJudgement = 8;

auto kind_of(const Plan& plan, Recomputation recomputation) {
  const Parallelism& p = plan.parallel;
  Batch batch{plan.micro_batch, plan.grad_accum};
  if (p.replica() * p.ep > 1) {  // what fits one way to share a replica does not fit another
    batch = {};
    recomputation = {};
  }
  return std::make_tuple(plan.strategy, plan.shard_group, p.tp, p.pp, p.cp, p.ep, p.etp,
                         batch.micro_batch, batch.grad_accum, recomputation.recompute,
                         recomputation.pieces, plan.reduce_dtype, plan.master_dtype,
                         plan.moment_dtype, plan.numerics.precision, plan.numerics.optimizer);
}
using Kind = decltype(kind_of(Plan{}, {}));

}  // namespace

bool different(const Plan& a, const Plan& b) {
  return kind_of(a, {a.recompute, a.pieces}) != kind_of(b, {b.recompute, b.pieces});
}

class Search::Best {
 public:
  struct Terms {
    std::size_t count = 1;
    std::optional<double> below = std::nullopt;
    bool sparing = true;
    double step = 0;  // of memory, that each answer takes less than the one before; 0: of any kind
  };

  Best(Search& search, const Terms& terms, const Wanted& wanted)
      : search_(search), terms_(terms), wanted_(wanted) {
    for (std::uint32_t i = 0; i < search_.candidates_.size(); ++i) {
      if (candidate(i).stage == Stage::kGone) continue;
      if (is_wanted(i)) queue_.push_back(i);
    }
    std::make_heap(queue_.begin(), queue_.end(), later_);
  }

  std::vector<Found> run() {
    while (answers_.size() < terms_.count && (!queue_.empty() || !batch_.empty())) {
      if (search_.stopped()) {
        search_.cut_short_ = true;
        answer_in_a_hurry();
        if (!answers_.empty() || search_.end_.is_given_up()) break;
      }
      const Move move = next_move();
      if (move == Move::kEnd) break;
      try {
        make(move);
      } catch (const SearchEnded&) {
        search_.cut_short_ = true;
        answer_in_a_hurry();
        break;
      }
    }
    return std::move(answers_);
  }

 private:
  enum class Move : std::uint8_t { kDrop, kSettle, kReport, kLook, kWorkOff, kEnd };

  const Candidate& candidate(std::uint32_t i) const { return search_.candidates_[i]; }
  const Setting& setting(std::uint32_t i) const { return search_.settings_[candidate(i).setting]; }
  bool is_wanted(std::uint32_t i) const {
    return !wanted_ || wanted_(search_.plan_of(candidate(i).setting));
  }
  bool spares(std::uint32_t i) const { return terms_.sparing && setting(i).spares; }

  Kind kind(std::uint32_t i) const {
    const Candidate& c = candidate(i);
    if (c.policy == kNothing) return kind_of(search_.plan_of(c.setting), {Recompute::kNone, 0});
    return kind_of(search_.plan_of(c.setting),
                   search_.space(c.setting).recomputations[static_cast<std::size_t>(c.policy)]);
  }

  /// Whether looking at a candidate means judging it.
  bool is_judged_next(std::uint32_t i) const {
    const Stage stage = candidate(i).stage;
    return stage == Stage::kSimulated || (stage == Stage::kBounded && !setting(i).replays);
  }

  bool is_dropped(std::uint32_t i) const {
    const Candidate& c = candidate(i);
    if (c.stage == Stage::kGone) return true;
    if (spares(i) && search_.is_spare(c)) return true;
    if (terms_.step > 0) return c.bytes > limit_ && c.followed && c.stage > Stage::kRest;
    return !closed_.empty() && (c.stage > Stage::kRest || is_shared(i)) &&
           closed_.contains(kind(i));
  }
  /// Whether recomputation does not tell plans of this setting apart.
  bool is_shared(std::uint32_t i) const {
    const Parallelism& p = search_.plan_of(candidate(i).setting).parallel;
    return p.replica() * p.ep > 1;
  }

  Move next_move() const {
    if (queue_.empty()) return Move::kWorkOff;
    const std::uint32_t i = queue_.front();
    const Candidate& front = candidate(i);
    if (terms_.below && front.key >= *terms_.below)
      return batch_.empty() ? Move::kEnd : Move::kWorkOff;
    if (is_dropped(i)) return Move::kDrop;
    const bool judged = front.stage == Stage::kJudged;
    const bool judges = is_judged_next(i);
    const bool settles = spares(i) && setting(i).replays && front.policy != kNothing &&
                         (judged || judges) && !search_.is_settled(front);
    const auto looks = static_cast<std::size_t>(search_.options_.looks_per_round);
    const bool full =
        batch_.size() >= looks ||
        (judges && judgements_ >= std::max<std::size_t>(1, looks / kLooksPerJudgement));
    if (!batch_.empty() && (judged || settles || full)) return Move::kWorkOff;
    if (settles) return Move::kSettle;
    // One that takes too much of the memory is looked at for those that follow it.
    if (judged && front.bytes <= limit_) return Move::kReport;
    return Move::kLook;
  }

  void make(Move move) {
    switch (move) {
      case Move::kDrop:
        pop();
        return;
      case Move::kSettle:
        settle();
        return;
      case Move::kReport:
        report(pop());
        return;
      case Move::kLook:
        judgements_ += is_judged_next(queue_.front()) ? 1 : 0;
        batch_.push_back(pop());
        return;
      case Move::kWorkOff:
        work_off();
        return;
      case Move::kEnd:
        return;
    }
  }

  std::uint32_t pop() {
    std::pop_heap(queue_.begin(), queue_.end(), later_);
    const std::uint32_t front = queue_.back();
    queue_.pop_back();
    return front;
  }
  void push(std::uint32_t i) {
    queue_.push_back(i);
    std::push_heap(queue_.begin(), queue_.end(), later_);
  }

  void report(std::uint32_t i) {
    answers_.push_back(search_.found(candidate(i)));
    if (terms_.step > 0) {
      limit_ = static_cast<Bytes>(static_cast<double>(candidate(i).bytes) * (1 - terms_.step));
      if (!candidate(i).followed) push(i);  // for those that follow
    } else {
      closed_.insert(kind(i));
    }
  }

  void settle() {
    const auto count = static_cast<std::uint32_t>(search_.candidates_.size());
    const std::uint32_t front = queue_.front();
    search_.settled(candidate(front).setting, candidate(front).policy);
    for (auto i = count; i < search_.candidates_.size(); ++i) {
      if (is_wanted(i)) push(i);
    }
  }

  void work_off() {
    const auto count = static_cast<std::uint32_t>(search_.candidates_.size());
    search_.look_at(batch_, terms_.sparing, limit_);
    for (const std::uint32_t i : batch_) {
      if (candidate(i).stage != Stage::kGone) push(i);
    }
    for (auto i = count; i < search_.candidates_.size(); ++i) push(i);
    batch_.clear();
    judgements_ = 0;
  }

  /// Stopped: what has been predicted in full is good, though perhaps not the best.
  void answer_in_a_hurry() {
    std::vector<std::uint32_t> left;
    for (const std::vector<std::uint32_t>* from : {&batch_, &queue_}) {
      for (const std::uint32_t i : *from) {
        if (candidate(i).stage == Stage::kJudged) left.push_back(i);
      }
    }
    std::sort(left.begin(), left.end(), [this](auto a, auto b) { return later_(b, a); });
    for (const std::uint32_t i : left) {
      if (answers_.size() >= terms_.count) return;
      if (!is_dropped(i)) report(i);
    }
    if (!answers_.empty()) return;
    if (std::optional<Found> found = search_.best_so_far(wanted_))
      answers_.push_back(std::move(*found));
  }

  struct Later {
    const std::vector<Candidate>& candidates;
    bool operator()(std::uint32_t a, std::uint32_t b) const {
      const Candidate &x = candidates[a], &y = candidates[b];
      return std::tie(x.key, x.bytes, x.setting, x.policy, x.step) >
             std::tie(y.key, y.bytes, y.setting, y.policy, y.step);
    }
  };

  Search& search_;
  Terms terms_;
  const Wanted& wanted_;
  Later later_{search_.candidates_};
  Bytes limit_ = std::numeric_limits<Bytes>::max();
  std::set<Kind> closed_;             // reported already
  std::vector<std::uint32_t> queue_;  // a heap, the best in front
  std::vector<std::uint32_t> batch_;
  std::size_t judgements_ = 0;  // of the batch
  std::vector<Found> answers_;
};

std::vector<Found> Search::best(std::size_t count, const Wanted& wanted,
                                std::optional<double> below) {
  // Where every pass of a pipeline has to be given its place, plans of one stage are judged much
  // sooner: the best of them is known first, so that whoever stops the search has an answer.
  const bool places = std::any_of(settings_.begin(), settings_.end(),
                                  [](const Setting& one) { return one.places; });
  if (places && !end_.has_plan) {
    const auto of_one_stage = [&wanted](const Plan& plan) {
      return plan.parallel.pp == 1 && (!wanted || wanted(plan));
    };
    Best(*this, {1, below}, of_one_stage).run();
  }
  return Best(*this, {count, below}, wanted).run();
}

std::vector<Found> Search::pareto(const Wanted& wanted, std::size_t most, double step) {
  return Best(*this, {most, std::nullopt, false, step}, wanted).run();
}

// How many layers a policy must recompute where only the replay of the allocator can tell.
//
// Replays are most of what a search costs where little fits, so most plans of a policy are never
// replayed: memory falls with every layer that is recomputed. The allocator alone may turn that
// round, by a few layers near the edge, which are replayed; whatever lies beyond them does as they
// do. tests/tuner/search_test.cc replays all of them. A replay ends as soon as it shows that its
// plan does not fit; by how much is asked only where nothing fits.

namespace {

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

/// The step that recomputes least and fits, `of` the first whose bound does. Memory falls with
/// every layer but for what the allocator makes of it, which a few layers more or less decide:
/// those next to the edge are replayed one by one, the others are taken to do as the edge does.
std::optional<std::int32_t> Search::least_that_fits(const Candidate& of) {
  const std::int32_t begin = of.step, end = steps(of) + 1;
  if (const auto fits = first_that_fits(of, begin, begin + 1)) return fits;
  std::optional<std::int32_t> some = first_that_fits(of, end - 1, end);
  if (!some) some = first_that_fits(of, std::max(begin, end - kStepsAtEdge), end - 1);
  if (!some) return std::nullopt;
  std::int32_t low = begin + 1, found = *some;
  while (low < found && !stopped()) {
    const std::int32_t middle = low + (found - low) / 2;
    if (first_that_fits(of, middle, middle + 1)) {
      found = middle;
    } else {
      low = middle + 1;
    }
  }
  return first_that_fits(of, found - std::min(found - begin, kStepsAtEdge), found).value_or(found);
}

/// None is wanted of a policy when the same plan without recomputation fits. Otherwise the plan
/// that is becomes a candidate.
std::optional<std::int32_t> Search::settled(std::uint32_t setting, std::int16_t policy) {
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
        evaluator(0, setting).least_memory_or_too_much(plan_of(setting)).excess_bytes <= 0;
    if (may_fit) least = first_that_fits(of, 0, 1);
  } else {
    if (settled(setting, kNothing)) return std::nullopt;
    Outcome aside;
    first = fewest(evaluator(0, setting), of, 1, kFits, aside);
    if (first) {
      least = least_that_fits(*first);
      // Those that were not replayed are taken not to fit, since others do not.
      const std::int32_t end = least.value_or(steps(of) + 1);
      for (of.step = first->step; of.step < end && !stopped(); ++of.step) {
        if (!judged_.try_emplace(key_of(of)).second) continue;
        ++counts_.no_memory;
      }
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

FrameworkPlans plans_of(const Request& request, const Model& model,
                        const std::vector<Scenario>& scenarios, double headroom) {
  return {scenarios, space_of(request, model, scenarios.front().profile), headroom};
}

std::vector<FrameworkPlans> plans_of(const Request& request, const Model& model,
                                     const std::vector<Framework>& frameworks, bool robust) {
  std::vector<FrameworkPlans> plans;
  std::optional<InvalidPlan> first_error;
  for (const Framework& framework : frameworks) {
    Request own = request;
    if (&framework != &frameworks.front()) own.stack = framework.profile->stack.id;
    try {
      plans.push_back(
          plans_of(own, model, scenarios_of(*framework.profile, robust), framework.headroom));
    } catch (const InvalidPlan& error) {
      if (!first_error) first_error = error;
    }
  }
  if (plans.empty()) throw *first_error;
  return plans;
}

Search::Wanted of_framework(const FrameworkPlans& framework) {
  return [stack = framework.space.base.stack](const Plan& plan) { return plan.stack == stack; };
}

bool shares_data_alone(const Plan& plan, const Model& model, const FrameworkPlans& framework) {
  return plan.stack == framework.space.base.stack &&
         shares_data_alone(features_of(plan), model, framework.scenarios.front().profile.stack);
}

}  // namespace shardwright::tuner
