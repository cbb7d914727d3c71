// SPDX-License-Identifier: Apache-2.0
#include "sim/score/framework_score.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "profiles/release_date.h"

namespace shardwright::sim {
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

}  // namespace shardwright::sim
