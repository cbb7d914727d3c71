// SPDX-License-Identifier: Apache-2.0
// The list of invariants that do not hold names tests that exist, and who mends them.

#include "sim/core/base/read_file.h"
#include "tests/core/common.h"
#include "tests/support/invariant.h"

namespace shardwright::testing {
namespace {

TEST(KnownRed, NamesInvariantsThatAreTested) {
  std::set<std::string> tested;
  const std::filesystem::path tests = std::filesystem::path(SHARDWRIGHT_TEST_DATA).parent_path();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(tests)) {
    if (!entry.path().string().ends_with("_invariants_test.cc")) continue;
    const std::string text = read_file(entry.path(), 1 << 20);
    for (std::size_t at = 0; (at = text.find("\nTEST(", at)) != std::string::npos; ++at) {
      std::string name = text.substr(at + 6, text.find(')', at) - at - 6);
      if (const std::size_t comma = name.find(", "); comma != std::string::npos)
        tested.insert(name.replace(comma, 2, "."));
    }
  }
  EXPECT_GT(tested.size(), 10U);
  for (const KnownRed& red : known_red()) {
    EXPECT_EQ(tested.count(red.invariant), 1U) << red.invariant;
    EXPECT_FALSE(red.owner.empty() || red.why.empty()) << red.invariant;
  }
}

}  // namespace
}  // namespace shardwright::testing
