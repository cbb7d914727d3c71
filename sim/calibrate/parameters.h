// The values of a profile that measurements can move, by group.
//
// Each has a path, the spread of what is believed before anything is measured (a standard deviation
// of the logarithm, the weak prior of the fit and the measure of what counts as determined), and a
// rank: where measurements cannot tell two values apart, the one of the higher rank stays as it is.
// What a value stands for, and so what measurement would tell it, follows from its path.
#pragma once

#include <string>
#include <vector>

#include "profiles/calibration.h"
#include "profiles/profile.h"

namespace shardwright::sim {

struct Adjustable {
  std::string path;
  double spread = 0.5;
  int rank = 0;
  /// Others are given in terms of it, as a share of a peak is: where it is frozen they are what
  /// they are beside it, and doubt about it is none about them.
  bool relative = false;
  double lower = 0, upper = 0;  // what a profile accepts
};

/// Values of `group` that a logarithmic fit can move: above 0 in `profile`. The parameters of the
/// attention kernel are those of the stack's.
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
