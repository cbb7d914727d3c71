// SPDX-License-Identifier: Apache-2.0
// The sweep behind `size`: every cluster in every number of GPUs, each with its best plan, and what
// a whole run then takes in days and dollars (run_cost.h).
//
// What decides among plans and batches of one size are the days of the whole run, token factor
// included, so `size --gpus N` is never worse than with a batch that it may choose. Unless the
// batch is fixed, batches up to the usual one are tried and, where a GPU has few
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
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "profiles/prices/price.h"
#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/core/parallelism.h"
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

// What one strategy saves over another at equal throughput, in GPUs and dollars a month.
//
// A fleet of G GPUs trains with the slower strategy at s tokens per second and GPU. The faster one
// at f needs G s / f GPUs for the same throughput, so it saves G (1 - s / f); a month is 730 hours.
// Each strategy has its own best plan, found on the same GPUs and with the same sequences per GPU.
// Throughput per GPU hardly depends on the number of GPUs, but a little it does, and GPUs come in
// nodes: so the fewest whole nodes on which the faster strategy, tuned anew, is predicted to be no
// slower are found, too. This is the computation behind the YaFSDP announcement (about 150 GPUs and
// 0.5 to 1.5 million dollars a month for a 70B pre-training, June 2024).

inline constexpr double kHoursPerMonth = 730;

struct EqualThroughput {
  double gpus_needed = 0;                 // by the faster strategy, G s / f
  double gpus_saved = 0;                  // G - gpus_needed
  std::optional<double> usd_per_month{};  // saved; none: price unknown
};

/// The arithmetic above. `usd_per_gpu_hour` 0: unknown.
EqualThroughput equal_throughput(double gpus, double faster_tokens_per_gpu_s,
                                 double slower_tokens_per_gpu_s, double usd_per_gpu_hour);

struct Savings {
  std::size_t offer = 0;
  std::int64_t gpus = 0;  // of the fleet
  sim::Prediction faster, slower;
  EqualThroughput equal;
  std::int64_t whole_node_gpus = 0;    // the fewest whole nodes of the faster that suffice
  double whole_node_tokens_per_s = 0;  // predicted there
  bool executed_alike = false;         // the stack runs both strategies by the same schedule
};

/// The strategies' best plans on `gpus` of this offer. Throws Error when one has none that fits, or
/// when both are the same.
Savings compare_strategies(const Model& model, const std::vector<Offer>& offers, std::size_t offer,
                           const SizingJob& job, std::int64_t gpus,
                           const std::array<Strategy, 2>& strategies);

// The clusters that a search may choose from, and what each costs.

/// Prices that were given (--price), by the name of a cluster or of a GPU; USD per GPU and hour.
using Prices = std::map<std::string, double, std::less<>>;

/// Of a GPU hour of a cluster, a shipped name or a path: what was `given` for the cluster or its
/// GPU, else what was `imported`, else what its own file says.
profiles::Price price_of_cluster(const std::string& name, const Cluster& machine,
                                 const Prices& given, profiles::PriceKind kind,
                                 const profiles::PriceFile& imported);

/// Throws Error for a price of a name that neither ships nor is among the `offered` ones.
void check_price_names(const Prices& given, const std::vector<std::string>& offered);

/// Names that a price for this cluster may be given by.
std::vector<std::string> price_names(const std::string& name, const Cluster& machine);

/// The names of the shipped clusters that train: nobody buys processors for that.
std::vector<std::string> clusters_on_offer();

/// What all nodes on offer have in place of what their files say.
struct NodeChanges {
  std::optional<double> network_bytes_per_s;  // of a whole node
  /// Cap of a board's power; boards that draw less keep their clocks.
  std::optional<double> power_limit_watts;
};

/// Loads the clusters with a stack, or with the usual ones of each
/// (profiles/ledger/ledger_profile.h), and their prices of one kind. A price for a cluster counts
/// before one for its GPU, what was given before `imported`, and either before the file's own.
/// Throws Error for a price of a name that neither ships nor is offered, and for a power limit that
/// a GPU cannot hold.
std::vector<Offer> load_offers(const std::vector<std::string>& names,
                               const std::optional<std::string>& stack,
                               const std::vector<std::string>& overrides, const Prices& prices,
                               profiles::PriceKind kind = profiles::PriceKind::kOnDemand,
                               const profiles::PriceFile& imported = {},
                               const NodeChanges& changes = {});

/// Whether the rates of its GPU are estimates and no published run of software that could answer
/// for it was on it.
bool estimate_only(const Offer& offer);

/// Where the price of an offer comes from: "--price", or the source and date of the file; empty
/// when there is none.
std::string price_source(const Offer& offer);

// The batches that `size` may choose for a number of GPUs.
//
// A batch is shared evenly by the replicas of a plan, so each number of replicas has its own
// largest batch below a cap. The least set is taken in which every number of replicas finds one of
// at least 95 % of its largest.

/// Sequences of a step that data parallelism alone shares, multiples of `unit` (GPUs x micro-batch
/// x accumulation, as far as they are fixed): below `cap`, so many each that they make whole
/// micro-batches, and where each has few, one more.
std::vector<std::int64_t> plain_batches(double cap, std::int64_t unit);

/// Sequences of a step for plans in which up to `most_ranks` GPUs share a replica.
std::vector<std::int64_t> shared_batches(double cap, std::int64_t gpus,
                                         std::int64_t most_ranks = 1024);

/// Tokens of a step that is chosen, beyond which more tokens are counted: what needs 20 % more than
/// tiny steps, or what a published training of the very model took.
double uncounted_tokens(const RunConditions& conditions);

/// Caps in sequences, least first: the usual batch and, where that leaves a GPU few sequences,
/// steps from it to the largest that published trainings took; beyond the usual one more tokens are
/// counted.
std::vector<double> batch_caps(const SizingJob& job, std::int64_t gpus);

/// Why `gpus` cannot share the batch that the user fixed; empty when they can.
std::string batch_contradiction(const Request& fixed, std::int64_t gpus);

// What one cluster and number of GPUs is offered: plans of several batches and frameworks.

/// A larger batch or other software has to make the whole run this much shorter.
inline constexpr double kWorth = 1.02;

/// What competes for one size: the fastest whole run so far, and that of data parallelism alone.
struct SizeCandidates {
  std::optional<Sized> best, plain;
  std::optional<LeftOut> refusal;  // of data parallelism
  std::optional<Request> unfit;    // that was refused because nothing fits, not yet by how much
  std::string parallel_why;        // no plan that is model-parallel

  /// Later ones are larger batches or other software: they have to be worth it.
  void enter(Sized option) {
    const bool wins = !best || option.cost.days * kWorth < best->cost.days;
    if (!divides(option) && (!plain || option.cost.days < plain->cost.days)) plain = option;
    if (wins) best = std::move(option);
  }
  static bool divides(const Sized& option) { return features_of(option.prediction.plan).any(); }
};

}  // namespace shardwright::tuner
