// SPDX-License-Identifier: Apache-2.0
#include "sim/score/validation.h"

#include <algorithm>
#include <mutex>
#include <tuple>

#include "sim/core/error.h"
#include "sim/core/units.h"
#include "sim/core/worker_pool.h"
#include "sim/score/error_summary.h"

namespace shardwright::sim {
namespace {

/// Profiles by what a row says of its machine, read once before the rows are predicted.
class Profiles {
 public:
  Profiles(const std::vector<profiles::LedgerRow>& rows, const ValidationOptions& options) {
    for (const profiles::LedgerRow& row : rows) {
      if (!row.unsupported.empty()) continue;
      const auto [at, is_new] = profiles_.try_emplace(key(row));
      if (!is_new) continue;
      at->second = profiles::make_profile(profiles::cluster_of(row),
                                          profiles::load_stack(row.plan.stack), options.overrides);
    }
  }
  const profiles::Profile& of(const profiles::LedgerRow& row) const {
    return profiles_.at(key(row));
  }

 private:
  using Key = std::tuple<std::string, std::int64_t, std::optional<double>, std::string>;
  static Key key(const profiles::LedgerRow& row) {
    return {row.gpu, row.gpus_per_node, row.inter_gbps_per_node, row.plan.stack};
  }
  std::map<Key, profiles::Profile> profiles_;
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

ValidatedRow validate_row(const profiles::LedgerRow& row, const profiles::Profile& profile) {
  ValidatedRow out;
  out.row = row;
  try {
    out.prediction = predict(row.model, profile, row.plan);
  } catch (const Error& error) {
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
  if (row.peak_gib) out.memory_error = out.predicted_peak_gib / *row.peak_gib - 1;
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

ErrorScore score(const std::vector<double>& errors) {
  const profiles::ErrorSummary summary = summarize_errors(errors);
  const double worst = errors.empty() ? 0 : *std::max_element(errors.begin(), errors.end());
  return {summary.n, summary.mape, summary.median, worst};
}

ValidationSummary summarize(const std::vector<const ValidatedRow*>& rows) {
  ValidationSummary summary;
  std::vector<double> time_errors, memory_errors;
  for (const ValidatedRow* row : rows) {
    if (!row->skipped.empty()) {
      ++summary.skipped;
      continue;
    }
    ++summary.predicted;
    summary.wrong_outcomes += !row->outcome_right;
    if (row->time_error) {
      time_errors.push_back(std::abs(*row->time_error));
      summary.inside_interval += row->inside_interval;
    }
    if (row->memory_error) memory_errors.push_back(std::abs(*row->memory_error));
  }
  summary.time = score(time_errors);
  summary.memory = score(memory_errors);
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

}  // namespace

Validation validate(const std::vector<profiles::LedgerRow>& rows,
                    const ValidationOptions& options) {
  Validation result;
  result.rows = predict_rows(rows, options);
  std::vector<const ValidatedRow*> all;
  std::map<std::string, std::vector<const ValidatedRow*>> by_source;
  for (const ValidatedRow& row : result.rows) {
    all.push_back(&row);
    by_source[row.row.source].push_back(&row);
    if (!row.skipped.empty()) ++result.skipped_because[row.skipped];
  }
  result.all = summarize(all);
  for (const auto& [source, members] : by_source) result.by_source[source] = summarize(members);
  result.speedups = speedups(result.rows);
  return result;
}

}  // namespace shardwright::sim
