// SPDX-License-Identifier: Apache-2.0
#include "tests/guard/published_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "profiles/ledger/ledger_profile.h"
#include "sim/core/base/error.h"
#include "sim/predict.h"

namespace shardwright::guard {
namespace {

using profiles::LedgerRow;

// What README.md promises.
constexpr const char* kYafsdpTable = "YaFSDP README";
constexpr double kYafsdpMean = 0.031;
constexpr double kYafsdpWorst = 0.075;
constexpr double kAllMean = 0.035;
constexpr std::int64_t kSpeedups = 14;  // of 16 within 3 points

// The record has five digits; a step simulated by another compiler may round otherwise.
constexpr double kRecordTolerance = 0.0005;

using Configuration =
    std::tuple<std::string, std::string, std::int64_t, std::int64_t, std::int64_t>;

Configuration configuration(const LedgerRow& row) {
  return {row.source, row.model.name, row.plan.gpus, row.plan.seq_len, row.plan.ckpt_layers};
}

Errors summarize(const std::vector<double>& errors) {
  Errors summary;
  summary.n = static_cast<std::int64_t>(errors.size());
  for (const double error : errors) {
    summary.mean += std::abs(error) / static_cast<double>(errors.size());
    summary.signed_mean += error / static_cast<double>(errors.size());
    summary.worst = std::max(summary.worst, std::abs(error));
  }
  return summary;
}

nlohmann::json record() {
  std::ifstream in(std::filesystem::path(SHARDWRIGHT_GUARD) / "published_errors.json");
  return nlohmann::json::parse(in);
}

}  // namespace

Ledger::Ledger() : rows_(profiles::load_ledger(profiles::shipped_ledger())) {
  table_.predicted_s.resize(rows_.size());
  table_.fits.resize(rows_.size());
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    profiles_.push_back(profiles::profile_of(rows_[i]));
    predict(i, profiles_.back(), table_);
  }
  score(table_);
}

PublishedTable Ledger::mutated(const Mutation& mutation) const {
  PublishedTable table;
  table.predicted_s = table_.predicted_s;
  table.fits = table_.fits;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    profiles::Profile profile = profiles_[i];
    if (mutation(rows_[i], profile)) predict(i, profile, table);
  }
  score(table);
  return table;
}

void Ledger::predict(std::size_t row, const profiles::Profile& profile,
                     PublishedTable& table) const {
  table.predicted_s[row] = 0;
  try {
    const sim::Prediction prediction = sim::predict(rows_[row].model, profile, rows_[row].plan);
    table.predicted_s[row] = prediction.time.iteration_s;
    table.fits[row] = prediction.memory.fits;
  } catch (const Error&) {
    // Counted as skipped.
  }
}

void Ledger::score(PublishedTable& table) const {
  std::map<std::string, std::vector<double>> by_group;
  std::vector<double> all, yafsdp;
  std::map<Configuration, std::size_t> fsdp1;  // of the YaFSDP table
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const LedgerRow& row = rows_[i];
    if (table.predicted_s[i] <= 0) {
      ++table.skipped;
      continue;
    }
    table.wrong_outcomes += table.fits[i] == row.out_of_memory;
    if (!row.iteration_s || !row.suspect.empty()) continue;
    const double error = table.predicted_s[i] / *row.iteration_s - 1;
    by_group[fmt::format("{}, {} on {}", row.source, row.plan.stack, row.gpu)].push_back(error);
    all.push_back(error);
    if (row.source != kYafsdpTable) continue;
    yafsdp.push_back(error);
    if (row.plan.strategy == Strategy::kFsdp1) fsdp1[configuration(row)] = i;
  }
  for (const auto& [group, errors] : by_group) table.by_group[group] = summarize(errors);
  table.yafsdp = summarize(yafsdp);
  table.all = summarize(all);
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].source != kYafsdpTable || rows_[i].plan.strategy != Strategy::kYafsdp) continue;
    const auto other = fsdp1.find(configuration(rows_[i]));
    if (other == fsdp1.end()) continue;
    const double measured = 1 - *rows_[i].iteration_s / *rows_[other->second].iteration_s;
    const double predicted = 1 - table.predicted_s[i] / table.predicted_s[other->second];
    ++table.speedups;
    table.speedups_within_3_points += std::abs(predicted - measured) <= 0.03;
  }
}

std::vector<std::string> broken_promises(const PublishedTable& table) {
  std::vector<std::string> broken;
  const auto at_most = [&](const char* what, double value, double bound) {
    if (!(value <= bound)) {
      broken.push_back(
          fmt::format("{}: {:.2f} %, promised {:.2f} %", what, 100 * value, 100 * bound));
    }
  };
  at_most("mean error of the YaFSDP table", table.yafsdp.mean, kYafsdpMean);
  at_most("worst error of the YaFSDP table", table.yafsdp.worst, kYafsdpWorst);
  at_most("mean error of all runs", table.all.mean, kAllMean);
  if (table.speedups_within_3_points < kSpeedups) {
    broken.push_back(fmt::format("{} of {} speedups within 3 points, promised {}",
                                 table.speedups_within_3_points, table.speedups, kSpeedups));
  }
  if (table.wrong_outcomes > 0) {
    broken.push_back(fmt::format("{} outcomes are wrong", table.wrong_outcomes));
  }
  if (table.skipped > 0) broken.push_back(fmt::format("{} rows are skipped", table.skipped));
  return broken;
}

std::vector<std::string> departures_from_record(const PublishedTable& table) {
  static const nlohmann::json recorded = record();
  std::vector<std::string> departures;
  const nlohmann::json& groups = recorded.at("groups");
  if (groups.size() != table.by_group.size()) {
    departures.push_back(
        fmt::format("{} groups of runs, recorded {}", table.by_group.size(), groups.size()));
  }
  for (const auto& [group, errors] : table.by_group) {
    const auto compare = [&, name = group](const char* figure, double value, double tolerance) {
      const double expected =
          groups.contains(name) ? groups.at(name).at(figure).get<double>() : std::nan("");
      if (!(std::abs(value - expected) <= tolerance)) {
        departures.push_back(
            fmt::format("{}, {}: {:.5f}, recorded {:.5f}", name, figure, value, expected));
      }
    };
    compare("n", static_cast<double>(errors.n), 0);
    compare("mean", errors.mean, kRecordTolerance);
    compare("worst", errors.worst, kRecordTolerance);
    compare("signed_mean", errors.signed_mean, kRecordTolerance);
  }
  return departures;
}

}  // namespace shardwright::guard
