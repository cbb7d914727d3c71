// SPDX-License-Identifier: Apache-2.0
// What a whole run takes in days and dollars: its ideal steps, and beside them the run as published
// trainings went.
//
//   ideal days  = tokens / tokens per second of the predicted step
//   whole days  = ideal days x tokens factor x production factor x failures at this scale
//
// The production factor (profiles/uncertainty/production.h) holds what published runs lost to
// failures, evaluation, restarts, stragglers, checkpoints and data, on a usual number of GPUs. More
// GPUs fail more often: the factor is moved by goodput on that number over goodput on
// these. The tokens factor is (1 + B / B_crit) over the same at free_tokens,
// never below 1: steps that outgrow these need more tokens for the same loss. Of a batch that
// somebody chose they are the most that a published training took, up to where tokens are taken as
// they were chosen and what tiny steps would need less is a note; of a batch that is chosen here
// they are the usual batch. The interval holds the step's interval and the factor's; that of
// dollars also what offers of the same kind ask elsewhere, in quadrature of logarithms, end by end.
// The probability of missing a limit is that of a logarithm that is normal on either side of the
// middle and has that interval.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "profiles/ledger/whole_runs.h"
#include "profiles/operations.h"
#include "profiles/prices/price.h"
#include "profiles/uncertainty/production.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/units.h"
#include "sim/predict.h"

namespace shardwright::tuner {

// How much of a long run is useful work: failures, restarts and checkpoints.
//
// A run on G GPUs is interrupted at random, on average every M = (MTBF of one GPU) / G. It loses
// the work since the last checkpoint and the restart R; it writes a checkpoint, which takes d,
// after every t of useful work. For exponentially distributed interruptions that may also hit
// checkpoints and restarts, the expected wall time per useful time is
//
//   M e^(R/M) (e^((t+d)/M) - 1) / t
//
// (J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future
// Generation Computer Systems 22, 2006, 303-312, equation 20); goodput is its inverse. It leaves
// out planned maintenance, slow nodes and checkpoints that are written beside the training.

/// t that Young (1974) gives to first order: sqrt(2 d M).
double young_interval_s(double checkpoint_s, double mtbf_s);

/// Daly's estimate (equation 37): sqrt(2 d M) (1 + sqrt(d/2M)/3 + d/2M/9) - d where d < 2 M, else
/// M.
double daly_interval_s(double checkpoint_s, double mtbf_s);

/// Share of wall time that is useful when `interval_s` of work lie between checkpoints.
double goodput_at(double interval_s, double checkpoint_s, double restart_s, double mtbf_s);

/// What is written: master weights and both moments of Adam; the rest follows from them.
Bytes checkpoint_bytes(const Model& model, const Plan& plan);

struct Outages {
  double mtbf_gpu_hours = 0;
  double restart_s = 0;
  double checkpoint_s = 0;      // that one holds training up
  double least_interval_s = 0;  // between checkpoints, whatever failures advise
};

struct Goodput {
  double mtbf_s = 0;        // of all GPUs together
  double checkpoint_s = 0;  // that one holds training up
  double write_s = 0;       // until it is on storage, beside the training
  double interval_s = 0;    // of useful work between two: as Daly advises, or the least
  double share = 1;         // of wall time that is useful
};

Goodput goodput_of(const Outages& outages, std::int64_t gpus);

/// What a run meets besides its steps.
struct RunConditions {
  double tokens = 0;
  double critical_tokens = 0;              // of a step; 0: not asked
  std::array<double, 2> critical_range{};  // by the laws that agree with published batches
  std::string critical_words;              // whose laws
  double usual_tokens = 0;                 // of a step, when nobody says
  double published_tokens = 0;             // the most of a step, by published trainings
  /// The most of a step, by published trainings of the very model on at most twice the tokens; 0:
  /// there is none.
  double own_published_tokens = 0;
  double free_tokens = 0;  // of a step, beyond which more tokens are counted
  profiles::Production production;
  double mtbf_gpu_hours = 0, restart_s = 0;
  /// Least and most of it that operators report; zeros where it is known.
  std::array<double, 2> mtbf_range{};
  /// Of the time, below which no large training reports to have come, however often it failed; 0:
  /// not asked.
  double least_useful_share = 0;
  /// Hours that a node runs before its provider takes it away; 0: it does not (spot does).
  double preemption_node_hours = 0;
  double gpu_bytes_per_s = 0;          // of a checkpoint
  double storage_bytes_per_s = 0;      // of all GPUs together; 0: as fast as they write
  double stall_bytes_per_s = 0;        // that each GPU copies aside; 0: training waits for storage
  double least_interval_s = 0;         // between checkpoints
  std::optional<double> checkpoint_s;  // instead
};

struct RunCost {
  double ideal_days = 0;
  double days = 0;
  double level = 0.9;  // of both intervals
  std::array<double, 2> days_interval{};
  double gpu_hours = 0;
  std::optional<double> ideal_usd, usd;  // none: price unknown
  std::optional<std::array<double, 2>> usd_interval;
  double tokens_factor = 1;
  double scale_factor = 1;  // failures on these GPUs over those on a usual number
  profiles::ProductionFactor production;
  Goodput goodput;
  double whole_mfu = 0;  // 6 N tokens over GPU hours and 16-bit peak
};

/// Mean GPU hours between interruptions of a job on nodes of `gpus_per_node`: by failures, and by
/// the provider where that takes nodes away. Rates of independent interruptions add.
double interrupted_every_gpu_hours(const RunConditions& conditions, std::int64_t gpus_per_node);

/// Tokens, the critical batch and what is known of published runs and of failures: shipped data.
RunConditions usual_conditions(const Model& model, double tokens, std::int64_t seq_len);

/// Tokens of a step when nobody says: the largest power of two of sequences that needs at most
/// kUsualOverhead more tokens than tiny steps.
double usual_batch_tokens(double critical_tokens, std::int64_t seq_len);

/// (1 + batch / critical) / (1 + free / critical), at least 1.
double tokens_factor(double tokens_per_step, double free, double critical);

/// How many times the tokens of tiny steps the laws give, least and most.
std::array<double, 2> tokens_of_tiny_steps(double tokens_per_step, const RunConditions& conditions);

/// That a quantity of this middle and interval at `level` (0.9) is above `limit`.
double probability_above(double limit, double middle, const std::array<double, 2>& interval,
                         double level);

RunCost run_cost(const Model& model, const sim::Prediction& prediction, double peak_flops,
                 const RunConditions& conditions, const profiles::Price& price,
                 std::int64_t gpus_per_node = 1);

// How many tokens a step can take before more of them stop replacing steps.
//
// A run with batch B needs about 1 + B / B_crit times the tokens of one with a tiny batch
// (McCandlish et al., arXiv:1812.06162). Kaplan et al. (arXiv:2001.08361) gave B_crit by the loss
// that N parameters reach on D tokens (equations 1.5 and 1.4):
//
//   L = ((N_c / N)^(a_N / a_D) + D_c / D)^a_D      B_crit = B* / L^(1 / a_B)
//
// Later measurements find that it grows with the tokens alone, B_crit = c D^e (Zhang et al.,
// arXiv:2410.21676; Bergsma et al., arXiv:2505.13738). Which law ships is decided by the batches of
// published trainings (profiles/operations.h). All of them come from small
// models: they warn, and they bound what is chosen unasked.

/// More tokens than tiny steps need, that a batch which nobody gave may cost: what Zhang et al.
/// call critical, and about what published trainings take.
inline constexpr double kUsualOverhead = 0.2;

/// Nats per token after training on `tokens`, by Kaplan et al.
double expected_loss(const Model& model, double tokens, const profiles::Operations& constants);

/// Tokens of a step by one law.
double critical_tokens(const profiles::BatchLaw& law, const Model& model, double tokens,
                       const profiles::Operations& constants);

/// Tokens of a step by the law that ships.
double critical_tokens(const Model& model, double tokens, const profiles::Operations& constants);

struct CriticalTokens {
  double middle = 0;              // by the law that ships
  std::array<double, 2> range{};  // of the laws that call no published batch wasteful
  double published = 0;           // the largest share of it that a published training took
  std::string words;              // "Bergsma et al. 2025; Zhang et al. 2024"
};
CriticalTokens critical_range(const profiles::CriticalBatch& fitted, const Model& model,
                              double tokens, const profiles::Operations& constants);

// Published trainings of the very model that is asked about, to stand beside the answer.

/// Those of `runs` whose architecture is that of `model`: layers, widths, heads, vocabulary and
/// experts. Trainings whose GPU hours are not published are left out.
std::vector<profiles::WholeRun> trainings_of(const Model& model,
                                             std::vector<profiles::WholeRun> runs);

}  // namespace shardwright::tuner
