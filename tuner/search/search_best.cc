// SPDX-License-Identifier: Apache-2.0
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
#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "tuner/search/dimensions.h"
#include "tuner/search/search.h"

namespace shardwright::tuner {

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

  /// Of whoever is in front without the one that is.
  double next_key() const {
    double key = std::numeric_limits<double>::infinity();
    for (std::size_t i = 1; i < std::min<std::size_t>(3, queue_.size()); ++i)
      key = std::min(key, candidate(queue_[i]).key);
    return key;
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
    search_.settled(candidate(front).setting, candidate(front).policy, next_key());
    if (!search_.is_settled(candidate(front))) {  // another one asks again
      pop();
      search_.candidates_[front].stage = Stage::kGone;
    }
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
  return Best(*this, {count, below}, wanted).run();
}

std::vector<Found> Search::pareto(const Wanted& wanted, std::size_t most, double step) {
  return Best(*this, {most, std::nullopt, false, step}, wanted).run();
}

}  // namespace shardwright::tuner
