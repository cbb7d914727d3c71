// SPDX-License-Identifier: Apache-2.0
// What holds for every plan, tried on many. tests/data/known_red.txt lists the invariants that do
// not hold today, each with who mends it: one that is listed there must be broken, so that a mend
// takes it off the list.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardwright::testing {

/// The lines of tests/data/known_red.txt: "Suite.Test | owner | what breaks it".
struct KnownRed {
  std::string invariant, owner, why;
};
const std::vector<KnownRed>& known_red();

/// The invariant of the test that runs; ends it with a failure where it is broken, or listed as
/// broken and is not.
class Invariant {
 public:
  /// `least`: so many cases must have been tried, or nothing is said.
  explicit Invariant(std::int64_t least) : least_(least) {}
  ~Invariant();
  Invariant(const Invariant&) = delete;
  Invariant& operator=(const Invariant&) = delete;

  void expect(bool holds, const std::string& what);
  bool enough() const { return tried_ >= least_; }

 private:
  std::int64_t least_, tried_ = 0, broken_ = 0;
  std::vector<std::string> first_;  // of those that break it
};

}  // namespace shardwright::testing
