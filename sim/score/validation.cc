// SPDX-License-Identifier: Apache-2.0
#include "sim/score/validation.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>
#include <tuple>

#include "profiles/ledger/ledger_profile.h"
#include "sim/core/base/invalid_plan.h"
#include "sim/core/base/worker_pool.h"
#include "sim/core/units.h"
#include "sim/score/error_summary.h"

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

}  // namespace shardwright::sim
