// SPDX-License-Identifier: Apache-2.0
#include "tests/support/invariant.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <fstream>

#include "sim/core/base/check.h"

namespace shardwright::testing {
namespace {

constexpr std::size_t kShown = 5;

std::vector<KnownRed> read_known_red() {
  std::ifstream file(SHARDWRIGHT_TEST_DATA "/known_red.txt");
  SHARDWRIGHT_CHECK(file.good(), "no file {}", SHARDWRIGHT_TEST_DATA "/known_red.txt");
  std::vector<KnownRed> all;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    const std::size_t one = line.find(" | "), two = line.find(" | ", one + 3);
    SHARDWRIGHT_CHECK(two != std::string::npos, "known_red.txt: '{}' has no three parts", line);
    all.push_back({line.substr(0, one), line.substr(one + 3, two - one - 3), line.substr(two + 3)});
  }
  return all;
}

}  // namespace

const std::vector<KnownRed>& known_red() {
  static const std::vector<KnownRed> all = read_known_red();
  return all;
}

void Invariant::expect(bool holds, const std::string& what) {
  ++tried_;
  if (holds) return;
  ++broken_;
  if (first_.size() < kShown) first_.push_back(what);
}

Invariant::~Invariant() {
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = fmt::format("{}.{}", test.test_suite_name(), test.name());
  if (!enough()) ADD_FAILURE() << "tried " << tried_ << " cases, at least " << least_ << " are due";
  for (const KnownRed& red : known_red()) {
    if (red.invariant != name) continue;
    if (broken_ == 0)
      ADD_FAILURE() << name << " holds: take it off tests/data/known_red.txt (" << red.owner << ")";
    return;
  }
  if (broken_ > 0)
    ADD_FAILURE() << broken_ << " of " << tried_ << " break it:\n  "
                  << fmt::format("{}", fmt::join(first_, "\n  "));
}

}  // namespace shardwright::testing
