// SPDX-License-Identifier: Apache-2.0
// What differs between two profiles, by value and in what it means for typical operations.
//
// A profile is a cluster (shipped, own, or calibrated) together with a stack; two stack files can
// be compared too, on the same machine. Values are listed with what they stand for; what they
// amount to is said by the times of a few operations of a training step, each predicted with both.
#pragma once

#include <string>
#include <vector>

#include "profiles/profile.h"

namespace shardwright::cli {

struct ValueChange {
  std::string path;
  std::string meaning;
  std::string a, b;    // as a person writes them
  double ratio = 0;    // b over a; 0: not numbers above 0
  std::string source;  // of b
};

struct OperationChange {
  std::string what;  // "a product of 8192 x 8192 x 8192"
  double a_s = 0, b_s = 0;
};

struct ProfileDiff {
  std::string a, b;                  // as given
  std::int64_t values = 0;           // compared
  std::vector<ValueChange> changes;  // largest ratios first, then those that are no numbers
  std::vector<OperationChange> operations;
};

/// Either both clusters (then with `stack`) or both stacks (then on the cluster `on`); names or
/// paths. Throws Error.
ProfileDiff diff_profiles(const std::string& a, const std::string& b, const std::string& stack,
                          const std::string& on);

}  // namespace shardwright::cli
