// SPDX-License-Identifier: Apache-2.0
// The values of a profile that measurements can move, by group.
//
// What is believed of them before anything is measured (how far they may lie off, and which yields
// where measurements cannot tell two apart) stands where the fields are described: Belief of
// profiles/fields.h. What a value stands for, and so what measurement would tell it, follows from
// its path.
#pragma once

#include <string>
#include <vector>

#include "profiles/calibration.h"
#include "profiles/fields.h"
#include "profiles/profile.h"

namespace shardwright::sim {

struct Adjustable {
  std::string path;
  // As profiles::Belief has them: the weak prior of the fit and what counts as determined.
  double spread = 0.5;
  int rank = 0;
  bool relative = false;
  double lower = 0, upper = 0;  // what a profile accepts
};

/// Values of `group` that a logarithmic fit can move: above 0 in `profile`. The parameters of the
/// attention kernel are those of the stack's. By rank.
std::vector<Adjustable> adjustable_values(const profiles::Profile& profile,
                                          profiles::CostGroup group);

/// The values of a profile by path, to change and read. Holds a copy.
class EditableProfile {
 public:
  explicit EditableProfile(profiles::Profile profile);
  EditableProfile(const EditableProfile&) = delete;
  EditableProfile& operator=(const EditableProfile&) = delete;

  const profiles::Profile& profile() const { return profile_; }
  double* find(const std::string& path);  // null: no such number

 private:
  profiles::Profile profile_;
  profiles::FieldList fields_;
};

}  // namespace shardwright::sim
