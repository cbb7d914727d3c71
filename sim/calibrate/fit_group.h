// SPDX-License-Identifier: Apache-2.0
// Fits the values of one group to measured rows: those that the rows determine, and no others.
//
// 1. Which values are free (group_problem.h)? Of those that any row sees, the weakest direction of
//    the information matrix (in units of what is believed beforehand) is looked at; as long as the
//    rows leave it wider than half of the belief, the value of the highest rank in it is frozen at
//    what the profile has. Frozen values never move, not in the last bit.
// 2. Fit by least absolute deviations of logarithms (group_problem.h), from the profile's
//    values. Those that turn out wider than half of the belief, the uncertainty about frozen ones
//    included, are frozen, and the fit is repeated. A leading value (of rank 0) carries the level
//    of its rows and is judged by them alone.
// 3. Intervals: the covariance of the fit, and what the uncertainty about frozen values that these
//    rows see adds to it.
// 4. Errors: in sample; and held out, each row predicted by a fit to the others (five folds by what
//    the rows are; each row by itself when there are few).
#pragma once

#include <string>
#include <vector>

#include "profiles/calibration.h"
#include "profiles/fields.h"
#include "profiles/profile.h"
#include "sim/calibrate/rows.h"
#include "sim/cost/op_cost.h"

namespace shardwright::sim {

// The values of a profile that measurements can move, by group.
//
// What is believed of them before anything is measured (how far they may lie off, and which yields
// where measurements cannot tell two apart) stands where the fields are described: Belief of
// profiles/fields.h. What a value stands for, and so what measurement would tell it, follows from
// its path.

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

struct FittedValue {
  std::string path;
  double before = 0, after = 0;
  double low = 0, high = 0;  // 95 %; the same as `after` unless determined
  std::int64_t rows = 0;     // that see it
  bool determined = false;
  std::string why_not;  // in words, unless determined
};

struct GroupFit {
  profiles::CostGroup group = profiles::CostGroup::kProducts;
  std::vector<FittedValue> values;
  profiles::CalibratedGroup errors;
};

struct FitOptions {
  double level = 0.9;    // of half widths
  bool held_out = true;  // false: no held-out errors and no half width
};

/// `profile` is changed where values are determined. Not for the host (stack_from_trace.h).
GroupFit fit_group(EditableProfile& profile, profiles::CostGroup group,
                   const std::vector<Target>& targets, const Sharing& sharing,
                   const FitOptions& options = {});

// How far a group's predictions are off: condensed errors, quantiles, and the half width that its
// part of a step's time stays within.
//
// A step spends its products' time in several shapes, whose errors partly cancel; so the half width
// is that of the group's total. It is the bootstrap's: rows are drawn with replacement, the
// measured total is held against the total predicted by fits without those rows, and of the drawn
// errors the quantile at the level is taken, widened for few rows as Student's t is. An operation
// that alone determines a value cannot be held out; it is believed to be 5 % off.

/// Errors are log(predicted / measured) by target, NaN where none is known. Level 0: no half width.
void fill_errors(const std::vector<Target>& targets, const std::vector<double>& before,
                 const std::vector<double>& in_sample, const std::vector<double>& held_out,
                 double level, profiles::CalibratedGroup& errors);

/// 5, 25, 50, 75 and 95 %, interpolated; all 0 of nothing.
profiles::ErrorQuantiles quantiles_of(const std::vector<double>& values);

}  // namespace shardwright::sim
