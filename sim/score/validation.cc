// SPDX-License-Identifier: Apache-2.0
#include "sim/score/validation.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

#include "profiles/ledger/ledger_profile.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/worker_pool.h"
#include "sim/core/units.h"
#include "sim/pipeline/step_program.h"
#include "sim/predict.h"

namespace shardwright::sim {

namespace {

/// Profiles by what a row says of its machine, read once before the rows are predicted.
class Profiles {
 public:
  Profiles(const std::vector<profiles::LedgerRow>& rows, const ValidationOptions& options)
      : steps_(profiles::load_step_parameters(profiles::shipped_step_parameters())) {
    for (const profiles::LedgerRow& row : rows) {
      if (!row.unsupported.empty()) continue;
      const auto [at, is_new] = profiles_.try_emplace(machine_key(row));
      if (!is_new) continue;
      at->second = profiles::profile_of(row, steps_, options.overrides);
    }
  }
  const profiles::Profile& of(const profiles::LedgerRow& row) const {
    return profiles_.at(machine_key(row));
  }

 private:
  profiles::StepParameters steps_;
  std::map<profiles::MachineKey, profiles::Profile> profiles_;
};

Bytes counted(const MemoryPrediction& memory, profiles::MemoryCounter counter) {
  switch (counter) {
    case profiles::MemoryCounter::kPeakActive:
      return memory.peak_active_bytes;
    case profiles::MemoryCounter::kPeakReserved:
      return memory.peak_reserved_bytes;
    case profiles::MemoryCounter::kPeakAllocated:
    case profiles::MemoryCounter::kNone:
      break;
  }
  return memory.peak_allocated_bytes;
}

/// The interval is that of what the framework reserves, and as wide for whatever counter a row
/// names. `factor` is what was measured over what was predicted.
bool inside_memory(const MemoryPrediction& memory, double factor) {
  const auto over_total = [&](Bytes bytes) {
    return static_cast<double>(bytes - memory.runtime_bytes) /
           static_cast<double>(memory.total_bytes - memory.runtime_bytes);
  };
  return factor >= over_total(memory.interval_bytes[0]) &&
         factor <= over_total(memory.interval_bytes[1]);
}

ValidatedRow validate_row(const profiles::LedgerRow& row, const profiles::Profile& profile) {
  ValidatedRow out;
  out.row = row;
  try {
    PredictOptions options;
    options.source = row.source;
    out.prediction = predict(row.model, profile, row.plan, options);
  } catch (const InvalidPlan& error) {
    out.skipped = error.what();
    return out;
  }
  const TimePrediction& time = out.prediction.time;
  if (row.iteration_s) {
    out.time_error = time.iteration_s / *row.iteration_s - 1;
    out.inside_interval =
        *row.iteration_s >= time.interval_s[0] && *row.iteration_s <= time.interval_s[1];
  }
  out.predicted_peak_gib = static_cast<double>(counted(out.prediction.memory, row.counter)) / kGiB;
  if (row.peak_gib) {
    out.memory_error = out.predicted_peak_gib / *row.peak_gib - 1;
    out.inside_memory_interval =
        inside_memory(out.prediction.memory, *row.peak_gib / out.predicted_peak_gib);
  }
  out.outcome_right = out.prediction.memory.fits != row.out_of_memory;
  return out;
}

/// Predicts every row; the first failure that is not the row's own ends the run.
std::vector<ValidatedRow> predict_rows(const std::vector<profiles::LedgerRow>& rows,
                                       const ValidationOptions& options) {
  const Profiles profiles(rows, options);
  std::vector<ValidatedRow> results(rows.size());
  std::mutex mutex;
  std::int64_t done = 0;
  for_each_index(rows.size(), options.threads, [&](std::size_t i) {
    if (rows[i].unsupported.empty()) {
      results[i] = validate_row(rows[i], profiles.of(rows[i]));
    } else {
      results[i].row = rows[i];
      results[i].skipped = rows[i].unsupported;
    }
    const std::lock_guard lock(mutex);
    if (options.progress) options.progress(++done);
  });
  return results;
}

ValidationSummary summarize(const std::vector<const ValidatedRow*>& rows) {
  ValidationSummary summary;
  std::vector<double> time_errors, memory_errors, suspect_errors;
  for (const ValidatedRow* row : rows) {
    if (!row->skipped.empty()) {
      ++summary.skipped;
      continue;
    }
    ++summary.predicted;
    summary.wrong_outcomes += !row->outcome_right;
    if (row->time_error) {
      (row->row.suspect.empty() ? time_errors : suspect_errors)
          .push_back(std::abs(*row->time_error));
      summary.inside_interval += row->row.suspect.empty() && row->inside_interval;
    }
    if (row->memory_error && row->row.suspect.empty()) {
      memory_errors.push_back(std::abs(*row->memory_error));
      summary.inside_memory_interval += row->inside_memory_interval;
    }
  }
  summary.time = score_errors(time_errors);
  summary.memory = score_errors(memory_errors);
  summary.suspect_time = score_errors(suspect_errors);
  return summary;
}

/// Everything that two rows of a pair have in common.
auto configuration(const profiles::LedgerRow& row) {
  const Plan& p = row.plan;
  return std::make_tuple(row.source, row.model.name, row.gpu, row.gpus_per_node,
                         row.inter_gbps_per_node, p.gpus, p.shard_group, p.seq_len, p.micro_batch,
                         p.grad_accum, recompute_name(p), p.ckpt_layers, p.ckpt_stride,
                         p.reduce_dtype, p.moment_dtype, p.attention, p.deterministic, p.stack);
}

std::vector<SpeedupPair> speedups(const std::vector<ValidatedRow>& rows) {
  const auto timed = [](const ValidatedRow& row, Strategy strategy) {
    return row.row.plan.strategy == strategy && row.time_error.has_value();
  };
  std::vector<SpeedupPair> pairs;
  for (std::size_t y = 0; y < rows.size(); ++y) {
    if (!timed(rows[y], Strategy::kYafsdp)) continue;
    for (std::size_t f = 0; f < rows.size(); ++f) {
      if (!timed(rows[f], Strategy::kFsdp1) ||
          configuration(rows[y].row) != configuration(rows[f].row)) {
        continue;
      }
      pairs.push_back(
          {y, f, 1 - *rows[y].row.iteration_s / *rows[f].row.iteration_s,
           1 - rows[y].prediction.time.iteration_s / rows[f].prediction.time.iteration_s});
      break;
    }
  }
  return pairs;
}

/// Fitted constants that runs of a single source see.
std::vector<SourceConstant> source_constants(const std::vector<profiles::LedgerRow>& rows) {
  const profiles::StepParameters steps =
      profiles::load_step_parameters(profiles::shipped_step_parameters());
  std::vector<const profiles::StepParameter*> all;
  for (const profiles::StepParameter& parameter : steps.parameters) all.push_back(&parameter);
  std::map<const profiles::StepParameter*, std::set<std::string>> sources;
  std::map<profiles::MachineKey, bool> known;
  for (const profiles::LedgerRow& row : rows) {
    if (!row.iteration_s || !row.unsupported.empty() ||
        !known.try_emplace(machine_key(row), true).second)
      continue;
    const profiles::ClusterFile cluster = profiles::cluster_of(row);
    const profiles::Profile profile = profiles::make_profile(cluster, profiles::stack_of(row));
    for (const profiles::StepParameter* seen :
         seen_by(all, profile, cluster.described_by, row.source)) {
      sources[seen].insert(row.source);
    }
  }
  std::vector<SourceConstant> constants;
  for (const profiles::StepParameter* parameter : all) {
    const std::set<std::string>& of = sources[parameter];
    if (!parameter->fitted || of.size() != 1) continue;
    constants.push_back({parameter->name, *of.begin(), parameter->fitted->value, parameter->prior,
                         !parameter->sources.empty()});
  }
  return constants;
}

}  // namespace

ErrorScore score_errors(const std::vector<double>& errors) {
  const profiles::ErrorSummary summary = summarize_errors(errors);
  const double worst = errors.empty() ? 0 : *std::max_element(errors.begin(), errors.end());
  return {summary.n, summary.mape, summary.median, worst};
}

Validation validate(const std::vector<profiles::LedgerRow>& rows,
                    const ValidationOptions& options) {
  Validation result;
  result.rows = predict_rows(rows, options);
  std::vector<const ValidatedRow*> all;
  std::map<std::string, std::vector<const ValidatedRow*>> by_source, by_gpu;
  for (const ValidatedRow& row : result.rows) {
    all.push_back(&row);
    by_source[row.row.source].push_back(&row);
    by_gpu[row.row.gpu].push_back(&row);
    if (!row.skipped.empty()) ++result.skipped_because[row.skipped];
  }
  result.all = summarize(all);
  for (const auto& [source, members] : by_source) result.by_source[source] = summarize(members);
  for (const auto& [gpu, members] : by_gpu) result.by_gpu[gpu] = summarize(members);
  result.speedups = speedups(result.rows);
  result.source_constants = source_constants(rows);
  return result;
}

double relative_error(double predicted, double measured) {
  return std::abs(predicted / measured - 1);
}

profiles::ErrorSummary summarize_errors(std::span<const double> errors) {
  profiles::ErrorSummary summary;
  if (errors.empty()) return summary;
  std::vector<double> sorted(errors.begin(), errors.end());
  std::sort(sorted.begin(), sorted.end());
  const auto rank = [&](double share) {
    const auto at = static_cast<std::size_t>(std::ceil(share * static_cast<double>(sorted.size())));
    return sorted[std::max<std::size_t>(at, 1) - 1];
  };
  double sum = 0;
  for (const double error : sorted) sum += error;
  summary.n = static_cast<std::int64_t>(sorted.size());
  summary.mape = sum / static_cast<double>(sorted.size());
  summary.median = rank(0.5);
  summary.p90 = rank(0.9);
  return summary;
}

namespace {

struct TimedLayout {
  std::string id;
  double measured_s = 0, predicted_s = 0;
};

std::int64_t sequences_per_step(const Plan& plan) {
  return plan.micro_batch * plan.grad_accum * (plan.gpus / plan.parallel.replica());
}

auto measured_together(const profiles::LedgerRow& row) {
  const Plan& p = row.plan;
  return std::make_tuple(row.source, row.model.name, row.gpu, row.gpus_per_node,
                         row.inter_gbps_per_node, p.gpus, p.seq_len, sequences_per_step(p),
                         std::string(name_of(p.numerics.precision)), p.numerics.lora, p.stack,
                         row.version.empty() ? row.software : row.version);
}

int sign_of(double difference) {
  return difference > 0 ? 1 : difference < 0 ? -1 : 0;
}

/// tau-b; 0 where one of the orders is all ties.
double kendall_tau(const std::vector<TimedLayout>& layouts) {
  double agreement = 0, by_measured = 0, by_predicted = 0;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const int measured = sign_of(layouts[i].measured_s - layouts[j].measured_s);
      const int predicted = sign_of(layouts[i].predicted_s - layouts[j].predicted_s);
      agreement += measured * predicted;
      by_measured += measured != 0;
      by_predicted += predicted != 0;
    }
  }
  const double pairs = std::sqrt(by_measured * by_predicted);
  return pairs > 0 ? agreement / pairs : 0;
}

void score_group(const std::vector<TimedLayout>& layouts, ChoiceGroup& group) {
  const auto shortest = [&](double TimedLayout::*time) {
    return std::min_element(
        layouts.begin(), layouts.end(),
        [&](const TimedLayout& a, const TimedLayout& b) { return a.*time < b.*time; });
  };
  const auto chosen = shortest(&TimedLayout::predicted_s),
             best = shortest(&TimedLayout::measured_s);
  group.layouts = static_cast<std::int64_t>(layouts.size());
  group.chosen = chosen->id;
  group.best = best->id;
  group.regret = chosen->measured_s / best->measured_s - 1;
  for (const TimedLayout& layout : layouts)
    group.random_regret +=
        (layout.measured_s / best->measured_s - 1) / static_cast<double>(layouts.size());
  group.kendall_tau = kendall_tau(layouts);
}

/// Layouts that rows of one group tell apart by what is predicted of them: equal plans have equal
/// predictions, and layouts that are predicted alike are one choice, which takes their mean.
std::vector<TimedLayout> distinct(const std::vector<const ValidatedRow*>& rows) {
  std::map<double, std::vector<const ValidatedRow*>> by_prediction;
  for (const ValidatedRow* row : rows)
    by_prediction[row->prediction.time.iteration_s].push_back(row);
  std::vector<TimedLayout> layouts;
  for (const auto& [predicted, alike] : by_prediction) {
    TimedLayout& layout = layouts.emplace_back(TimedLayout{alike.front()->row.id, 0, predicted});
    for (const ValidatedRow* row : alike)
      layout.measured_s += *row->row.iteration_s / static_cast<double>(alike.size());
  }
  return layouts;
}

}  // namespace

ChoiceScore score_choices(const Validation& validation) {
  std::map<decltype(measured_together({})), std::vector<const ValidatedRow*>> rows_of;
  for (const ValidatedRow& row : validation.rows) {
    if (row.time_error && row.row.suspect.empty())
      rows_of[measured_together(row.row)].push_back(&row);
  }
  ChoiceScore score;
  for (const auto& [key, rows] : rows_of) {
    const std::vector<TimedLayout> layouts = distinct(rows);
    if (layouts.size() < 2) continue;
    const profiles::LedgerRow& row = rows.front()->row;
    ChoiceGroup& group = score.groups.emplace_back();
    group.source = row.source;
    group.model = row.model.name;
    group.gpu = row.gpu;
    group.precision = name_of(row.plan.numerics.precision);
    group.release = row.version.empty() ? row.software : row.version;
    group.gpus = row.plan.gpus;
    group.seq_len = row.plan.seq_len;
    group.sequences = sequences_per_step(row.plan);
    score_group(layouts, group);
  }
  const auto n = static_cast<double>(score.groups.size());
  for (const ChoiceGroup& group : score.groups) {
    score.kendall_tau += group.kendall_tau / n;
    score.regret_mean += group.regret / n;
    score.random_regret_mean += group.random_regret / n;
    score.regret_worst = std::max(score.regret_worst, group.regret);
  }
  std::stable_sort(score.groups.begin(), score.groups.end(),
                   [](const ChoiceGroup& a, const ChoiceGroup& b) { return a.regret > b.regret; });
  return score;
}

namespace {

using RunKey = std::tuple<std::string, std::string, std::string, std::string>;

struct Members {
  std::set<std::string> releases;
  std::vector<double> errors, source_left_out;
  std::int64_t inside = 0;

  void add(const ValidatedRow& row, const double* left_out) {
    releases.insert(row.row.software);
    errors.push_back(std::abs(*row.time_error));
    inside += row.inside_interval;
    if (left_out != nullptr) source_left_out.push_back(std::abs(std::expm1(*left_out)));
  }
};

ReleaseScore summarize(const Members& members) {
  ReleaseScore score;
  score.releases.assign(members.releases.begin(), members.releases.end());
  std::stable_sort(score.releases.begin(), score.releases.end(),
                   [](const std::string& a, const std::string& b) {
                     return profiles::release_date(a) > profiles::release_date(b);
                   });
  const std::vector<int> newest = profiles::release_date(score.releases.front());
  score.year = newest.empty() ? 0 : newest.front();
  score.time = score_errors(members.errors);
  score.inside_interval = members.inside;
  score.source_left_out = score_errors(members.source_left_out);
  return score;
}

}  // namespace

std::vector<FrameworkScore> score_frameworks(const Validation& validation,
                                             std::span<const profiles::HeldOutRun> held_out) {
  std::map<RunKey, double> left_out;
  for (const profiles::HeldOutRun& run : held_out) {
    left_out[{run.id, run.source, run.gpu, run.model}] = run.log_error_source_out;
  }
  std::map<std::string, Members> frameworks;
  std::map<std::string, std::map<int, Members, std::greater<>>> years;
  for (const ValidatedRow& row : validation.rows) {
    if (!row.skipped.empty() || !row.time_error || !row.row.suspect.empty()) continue;
    const auto at = left_out.find({row.row.id, row.row.source, row.row.gpu, row.row.model.name});
    const double* error = at == left_out.end() ? nullptr : &at->second;
    const std::string& name =
        row.row.stack_called.empty() ? row.row.plan.stack : row.row.stack_called;
    const std::vector<int> date = profiles::release_date(row.row.software);
    frameworks[name].add(row, error);
    years[name][date.empty() ? 0 : date.front()].add(row, error);
  }
  std::vector<FrameworkScore> scores;
  for (const auto& [name, members] : frameworks) {
    FrameworkScore& score = scores.emplace_back(FrameworkScore{name, summarize(members), {}});
    for (const auto& [year, of_year] : years[name]) score.years.push_back(summarize(of_year));
  }
  std::stable_sort(scores.begin(), scores.end(),
                   [](const FrameworkScore& a, const FrameworkScore& b) {
                     return profiles::release_date(a.all.releases.front()) >
                            profiles::release_date(b.all.releases.front());
                   });
  return scores;
}

StageMemoryScore score_stage_memory(const CsvTable& table, const Validation& validation) {
  std::map<std::string, const Prediction*> predictions;
  for (const ValidatedRow& row : validation.rows) {
    if (row.skipped.empty()) predictions[row.row.id] = &row.prediction;
  }
  StageMemoryScore result;
  std::vector<double> errors;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const CsvRow row = table[i];
    StagePeak peak;
    peak.id = row.require<std::string>("id");
    peak.rank = row.require<std::int64_t>("rank");
    peak.stage = row.require<std::int64_t>("pp_stage");
    peak.measured_gib = row.require<double>("max_allocated_gib");
    if (peak.measured_gib <= 0) row.fail("max_allocated_gib", "a number above 0");
    const auto found = predictions.find(peak.id);
    if (found == predictions.end()) {
      ++result.skipped;
      continue;
    }
    const Prediction& prediction = *found->second;
    if (peak.stage < 0 || peak.stage >= std::ssize(prediction.stages)) {
      row.fail("pp_stage", "a stage of the run's pipeline");
    }
    const Bytes bytes =
        prediction.stages[static_cast<std::size_t>(peak.stage)].peak_allocated_bytes;
    peak.predicted_gib = static_cast<double>(bytes) / kGiB;
    peak.error = peak.predicted_gib / peak.measured_gib - 1;
    errors.push_back(std::abs(peak.error));
    result.peaks.push_back(std::move(peak));
  }
  result.allocated = score_errors(errors);
  return result;
}

double backward_layer_period_s(const Schedule& schedule, const Timeline& timeline) {
  const std::int64_t newest = schedule.layers * 3 / 4;  // backward goes from here ...
  const std::int64_t oldest = schedule.layers / 4;      // ... down to here
  if (oldest >= newest || oldest < 1) return 0;
  // The first backward kernel of each of the two layers; later micro-batches overwrite earlier
  // ones.
  OpId first_of_newest = -1, first_of_oldest = -1;
  std::int64_t previous_unit = -1;
  for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
    const bool kernel = op.work.kind == WorkKind::kGemm || op.work.kind == WorkKind::kMemory;
    if (op.phase != Phase::kBackward || op.stream != 0 || !kernel) return;
    if (at.unit == previous_unit) return;
    previous_unit = at.unit;
    if (at.unit == newest) first_of_newest = at.id;
    if (at.unit == oldest) first_of_oldest = at.id;
  });
  Nanoseconds begin = 0, end = 0;
  for (const Span& span : timeline.spans) {
    if (span.id == first_of_newest) begin = span.begin_ns;
    if (span.id == first_of_oldest) end = span.begin_ns;
  }
  return static_cast<double>(end - begin) * 1e-9 / static_cast<double>(newest - oldest);
}

std::vector<LayerPeriod> predict_layer_periods(const CsvTable& table,
                                               const std::vector<std::string>& overrides) {
  const std::vector<profiles::LedgerRow> rows = profiles::read_ledger(table);
  std::vector<LayerPeriod> periods;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const profiles::LedgerRow& row = rows[i];
    const auto measured_ms = table[i].require<double>("backward_layer_ms");
    if (measured_ms <= 0) table[i].fail("backward_layer_ms", "a number above 0");
    Predictor predictor(row.model, profiles::profile_of(row, overrides));
    Timeline timeline;
    PredictOptions options;
    options.reserved = false;
    options.timeline = &timeline;
    predictor.predict(row.plan, options);
    const std::vector<Schedule>& stages = predictor.program().stages;
    if (stages.size() > 1) table[i].fail("pp", "1, which has a backward pass of all layers");
    periods.push_back({row, measured_ms * 1e-3, backward_layer_period_s(stages.front(), timeline)});
  }
  return periods;
}

namespace {

using profiles::HeldOutRun;

/// Of the logarithm: constants are recorded to four digits, errors to five decimals.
constexpr double kSamePrediction = 2e-3;

[[noreturn]] void fail(const std::string& ledger, const std::string& id, std::string_view why) {
  const std::string command = "python3 -m profiles.research steps";
  throw Error(
      ledger.empty()
          ? fmt::format("the run {} of the ledger that ships {}; '{}' fits without each run and "
                        "records it.",
                        id, why, command)
          : fmt::format("{}: the run {} {}; '{} --ledger {}' fits without each run and records "
                        "it in {}.",
                        ledger, id, why, command, ledger, left_out_file(ledger)));
}

ErrorScore score(const std::vector<const LeftOutRow*>& rows, std::size_t without) {
  std::vector<double> errors;
  for (const LeftOutRow* row : rows) errors.push_back(std::abs(row->error[without]));
  return score_errors(errors);
}

LeaveOneOutScore score(const std::vector<const LeftOutRow*>& rows) {
  LeaveOneOutScore result;
  for (std::size_t without = 0; without < result.time.size(); ++without) {
    result.time[without] = score(rows, without);
  }
  std::map<std::string_view, double> runs_of;
  for (const LeftOutRow* row : rows) ++runs_of[row->cell];
  result.cells = std::ssize(runs_of);
  for (const LeftOutRow* row : rows) {
    const double weight = 1 / (runs_of[row->cell] * static_cast<double>(result.cells));
    for (std::size_t i = 0; i < row->inside.size(); ++i) {
      result.inside[i] += row->inside[i];
      result.cells_inside[i] += row->inside[i] * weight;
    }
  }
  return result;
}

LeftOutRow left_out(const HeldOutRun& run, double measured_s) {
  LeftOutRow row{run.id, run.cell(), measured_s, measured_s * std::exp(run.log_error),
                 {},     run.inside};
  const std::array<double, kHeldOuts> errors = {run.log_error_fitted, run.log_error,
                                                run.log_error_cell_out, run.log_error_source_out};
  std::transform(errors.begin(), errors.end(), row.error.begin(),
                 [](double error) { return std::expm1(error); });
  return row;
}

}  // namespace

std::string left_out_file(const std::string& ledger) {
  return ledger + ".left_out.json";
}

LeaveOneOut leave_one_out(const Validation& validation, const profiles::HeldOutRecord& record,
                          const std::string& ledger) {
  std::map<std::string_view, const HeldOutRun*> recorded;
  for (const HeldOutRun& run : record.runs) recorded[run.id] = &run;
  LeaveOneOut result;
  std::vector<std::string_view> sources;
  for (const ValidatedRow& row : validation.rows) {
    if (!row.time_error || !row.row.suspect.empty()) continue;
    const auto at = recorded.find(row.row.id);
    if (at == recorded.end()) fail(ledger, row.row.id, "was left out of no fit");
    const HeldOutRun& run = *at->second;
    const bool same =
        run.source == row.row.source && run.gpu == row.row.gpu && run.model == row.row.model.name &&
        std::abs(std::log1p(*row.time_error) - run.log_error_fitted) < kSamePrediction;
    if (!same) fail(ledger, row.row.id, "is not the one of that name that was left out of fits");
    result.rows.push_back(left_out(run, *row.row.iteration_s));
    sources.push_back(run.source);
  }
  std::vector<const LeftOutRow*> all;
  std::map<std::string, std::vector<const LeftOutRow*>> by_source;
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    all.push_back(&result.rows[i]);
    by_source[std::string(sources[i])].push_back(&result.rows[i]);
  }
  result.all = score(all);
  for (const auto& [source, rows] : by_source) result.by_source[source] = score(rows);
  return result;
}

}  // namespace shardwright::sim
