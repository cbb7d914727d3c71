// SPDX-License-Identifier: Apache-2.0
// Asking with something changed, for advice: what each change is called, on the command line, too,
// and what it leads to.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/base/invalid_plan.h"
#include "tuner/advice/advice.h"

namespace shardwright::tuner {

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

}  // namespace shardwright::tuner
