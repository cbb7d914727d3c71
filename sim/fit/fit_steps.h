// SPDX-License-Identifier: Apache-2.0
// Fits the step parameters to the ledger and says how good they are: intervals of the constants,
// errors in sample and held out, and the held-out errors that prediction intervals stand on.
//
// The fit begins at the priors, so that its result depends on the ledger, the simulator and
// step_parameters.json only, never on the values that happen to be in the data files. The interval
// of a constant is the wider of what the rows resolve and of a delete-a-group jackknife, which also
// sees that the model is wrong in places.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "profiles/step_parameters.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/fit/leave_one_out.h"

namespace shardwright::sim {

struct FittedSteps {
  profiles::StepParameters parameters;
  LeaveOneOut leave_one_out;
  profiles::Uncertainty uncertainty;
};

struct FitStepsOptions {
  LeaveOneOutOptions loop;
  std::string date;  // to record, YYYY-MM-DD
};

/// `parameters` say what is fitted and from which priors; fitted values in them are not read.
FittedSteps fit_steps(const std::vector<profiles::LedgerRow>& rows,
                      profiles::StepParameters parameters, const FitStepsOptions& options);

/// Writes what changes into data folder `to`: the cost parameters, clusters and stacks of folder
/// `from` with the fitted values and their source, fitted/step_parameters.json and
/// fitted/residuals.json. The folders may be the same. Returns the files, for the report.
std::vector<std::filesystem::path> save_steps(const FittedSteps& fitted,
                                              const std::filesystem::path& from,
                                              const std::filesystem::path& to);

}  // namespace shardwright::sim
