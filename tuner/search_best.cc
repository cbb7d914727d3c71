// SPDX-License-Identifier: Apache-2.0
// Which plans are best, and why nothing can be better.
//
// Every candidate has a key that is never above the score of its full prediction and only rises as
// the candidate is sharpened: bounded, simulated, judged. The queue holds candidates by key. The
// one in front decides what happens next:
//
//   kDrop     its kind has been reported, or its family wants another number of layers: it goes.
//   kSettle   it is about to be judged or reported, and nobody knows yet how many layers its family
//             must recompute: that is found first, which may remove it and change keys.
//   kReport   it is judged. Its key is its score, all other keys are no lower, and scores are never
//             below keys: no plan that is left can be better. It is an answer.
//   kSharpen  it is only promised to be good. It leaves the queue for the batch, where it waits for
//             its next dearer judgement.
//   kWorkOff  something is to be decided on the strength of the front while candidates are in the
//             batch, whose new keys may put one of them in front; or the batch is full. The batch
//             is sharpened, and who was not rejected returns to the queue.
//
// The batch is there for the threads. Whoever joins it stood in front, so it would have been
// sharpened sooner or later unless one before it in the batch turns out to be an answer; rounds
// have fixed sizes, small where judging is dear, so that little is wasted and the answer and its
// counts do not depend on the number of threads.
#include <algorithm>
#include <tuple>
#include <utility>

#include "tuner/search.h"

namespace shardwright::tuner {

namespace {

constexpr std::size_t kJudgementsPerRound = 4;  // where the allocator is replayed

}  // namespace

class Search::Best {
 public:
  Best(Search& search, std::size_t count, const std::function<bool(const Plan&)>& wanted)
      : search_(search),
        count_(count),
        replays_(search.evaluators_.front()->replays()),
        spares_(search.spares_recomputation()),
        closed_(search.kinds_.size()) {
    std::vector<bool> asked(search_.families_.size());
    for (std::size_t f = 0; f < asked.size(); ++f)
      asked[f] = !wanted || wanted(search_.families_[f].plan);
    for (std::uint32_t i = 0; i < search_.candidates_.size(); ++i) {
      if (!rejected(i) && asked[search_.candidates_[i].family]) queue_.push_back(i);
    }
    std::make_heap(queue_.begin(), queue_.end(), later_);
  }

  std::vector<Found> run() {
    while (answers_.size() < count_ && (!queue_.empty() || !batch_.empty())) {
      if (search_.stopped()) {
        search_.cut_short_ = true;
        answer_in_a_hurry();
        break;
      }
      make(next_move());
    }
    return std::move(answers_);
  }

 private:
  enum class Move : std::uint8_t { kDrop, kSettle, kReport, kSharpen, kWorkOff };

  const Candidate& candidate(std::uint32_t i) const { return search_.candidates_[i]; }
  bool rejected(std::uint32_t i) const { return candidate(i).stage == Stage::kRejected; }
  bool is_closed(std::uint32_t i) const { return closed_[search_.kinds_[candidate(i).family]]; }

  /// Whether sharpening a candidate means judging it.
  bool is_judged_next(const Candidate& c) const {
    return c.stage != Stage::kJudged && (!replays_ || c.stage == Stage::kSimulated);
  }

  Move next_move() const {
    if (queue_.empty()) return Move::kWorkOff;
    const Candidate& front = candidate(queue_.front());
    if (is_closed(queue_.front()) || search_.is_spare(front)) return Move::kDrop;
    const bool judged = front.stage == Stage::kJudged;
    const bool judges = is_judged_next(front);
    const bool settles =
        spares_ && (judged || judges) && search_.fewest_layers_[front.family] == kNotSettled;
    const bool full = batch_.size() >= kSimulationsPerRound ||
                      (replays_ && judges && judgements_ >= kJudgementsPerRound);
    if (!batch_.empty() && (judged || settles || full)) return Move::kWorkOff;
    if (settles) return Move::kSettle;
    return judged ? Move::kReport : Move::kSharpen;
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
      case Move::kSharpen:
        judgements_ += is_judged_next(candidate(queue_.front())) ? 1 : 0;
        batch_.push_back(pop());
        return;
      case Move::kWorkOff:
        work_off();
        return;
    }
  }

  std::uint32_t pop() {
    std::pop_heap(queue_.begin(), queue_.end(), later_);
    const std::uint32_t front = queue_.back();
    queue_.pop_back();
    return front;
  }

  void report(std::uint32_t i) {
    answers_.push_back(search_.found(i));
    closed_[search_.kinds_[candidate(i).family]] = true;
  }

  void settle() {
    search_.settle(candidate(queue_.front()).family);
    std::erase_if(
        queue_, [this](std::uint32_t i) { return rejected(i) || search_.is_spare(candidate(i)); });
    std::make_heap(queue_.begin(), queue_.end(), later_);  // keys have changed
  }

  void work_off() {
    search_.sharpen(batch_);
    for (const std::uint32_t i : batch_) {
      if (rejected(i)) continue;
      queue_.push_back(i);
      std::push_heap(queue_.begin(), queue_.end(), later_);
    }
    batch_.clear();
    judgements_ = 0;
  }

  /// Stopped: what has been predicted in full is good, though perhaps not the best.
  void answer_in_a_hurry() {
    std::vector<std::uint32_t> left(batch_);
    std::sort_heap(queue_.begin(), queue_.end(), later_);
    left.insert(left.end(), queue_.rbegin(), queue_.rend());
    for (const std::uint32_t i : left) {
      if (answers_.size() >= count_) return;
      if (candidate(i).stage == Stage::kJudged && !is_closed(i)) report(i);
    }
    if (!answers_.empty()) return;
    if (std::optional<Found> any = search_.any_judged(left)) answers_.push_back(std::move(*any));
  }

  struct Later {
    const std::vector<Candidate>& candidates;
    bool operator()(std::uint32_t a, std::uint32_t b) const {
      const Candidate &x = candidates[a], &y = candidates[b];
      return std::tie(x.key, x.total_bytes, a) > std::tie(y.key, y.total_bytes, b);
    }
  };

  Search& search_;
  std::size_t count_;
  bool replays_, spares_;
  Later later_{search_.candidates_};
  std::vector<bool> closed_;          // by kind: reported already
  std::vector<std::uint32_t> queue_;  // a heap, the best in front
  std::vector<std::uint32_t> batch_;
  std::size_t judgements_ = 0;  // of the batch
  std::vector<Found> answers_;
};

std::vector<Found> Search::best(std::size_t count, const std::function<bool(const Plan&)>& wanted) {
  return Best(*this, count, wanted).run();
}

/// The first of these plans that fits, in a hurry.
std::optional<Found> Search::any_judged(const std::vector<std::uint32_t>& open) {
  constexpr std::size_t kTries = 64;
  for (std::size_t i = 0; i < std::min(kTries, open.size()); ++i) {
    const std::uint32_t index = open[i];
    if (candidates_[index].stage == Stage::kRejected) continue;
    if (candidates_[index].stage == Stage::kBounded) ++counts_.simulated;
    if (take(index, evaluators_.front()->judge(plan_of(candidates_[index])))) return found(index);
  }
  return std::nullopt;
}

}  // namespace shardwright::tuner
