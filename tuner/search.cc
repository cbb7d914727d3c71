// SPDX-License-Identifier: Apache-2.0
// What the search knows of its candidates and how it learns more: bounds of whole families first,
// then, for those that are asked about, simulations and full predictions (sharpen), and the number
// of layers that a family must recompute (settle). search_best.cc decides who is asked about.
//
// Three judgements of a plan, each dearer than the last by an order of magnitude: the closed form
// costs a microsecond a plan, since a family of plans that differ in their checkpointed layers is
// lowered twice and the rest are straight lines; the simulated step costs tens of microseconds; the
// full prediction replays the allocator. None is ever below the one before, so a candidate's key,
// the largest of those that were made, only rises.
//
// Replays are most of what a search costs where little fits, so most plans of a family are never
// replayed: memory falls with every layer that is recomputed. The allocator alone may turn that
// round, by a few layers near the edge, which are replayed (settle); whatever lies beyond them does
// as they do. tests/tuner/search_test.cc replays all of them. A replay ends as soon as it shows
// that its plan does not fit; by how much is asked only where nothing fits.
#include "tuner/search.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace shardwright::tuner {

namespace {

constexpr std::size_t kFamiliesPerRound = 256;
constexpr std::size_t kFamiliesInARow = 16;  // by one thread: neighbours share a schedule
constexpr std::uint32_t kLayersAtOnce = 2;   // replayed, one for each of two threads
constexpr std::uint32_t kLayersAtEdge = 4;
constexpr double kParetoStep = 0.005;
constexpr Bytes kFits = std::numeric_limits<Bytes>::max();

auto kind_of(const Plan& plan) {
  return std::make_tuple(plan.strategy, plan.shard_group, plan.micro_batch, plan.grad_accum,
                         plan.recompute, plan.pieces, plan.reduce_dtype, plan.master_dtype,
                         plan.moment_dtype);
}

Plan without_recomputation(Plan plan) {
  plan.recompute = Recompute::kNone;
  plan.pieces = 0;
  return plan;
}

}  // namespace

bool different(const Plan& a, const Plan& b) {
  return kind_of(a) != kind_of(b);
}

Search::Search(const Model& model, const std::vector<Scenario>& scenarios, const Space& space,
               const SearchOptions& options)
    : model_(model),
      scenarios_(scenarios),
      options_(options),
      begin_(std::chrono::steady_clock::now()),
      told_(begin_),
      families_(families_of(space, model, scenarios.front().profile)),
      pool_(options.threads) {
  for (std::size_t i = 0; i < pool_.size(); ++i)
    evaluators_.push_back(std::make_unique<Evaluator>(model_, scenarios_, options_.criteria));
  std::map<decltype(kind_of(Plan{})), std::size_t> kinds;
  for (const Family& family : families_)
    kinds_.push_back(kinds.emplace(kind_of(family.plan), kinds.size()).first->second);
  bound_all();
}

Search::~Search() = default;

bool Search::stopped() const {
  return cut_short_ || (options_.stop != nullptr && options_.stop->load());
}

void Search::tell(const char* doing) {
  if (!options_.progress) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - told_ < std::chrono::milliseconds(50)) return;
  told_ = now;
  options_.progress({doing, counts_.considered, std::chrono::duration<double>(now - begin_).count(),
                     best_so_far_ ? &best_so_far_->prediction : nullptr});
}

void Search::bound_all() {
  overshoots_.resize(families_.size());
  std::vector<Bounds> bounds;
  for (std::size_t first = 0; first < families_.size(); first += kFamiliesPerRound) {
    // Not before there is something to answer with.
    if (!candidates_.empty() && stopped()) {
      cut_short_ = true;
      break;
    }
    const std::size_t count = std::min(kFamiliesPerRound, families_.size() - first);
    bounds.assign(count, {});
    pool_.run(
        count,
        [&](std::size_t worker, std::size_t i) {
          bounds[i] = evaluators_[worker]->bound(families_[first + i].plan);
        },
        kFamiliesInARow);
    for (std::size_t i = 0; i < count; ++i) collect(first + i, bounds[i]);
    tell("bounding");
  }
  while (first_candidate_.size() <= families_.size())
    first_candidate_.push_back(static_cast<std::uint32_t>(candidates_.size()));
  fewest_layers_.assign(families_.size(), kNotSettled);
}

void Search::collect(std::size_t f, const Bounds& bounds) {
  const Family& family = families_[f];
  const double usable = static_cast<double>(
      scenarios_.front().profile.cluster.memory_bytes_per_rank(family.plan.gpus));
  const auto allowed = static_cast<Bytes>(usable * (1 - options_.criteria.headroom));
  overshoots_[f] = {family.plan, kFits};
  first_candidate_.push_back(static_cast<std::uint32_t>(candidates_.size()));
  counts_.considered += family.size();
  for (std::int64_t k = family.least; k <= family.most; ++k) {
    const auto i = static_cast<std::size_t>(k);
    if (bounds.may_fit[i]) {
      candidates_.push_back({bounds.score[i], bounds.total_bytes[i], static_cast<std::uint32_t>(f),
                             static_cast<std::int32_t>(k), Stage::kBounded});
      continue;
    }
    ++counts_.no_memory;
    const Bytes excess = bounds.total_bytes[i] - allowed;
    if (excess < overshoots_[f].excess_bytes) overshoots_[f] = {family.at(k), excess};
  }
}

Plan Search::plan_of(const Candidate& candidate) const {
  return families_[candidate.family].at(candidate.ckpt_layers);
}

void Search::reject(Candidate& candidate, Bytes excess_bytes) {
  candidate.stage = Stage::kRejected;
  Overshoot& least = overshoots_[candidate.family];
  if (excess_bytes < least.excess_bytes) least = {plan_of(candidate), excess_bytes};
}

bool Search::take(std::uint32_t index, Judgement judgement) {
  Candidate& candidate = candidates_[index];
  ++counts_.predicted;
  if (!judgement.fits) {
    ++counts_.no_reserve;
    if (judgement.complete) {
      reject(candidate, judgement.excess_bytes);
    } else {
      candidate.stage = Stage::kRejected;
      unmeasured_.push_back(index);
    }
    return false;
  }
  candidate.stage = Stage::kJudged;
  candidate.key = std::max(candidate.key, judgement.score);
  judged_[index] = std::move(judgement);
  if (!best_so_far_ || candidate.key < best_so_far_->score) best_so_far_ = found(index);
  return true;
}

void Search::sharpen(const std::vector<std::uint32_t>& batch, bool fully) {
  const bool replays = evaluators_.front()->replays() && !fully;
  std::vector<double> scores(batch.size());
  std::vector<Judgement> judgements(batch.size());
  const auto simulates = [&](std::size_t i) {
    return replays && candidates_[batch[i]].stage == Stage::kBounded;
  };
  pool_.run(batch.size(), [&](std::size_t worker, std::size_t i) {
    const Plan plan = plan_of(candidates_[batch[i]]);
    if (simulates(i)) {
      scores[i] = evaluators_[worker]->simulate(plan);
    } else {
      judgements[i] = evaluators_[worker]->judge_whether_fits(plan);
    }
  });
  for (std::size_t i = 0; i < batch.size(); ++i) {
    Candidate& candidate = candidates_[batch[i]];
    if (candidate.stage == Stage::kBounded) ++counts_.simulated;
    if (simulates(i)) {
      candidate.stage = Stage::kSimulated;
      candidate.key = std::max(candidate.key, scores[i]);
      continue;
    }
    take(batch[i], std::move(judgements[i]));
  }
  tell("simulating");
}

Found Search::found(std::uint32_t index) const {
  const Candidate& candidate = candidates_[index];
  return {judged_.at(index).prediction, candidate.key, candidate.family};
}

bool Search::spares_recomputation() const {
  const Criteria& criteria = options_.criteria;
  return evaluators_.front()->replays() && !criteria.recompute_for_speed &&
         criteria.objective != Objective::kHeadroom;
}

bool Search::is_spare(const Candidate& candidate) const {
  const std::int32_t fewest = fewest_layers_[candidate.family];
  return fewest != kNotSettled && candidate.ckpt_layers != fewest;
}

std::optional<std::size_t> Search::family_like(const Plan& plan) const {
  for (std::size_t f = 0; f < families_.size(); ++f) {
    if (families_[f].plan == plan) return f;
  }
  return std::nullopt;
}

/// How many layers plans like these recompute at least, where they fit.
std::optional<std::int32_t> Search::layers_needed(const Plan& like) {
  for (const Plan& plan : {without_recomputation(like), like}) {
    const std::optional<std::size_t> family = family_like(plan);
    if (!family) continue;
    settle(*family);
    if (fewest_layers_[*family] >= 0) return fewest_layers_[*family];
  }
  return std::nullopt;
}

/// The first of these candidates that fits, each judged in full; all of one family.
std::optional<std::uint32_t> Search::first_that_fits(std::uint32_t begin, std::uint32_t end) {
  std::vector<std::uint32_t> unknown;
  for (std::uint32_t i = begin; i < end; ++i) {
    const Stage stage = candidates_[i].stage;
    if (stage != Stage::kRejected && stage != Stage::kJudged) unknown.push_back(i);
  }
  sharpen(unknown, true);
  for (std::uint32_t i = begin; i < end; ++i) {
    if (candidates_[i].stage == Stage::kJudged) return i;
  }
  return std::nullopt;
}

/// Whether not even those plans of a family fit that recompute most.
bool Search::is_hopeless(std::size_t family) {
  const std::uint32_t begin = first_candidate_[family];
  std::uint32_t end = first_candidate_[family + 1];
  const std::uint32_t edge = end - std::min(end - begin, kLayersAtEdge);
  while (end > edge) {
    const std::uint32_t next = end - std::min(end - edge, kLayersAtOnce);
    if (first_that_fits(next, end)) return false;
    end = next;
  }
  return true;
}

/// The candidate of a family that recomputes least and fits. Its memory falls with every layer but
/// for what the allocator makes of it, which a few layers more or less decide: those next to the
/// edge are replayed one by one, the others are taken to do as the edge does.
std::optional<std::uint32_t> Search::least_that_fits(std::size_t family) {
  const std::uint32_t begin = first_candidate_[family], end = first_candidate_[family + 1];
  const auto up_to = [end](std::uint32_t i) { return std::min(end, i + kLayersAtOnce); };
  if (const auto fits = first_that_fits(begin, up_to(begin))) return fits;
  if (is_hopeless(family)) return std::nullopt;
  std::uint32_t low = up_to(begin), found = end - 1;
  while (candidates_[found].stage == Stage::kRejected) --found;
  while (low < found && !stopped()) {
    const std::uint32_t middle = low + (found - low) / 2;
    const std::uint32_t next = std::min(up_to(middle), found);
    const auto fits = first_that_fits(middle, next);
    if (!fits || *fits > middle) low = fits.value_or(next);
    found = fits.value_or(found);
  }
  const std::uint32_t edge = found - std::min(found - begin, kLayersAtEdge);
  return first_that_fits(edge, found).value_or(found);
}

/// Those of a family that were not replayed but are taken not to fit, since others do not.
void Search::reject_before(std::uint32_t found, std::size_t family) {
  for (std::uint32_t i = first_candidate_[family]; i < found; ++i) {
    const Stage stage = std::exchange(candidates_[i].stage, Stage::kRejected);
    if (stage == Stage::kBounded) ++counts_.no_memory;  // others count as simulated
  }
}

/// Finds the fewest layers that a family must recompute; none is wanted when the same plan without
/// recomputation fits, or with the attention that keeps less and so recomputes less.
void Search::settle(std::size_t family) {
  if (fewest_layers_[family] != kNotSettled) return;
  fewest_layers_[family] = kNone;
  const Plan& plan = families_[family].plan;
  if (plan.recompute != Recompute::kNone && layers_needed(without_recomputation(plan))) return;
  const auto fits = least_that_fits(family);
  if (fits) fewest_layers_[family] = candidates_[*fits].ckpt_layers;
  if (!stopped()) reject_before(fits.value_or(first_candidate_[family + 1]), family);
  if (plan.attention == AttentionKind::kEager && fewest_layers_[family] > 0) {
    Plan flash = plan;
    flash.attention = AttentionKind::kFlash;
    const std::optional<std::int32_t> needed = layers_needed(flash);
    if (needed && *needed < fewest_layers_[family]) fewest_layers_[family] = kNone;
  }
}

std::vector<Found> Search::pareto() {
  // In order of memory; a plan belongs to the front when nothing smaller, of as plain an
  // arithmetic, is as fast.
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < candidates_.size(); ++i) {
    if (candidates_[i].stage != Stage::kRejected) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
    return std::make_pair(candidates_[a].total_bytes, a) <
           std::make_pair(candidates_[b].total_bytes, b);
  });
  constexpr int kArithmetics = 3;
  double best[kArithmetics];
  std::fill(std::begin(best), std::end(best), std::numeric_limits<double>::infinity());
  const auto changes = [this](std::uint32_t i) {
    return arithmetic_changes(families_[candidates_[i].family].plan);
  };
  const auto belongs = [&](std::uint32_t i) {
    return candidates_[i].stage != Stage::kRejected &&
           candidates_[i].key < best[changes(i)] * (1 - kParetoStep);
  };
  std::vector<std::uint32_t> front;
  std::size_t at = 0;
  while (at < order.size() && !stopped()) {
    std::vector<std::uint32_t> window, batch;
    for (; at < order.size() && window.size() < kSimulationsPerRound; ++at) {
      if (!belongs(order[at])) continue;
      window.push_back(order[at]);
      if (candidates_[order[at]].stage == Stage::kBounded) batch.push_back(order[at]);
    }
    sharpen(batch);
    for (const std::uint32_t i : window) {
      if (!belongs(i)) continue;
      for (int c = changes(i); c < kArithmetics; ++c)
        best[c] = std::min(best[c], candidates_[i].key);
      front.push_back(i);
    }
  }
  if (evaluators_.front()->replays()) {
    std::vector<std::uint32_t> batch;
    for (const std::uint32_t i : front) {
      if (candidates_[i].stage == Stage::kSimulated) batch.push_back(i);
    }
    sharpen(batch);
  }
  std::vector<Found> result;
  for (const std::uint32_t i : front) {
    if (candidates_[i].stage == Stage::kJudged) result.push_back(found(i));
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const Found& a, const Found& b) { return a.score < b.score; });
  return result;
}

/// By how much the rejected plans do not fit, where their replay ended with that they do not.
void Search::measure_overshoots() {
  std::vector<Plan> plans;
  for (const std::uint32_t i : unmeasured_) plans.push_back(plan_of(candidates_[i]));
  const std::vector<Judgement> judgements = judge(plans);
  for (std::size_t i = 0; i < plans.size(); ++i)
    reject(candidates_[unmeasured_[i]], judgements[i].excess_bytes);
  unmeasured_.clear();
}

std::optional<Overshoot> Search::nearest(const std::function<bool(const Plan&)>& wanted) {
  measure_overshoots();
  std::optional<Overshoot> least;
  for (std::size_t f = 0; f < families_.size(); ++f) {
    if (overshoots_[f].excess_bytes == kFits || (wanted && !wanted(families_[f].plan))) continue;
    if (!least || overshoots_[f].excess_bytes < least->excess_bytes) least = overshoots_[f];
  }
  if (least) least->excess_bytes = evaluators_.front()->judge(least->plan).excess_bytes;
  return least;
}

std::vector<Judgement> Search::judge(const std::vector<Plan>& plans) {
  std::vector<Judgement> judgements(plans.size());
  pool_.run(plans.size(), [&](std::size_t worker, std::size_t i) {
    judgements[i] = evaluators_[worker]->judge(plans[i]);
  });
  return judgements;
}

}  // namespace shardwright::tuner
