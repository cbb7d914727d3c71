// SPDX-License-Identifier: Apache-2.0
#include "profiles/ledger/software_age.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "profiles/data_dir.h"
#include "profiles/release_date.h"
#include "sim/core/base/json_file.h"

namespace shardwright::profiles {
namespace {

constexpr int kMonths = 12;

std::optional<int> month_of(std::string_view release) {
  const std::vector<int> date = release_date(release);
  if (date.size() < 2) return std::nullopt;
  return date[0] * kMonths + date[1];
}

int month_at(const JsonReader& from, std::string_view key) {
  const auto text = from.require<std::string>(key);
  if (const auto month = month_of(text)) return *month;
  from.fail(key, "a month, as 2026-06");
}

}  // namespace

double SoftwareAge::kept(const LedgerRow& row) const {
  if (!gpus.contains(row.gpu)) return 1;
  std::optional<int> month = month_of(row.software);
  if (const auto of_stack = releases.find(row.plan.stack); !month && of_stack != releases.end()) {
    for (const auto& [begin, released] : of_stack->second)
      if (row.software.starts_with(begin)) month = released;
  }
  if (!month) return 1;
  return 1 - lost_a_month * (newest - std::clamp(*month, oldest, newest));
}

SoftwareAge load_software_age(const std::filesystem::path& file) {
  const JsonFile document = JsonFile::load(file);
  const JsonReader root = document.root();
  root.require_choice("schema", {"shardwright.software_age/1.0"});
  SoftwareAge age;
  for (const std::string& gpu : root.require_list<std::string>("gpus")) age.gpus.insert(gpu);
  age.lost_a_month = root.require<double>("lost_a_month", between(0.0, 0.02));
  age.oldest = month_at(root, "oldest");
  age.newest = month_at(root, "newest");
  if (age.oldest > age.newest) root.fail("oldest", "a month that is not after newest");
  const JsonReader stacks = root.require_object("releases");
  for (const std::string& stack : stacks.keys()) {
    const JsonReader releases = stacks.require_object(stack);
    for (const std::string& begin : releases.keys())
      age.releases[stack][begin] = month_at(releases, begin);
  }
  return age;
}

const SoftwareAge& software_age() {
  static const SoftwareAge age = [] {
    const std::filesystem::path file = data_dir() / "fitted" / "software_age.json";
    return std::filesystem::exists(file) ? load_software_age(file) : SoftwareAge{};
  }();
  return age;
}

}  // namespace shardwright::profiles
