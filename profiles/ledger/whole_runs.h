// SPDX-License-Identifier: Apache-2.0
// Published training runs: what was trained on how many tokens, and how many GPU hours it took
// from the first step to the last, failures and all.
//
// profiles/data/published/whole_runs.csv holds them with their sources; README.md there explains
// the columns. Only the columns named below are read, so that tables with more of them, or of a
// later cut, are read too. A cell that is empty is not published. Parallel sizes are texts such as
// "8 (virtual)", of which the leading number counts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/base/csv.h"
#include "sim/core/model.h"

namespace shardwright::profiles {

struct WholeRun {
  std::string id, family, source;
  std::size_t line = 0;
  std::int64_t year = 0;  // of the publication; 0: not told
  char tier = 'C';  // A: explicit figures; B: one of them rounded or bounded; C: not to be scored
  /// What keeps it from being predicted at all; empty: nothing.
  std::string not_scorable;
  /// The architecture, where it is published and of a kind that is modelled.
  std::optional<Model> model;
  std::string no_model;  // why there is none, in words
  bool experts = false;
  double parameters = 0;         // active on a token
  double matmul_parameters = 0;  // of these, in GEMMs
  double attention_flops = 0;    // of a token, forward and backward, causal; 0: unknown
  double tokens = 0;
  std::int64_t seq_len = 0;  // 0: not published
  std::optional<double> global_batch_tokens;
  std::string gpu;  // as published: "a100-80g-sxm"
  double peak_flops = 0;
  std::optional<std::int64_t> gpus;
  double gpu_hours = 0;
  std::int64_t tensor = 0, pipeline = 0, expert = 0;  // parallel sizes; 0: not published
  std::optional<std::int64_t> micro_batch;
  std::string sharding, recompute, precision, software;
  std::optional<double> steady_mfu;  // of published steps, by 6 N
  double whole_mfu = 0;              // 6 N tokens over GPU hours and peak; 0: not scorable

  /// Whether the layout is known to be data parallelism alone, or nothing else is known of it.
  bool data_parallel() const { return tensor <= 1 && pipeline <= 1 && expert <= 1; }
  /// Whether it counts in scores and fits.
  bool scored() const { return not_scorable.empty() && (tier == 'A' || tier == 'B'); }
};

/// The shipped table, `data_dir()`/published/whole_runs.csv.
std::filesystem::path shipped_whole_runs();

/// Throws Error naming file, line and column.
std::vector<WholeRun> load_whole_runs(const std::filesystem::path& path);
std::vector<WholeRun> read_whole_runs(const CsvTable& table);
/// Those of the shipped table, which is read once.
const std::vector<WholeRun>& shipped_trainings();

}  // namespace shardwright::profiles
