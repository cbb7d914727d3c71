// SPDX-License-Identifier: Apache-2.0
// When nothing fits: how far the closest plan is from fitting, and what to change, as little as
// possible, so that something does.
//
// Every way is tried, not guessed: a search with one thing changed, by the smallest amount that
// lets a plan of any framework fit. Knobs that are held fixed give way, then what is trained and on
// what (sequence length, number of GPUs), then the arithmetic. Ways are compared by the GPU time
// that a token takes afterwards.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/base/error.h"
#include "sim/core/model.h"
#include "sim/predict.h"
#include "tuner/search/search.h"

namespace shardwright::tuner {

struct Way {
  std::string what;                // "7 more checkpointed layers (27)"
  std::string flags;               // what to change on the command line: "--ckpt-layers 27"
  Request request;                 // as changed
  std::optional<double> headroom;  // where it is what changed
  bool robust = false;
  Found plan;  // the best of what fits then
  double gpu_s_per_token = 0;
};

/// The plan, and what a token takes with it.
void set_plan(Way& way, Found found);

struct Advice {
  std::optional<Judgement> closest;  // of the space as asked for
  std::vector<Way> ways;             // cheapest first
};

inline constexpr std::size_t kWays = 5;

/// `search` found nothing that fits in the plans of `request`. At most `count` ways.
Advice advise(Search& search, const Model& model, const std::vector<Framework>& frameworks,
              const Request& request, const SearchOptions& options, bool robust,
              std::size_t count = kWays);

/// What a request is answered with: the best plan that fits, none where nothing does. May throw
/// Error for a request that makes no sense.
using Answering = std::function<std::optional<Found>(const Request&)>;

/// The ways of `advise` where no one search answers, such as among plans that frameworks can be
/// told. `profile` is that of a framework on the cluster.
std::vector<Way> ways_out(const Model& model, const profiles::Profile& profile,
                          const Request& request, const Answering& answering,
                          const std::atomic<bool>* stop, std::size_t count = kWays);

// Asking with something changed, for advice: what each change is called, on the command line, too,
// and what it leads to.

/// How a changed request is answered: by a search, or as whoever asks says.
struct AskedTerms {
  std::optional<double> headroom;  // otherwise each framework's own
  std::optional<Objective> objective;
  bool robust = false;
};
struct Asking {
  const profiles::Profile* profile = nullptr;  // of the first framework on the cluster
  Criteria criteria;
  bool robust = false;
  const std::atomic<bool>* stop = nullptr;
  std::function<std::optional<Found>(const Request&, const AskedTerms&)> best;
  std::function<void(Way&)> improve;  // the plan of a way becomes what a search of it answers
};

/// Asks with something changed.
class Changes {
 public:
  Changes(const Asking& asking, const Request& request) : asking_(asking), request_(request) {}

  const Request& request() const { return request_; }
  const profiles::Profile& profile() const { return *asking_.profile; }
  const Criteria& criteria() const { return asking_.criteria; }
  bool robust() const { return asking_.robust; }
  bool stopped() const { return asking_.stop != nullptr && asking_.stop->load(); }
  AskedTerms terms() const { return {std::nullopt, std::nullopt, asking_.robust}; }

  /// The best plan of the request; none when nothing fits, it contradicts itself, or all is
  /// stopped.
  std::optional<Found> best(const Request& changed) const { return best(changed, terms()); }
  std::optional<Found> best(const Request& changed, const AskedTerms& terms) const {
    if (stopped()) return std::nullopt;
    try {
      return asking_.best(changed, terms);
    } catch (const InvalidPlan&) {  // such a change makes no sense here
    }
    return std::nullopt;
  }

  /// Keeps a way when it leads somewhere.
  void keep(std::string what, std::string flags, const Request& changed,
            std::optional<Found> found) {
    if (found) add(std::move(what), std::move(flags), changed, std::move(*found));
  }
  void add(std::string what, std::string flags, const Request& changed, Found found) {
    Way way;
    way.what = std::move(what);
    way.flags = std::move(flags);
    way.request = changed;
    way.robust = asking_.robust;
    set_plan(way, std::move(found));
    ways_.push_back(std::move(way));
  }
  Way& last() { return ways_.back(); }
  bool empty() const { return ways_.empty(); }
  std::vector<Way> cheapest(std::size_t count) && {
    std::stable_sort(ways_.begin(), ways_.end(), [](const Way& a, const Way& b) {
      return a.gpu_s_per_token < b.gpu_s_per_token;
    });
    if (ways_.size() > count) ways_.resize(count);
    for (Way& way : ways_) {
      if (asking_.improve && !stopped()) asking_.improve(way);
    }
    return std::move(ways_);
  }

  /// The first index below `count` for which `change` makes something fit, where later ones are
  /// taken to fit, too; tried in growing strides, then narrowed down.
  struct Step {
    std::size_t index;
    Request request;
    Found found;
  };
  std::optional<Step> least(std::size_t count,
                            const std::function<Request(std::size_t)>& change) const {
    std::size_t low = 0, high = 0;
    std::optional<Step> fits;
    for (std::size_t stride = 1; !fits; stride *= 2) {
      if (low >= count || stopped()) return std::nullopt;
      high = std::min(low + stride, count) - 1;
      fits = try_at(high, change);
      if (!fits) low = high + 1;
    }
    while (low < fits->index && !stopped()) {
      const std::size_t middle = (low + fits->index) / 2;
      if (std::optional<Step> closer = try_at(middle, change)) {
        fits = std::move(closer);
      } else {
        low = middle + 1;
      }
    }
    return fits;
  }

 private:
  std::optional<Step> try_at(std::size_t index,
                             const std::function<Request(std::size_t)>& change) const {
    Request changed = change(index);
    std::optional<Found> found = best(changed);
    if (!found) return std::nullopt;
    return Step{index, std::move(changed), std::move(*found)};
  }

  const Asking& asking_;
  const Request& request_;
  std::vector<Way> ways_;
};

// Ways out for who keeps his GPUs and his sequences and need not train every weight: adapters of
// low rank (LoRA), over quantized weights (QLoRA). Each way is what the changed request is answered
// with; Advice tells the others.

/// Rank of adapters where nobody gives one: that of the QLoRA and Unsloth recipes.
inline constexpr std::int64_t kUsualLoraRank = 16;

/// Sequences of a step of fine-tuning where nobody says: 16, as in QLoRA's recipes, or the next
/// multiple of `gpus`.
std::int64_t fine_tuning_batch(std::int64_t gpus);

/// Whether only adapters are trained then.
bool trains_adapters(const Way& way);

/// In the order in which to tell them: what trains every weight on these GPUs, then adapters where
/// `gpus` are a node's at most, then more GPUs; each group by GPU time a token.
void rank_ways(std::vector<Way>& ways, std::int64_t gpus);

/// Of a request of which nothing fits.
std::vector<Way> adapter_ways(const Request& request, const Answering& answering);

// Why not the others: the best plan of every strategy that was not chosen, ranks sharing the same
// as the choice does, or, of one that does not
// fit at all, the plan that comes closest.

struct OtherStrategy {
  Strategy strategy = Strategy::kYafsdp;
  std::optional<Found> best;         // none: no plan fits
  std::optional<Judgement> closest;  // where none fits
  double cost = 0;                   // score of its best against the choice's, minus 1
};

/// Those with a plan that fits first, the best of them foremost; then by what they lack.
std::vector<OtherStrategy> other_strategies(Search& search, const Space& space,
                                            const Found& choice);

}  // namespace shardwright::tuner
