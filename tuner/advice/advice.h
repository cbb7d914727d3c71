// SPDX-License-Identifier: Apache-2.0
// When nothing fits: how far the closest plan is from fitting, and what to change, as little as
// possible, so that something does.
//
// Every way is tried, not guessed: a search with one thing changed, by the smallest amount that
// lets a plan of any framework fit. Knobs that are held fixed give way, then what is trained and on
// what (sequence length, number of GPUs), then the arithmetic. Ways are compared by the GPU time
// that a token takes afterwards.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tuner/search/frameworks.h"

namespace shardwright::tuner {

/// The largest cluster that anything is asked about on its own.
inline constexpr std::int64_t kMostGpus = 16384;

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

}  // namespace shardwright::tuner
