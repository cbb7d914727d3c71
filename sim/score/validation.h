// SPDX-License-Identifier: Apache-2.0
// Scores predictions against the ledger of published runs: what `validate` prints.
//
// Every row is predicted from its own columns by the profile that its own columns describe; nothing
// is fitted here. Errors are predicted / measured - 1. Memory is compared with the framework's
// counter that the row names. A row is skipped only when it cannot be predicted, and then says why;
// skipped rows are counted. Rows are independent, so they run on all cores; the result does not
// depend on how many there are.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "profiles/gpu_cost.h"
#include "profiles/ledger/ledger.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/core/base/csv.h"
#include "sim/core/schedule.h"
#include "sim/core/timeline.h"
#include "sim/predict.h"

namespace shardwright::sim {

struct ValidatedRow {
  profiles::LedgerRow row;
  std::string skipped;  // why there is no prediction; empty when there is one
  Prediction prediction;
  double predicted_peak_gib = 0;  // of the counter that the row names; allocated when it names none
  std::optional<double> time_error;    // signed, as a fraction; none when not measured
  std::optional<double> memory_error;  // likewise
  bool outcome_right = true;  // an oom row is right when the plan does not fit, others when it does
  bool inside_interval = true;         // of a measured time
  bool inside_memory_interval = true;  // of a measured peak
};

/// A constant that only runs of one source determine, so that others see it only as a prior.
struct SourceConstant {
  std::string name, source;
  double value = 0, prior = 0;
  bool applies_to_source_only = false;
};

/// |predicted / measured - 1| over some rows, as fractions; all zero when n is. The median is an
/// error that occurs: the lower one of two in the middle.
struct ErrorScore {
  std::int64_t n = 0;
  double mape = 0, median = 0, worst = 0;
};

/// Of |predicted / measured - 1|.
ErrorScore score_errors(const std::vector<double>& errors);

struct ValidationSummary {
  ErrorScore time, memory;     // of rows that are not suspect
  ErrorScore suspect_time;     // of those that are; their peaks are in no score
  std::int64_t predicted = 0;  // rows, hence outcomes compared
  std::int64_t wrong_outcomes = 0;
  std::int64_t inside_interval = 0;         // of time.n
  std::int64_t inside_memory_interval = 0;  // of memory.n
  std::int64_t skipped = 0;
};

/// Two rows that differ in nothing but the strategy.
struct SpeedupPair {
  std::size_t yafsdp = 0, fsdp1 = 0;   // places in Validation::rows
  double measured = 0, predicted = 0;  // 1 - yafsdp time / fsdp1 time
};

struct Validation {
  std::vector<ValidatedRow> rows;  // in the order of the ledger
  ValidationSummary all;
  std::map<std::string, ValidationSummary> by_source, by_gpu;
  std::map<std::string, std::int64_t> skipped_because;
  std::vector<SpeedupPair> speedups;
  std::vector<SourceConstant> source_constants;
};

struct ValidationOptions {
  std::vector<std::string> overrides;          // as given to --set, for the profile of every row
  unsigned threads = 0;                        // 0: all cores
  std::function<void(std::int64_t)> progress;  // rows done so far; called by one thread at a time
};

/// Throws Error only for bad overrides.
Validation validate(const std::vector<profiles::LedgerRow>& rows,
                    const ValidationOptions& options = {});

// Relative errors of predictions, condensed: mean, median and 90th percentile of |p/m - 1|.

/// |predicted / measured - 1|; measured is positive.
double relative_error(double predicted, double measured);

/// Of errors as fractions. Percentiles are nearest-rank. All zero when there are none.
profiles::ErrorSummary summarize_errors(std::span<const double> errors);

// How good choices among measured layouts would have been: a planner is asked which layout to take,
// not how long it takes.
//
// A group is what one source measured of one model on one cluster with the same tokens a step, the
// same precision, framework and release; its members differ in their layout. The predicted order is
// compared with the measured one (Kendall's tau, ties counted as in tau-b), and the layout that is
// predicted to be the fastest with the one that was: its regret is what it took more.

struct ChoiceGroup {
  std::string source, model, gpu, precision, release;
  std::int64_t gpus = 0, seq_len = 0, sequences = 0;  // of a step
  std::int64_t layouts = 0;
  double kendall_tau = 0;
  double regret = 0;         // of the first choice, as a fraction of the fastest step
  double random_regret = 0;  // the mean of all layouts
  std::string chosen, best;  // ids of the rows
};

struct ChoiceScore {
  std::vector<ChoiceGroup> groups;  // with two layouts or more, the largest regret first
  double kendall_tau = 0;           // means of the groups
  double regret_mean = 0, regret_worst = 0, random_regret_mean = 0;
};

/// Of rows with a time that is not suspect. Layouts whose rows say the same are one, the faster of
/// the measured times.
ChoiceScore score_choices(const Validation& validation);

// How good predictions are of each framework, the newest release first: a mean over all rows mixes
// software of this year with some that nobody installs any more.

/// Times that are not suspect, of releases of one year.
struct ReleaseScore {
  int year = 0;                       // 0: the releases name none
  std::vector<std::string> releases;  // as the tables call them, newest first; "": not stated
  ErrorScore time;
  std::int64_t inside_interval = 0;  // of time.n
  ErrorScore source_left_out;        // of the runs that have been predicted so
};

struct FrameworkScore {
  std::string framework;  // its stack, or what the table calls a stack that another stands for
  ReleaseScore all;       // its year is that of the newest release
  std::vector<ReleaseScore> years;  // newest first, without a year last
};

/// Frameworks with the newest release first, those with no date last. `held_out` are runs as they
/// were predicted without their source; those of the validation are found by what names a run.
std::vector<FrameworkScore> score_frameworks(const Validation& validation,
                                             std::span<const profiles::HeldOutRun> held_out);

// Scores predicted peaks of pipeline stages against measured ones, rank by rank: what
// `validate --stage-memory` prints.
//
// A row of the table names a run of the ledger, a rank and its stage, and the most that PyTorch's
// allocator had given out on it. Rows of runs that the ledger has not, or that were skipped, are
// counted apart.

struct StagePeak {
  std::string id;
  std::int64_t rank = 0, stage = 0;
  double measured_gib = 0, predicted_gib = 0;  // allocated
  double error = 0;                            // predicted / measured - 1
};

struct StageMemoryScore {
  std::vector<StagePeak> peaks;
  ErrorScore allocated;
  std::int64_t skipped = 0;
};

/// Columns id, rank, pp_stage, max_allocated_gib. Throws Error naming file, line and column.
StageMemoryScore score_stage_memory(const CsvTable& table, const Validation& validation);

// The steady period of backward: how long from one layer to the next, in the middle of the step.
//
// Published timelines show that period and little else, so it is what a simulated timeline can be
// held to. The table is a ledger (profiles/ledger/ledger.h) with one more column,
// backward_layer_ms.

/// Seconds between the begins of backward of neighbouring layers, averaged over the middle half of
/// the layers in the last micro-batch; 0 for models of fewer than four layers.
double backward_layer_period_s(const Schedule& schedule, const Timeline& timeline);

struct LayerPeriod {
  profiles::LedgerRow row;
  double measured_s = 0;
  double predicted_s = 0;
};

/// Predicts every row of `table` with the profile that it describes. Throws Error as read_ledger
/// does.
std::vector<LayerPeriod> predict_layer_periods(const CsvTable& table,
                                               const std::vector<std::string>& overrides = {});

// Honest errors of iteration time: every published run predicted by constants fitted without it.
//
// The fits are those of `python3 -m profiles.research steps`, which records what they predicted
// (profiles/uncertainty/uncertainty.h). Errors of constants fitted to all runs are in sample; the
// harder ways leave out the run, its cell (what its source ran of its model on its GPU) and its
// whole source, so that a machine or a stack that only one source has is predicted from the priors.

/// The ways to predict a run: by constants fitted to all, without it, without its cell, without its
/// source.
enum class HeldOut : std::uint8_t { kNothing, kRow, kCell, kSource };
inline constexpr std::size_t kHeldOuts = 4;

struct LeftOutRow {
  std::string id;
  std::string cell;                        // as HeldOutRun::cell
  double measured_s = 0, predicted_s = 0;  // predicted without the run
  std::array<double, kHeldOuts> error{};   // predicted / measured - 1, by HeldOut
  /// Of the measured time: in an interval fitted to the other rows, cells, sources.
  std::array<bool, 3> inside{};
};

struct LeaveOneOutScore {
  std::array<ErrorScore, kHeldOuts> time;  // by HeldOut
  std::array<std::int64_t, 3> inside{};    // without the row, its cell, its source
  /// Mean over cells of the share of their runs inside, as above: intervals are made for a run of a
  /// cell that is drawn first, and large cells hold many runs that share their error.
  std::array<double, 3> cells_inside{};
  std::int64_t cells = 0;
};

struct LeaveOneOut {
  std::vector<LeftOutRow> rows;
  LeaveOneOutScore all;
  std::map<std::string, LeaveOneOutScore> by_source;
};

/// Of the times of `validation` that nothing contradicts. Throws Error where the record lacks one
/// of them, or tells of another prediction; `ledger` is what the sentence calls the table ("": the
/// one that ships).
LeaveOneOut leave_one_out(const Validation& validation, const profiles::HeldOutRecord& record,
                          const std::string& ledger);

/// Where what is left out of a user's ledger is recorded.
std::string left_out_file(const std::string& ledger);

}  // namespace shardwright::sim
