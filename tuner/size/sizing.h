// SPDX-License-Identifier: Apache-2.0
// The sweep behind `size`: every cluster in every number of GPUs, each with its best plan, and what
// a whole run then takes in days and dollars (run_cost.h).
//
// What decides among plans and batches of one size are the days of the whole run, token factor
// included, so `size --gpus N` is never worse than with a batch that it may choose. Unless the
// batch is fixed, batches (size_batches.h) up to the usual one are tried and, where a GPU has few
// sequences of those, batches as large as published trainings took, whose days hold the tokens that
// they need more; a larger batch or other software has to save more than 2 %. Plans that shard data
// only and model-parallel plans compete by the same rule, and what data parallelism alone
// would take is kept beside the answer. Options are independent, so each is searched by one thread
// and the result does not depend on how many there are. Clusters that differ in nothing but name
// and price share one search; sizes that would take years are left out, but for the largest of each
// cluster. What meets a goal and what to take is decided in sizing_choice.h.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/predict.h"
#include "tuner/runs/run_cost.h"
#include "tuner/search/request.h"

namespace shardwright::tuner {

/// A cluster that could be rented.
struct Offer {
  std::string name;  // as the user gave it
  profiles::Profile profile;
  /// With model-parallel frameworks; none where that is not asked about.
  std::optional<profiles::Profile> model_parallel;
  double usd_per_gpu_hour = 0;  // 0: unknown
  profiles::Price price;        // the same with its range, date and source
  bool shown_only = false;      // never recommended: nothing was measured on its GPU
};

/// The cluster as `gpus` of it are used, with the software of `plan`.
profiles::Profile profile_for(const Offer& offer, const Plan& plan);

struct SizingJob {
  Request fixed;  // gpus are set by the sweep, a missing global_batch too
  RunConditions run;
  std::optional<std::int64_t> gpus;  // only this number
  std::int64_t max_gpus = 16384;
};

/// What data parallelism alone would take on the GPUs of an option that is model-parallel.
struct PlainPlan {
  Plan plan;
  double days = 0;
};

/// One cluster in one number of GPUs, with its best plan.
struct Sized {
  std::size_t offer = 0;
  sim::Prediction prediction;
  RunCost cost;
  double tokens_per_step = 0;
  std::optional<PlainPlan> plain;
  bool over_critical = false;  // its steps take a quarter more than the critical batch
  bool cut_short = false;      // the search for its plan was interrupted
  bool shown_only = false;     // as its offer
  bool between = false;        // not one of gpu_counts(): tried because it is near the answer

  std::int64_t gpus() const { return prediction.plan.gpus; }
};

enum class Lack : std::uint8_t { kMemory, kBatch, kTime, kOther };

struct LeftOut {
  std::size_t offer = 0;
  std::int64_t gpus = 0;
  Lack lack = Lack::kOther;
  std::string reason;
};

struct Sweep {
  std::vector<Sized> options;     // by offer, then by GPUs; those of sweep_between() at the end
  std::vector<LeftOut> left_out;  // in the same order
  std::int64_t considered = 0;    // plans
  std::int64_t simulated = 0;     // plans
  double seconds = 0;
  bool stopped = false;
};

struct SweepProgress {
  std::int64_t done = 0, total = 0;  // options
  std::int64_t considered = 0;       // plans
  double seconds = 0;
  const std::vector<Sized>* options = nullptr;  // so far, in any order
};

struct SweepOptions {
  int threads = 0;                                     // 0: one for each core
  const std::atomic<bool>* stop = nullptr;             // set from outside: end with what is there
  std::function<void(const SweepProgress&)> progress;  // by one thread at a time
  /// Options that come close to this are tried first; sizes that would take twenty times as long,
  /// and more than a year, are left out.
  std::optional<double> near_days;
  /// Every model-parallel plan that `tune` searches, of the batch that is given, instead of a
  /// coarser choice of them.
  bool fine = false;
};

/// Powers of two within a node, then powers of two of whole nodes; one node when nodes are not
/// linked. Racks that NVLink joins are filled in part, so there powers of two go on.
std::vector<std::int64_t> gpu_counts(const Cluster& cluster, std::int64_t most);

/// Whether the batch is for the search to choose.
bool chooses_batch(const SizingJob& job);

/// Throws Error when what is held fixed makes no sense on any cluster; a combination that makes no
/// sense on one is left out.
Sweep sweep(const Model& model, const std::vector<Offer>& offers, const SizingJob& job,
            const SweepOptions& options = {});

/// Other sizes of some offers, as (offer, GPUs), added to a sweep that was made before.
void sweep_between(const Model& model, const std::vector<Offer>& offers, const SizingJob& job,
                   const std::vector<std::pair<std::size_t, std::int64_t>>& sizes, Sweep& result,
                   const SweepOptions& options = {});

}  // namespace shardwright::tuner
