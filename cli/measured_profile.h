// From observations to a profile on disk: what measure ends with.
//
// On a processor the base is sized first: its cores and memory are the machine's, its rates those
// of the base for each core, and what was measured is fitted from there.
#pragma once

#include <string>

#include "profiles/observation.h"
#include "sim/calibrate/calibrate.h"

namespace shardwright::cli {

struct MeasuredProfile {
  sim::CalibrationResult result;
  std::string text;  // of the cluster file
};

struct MeasuredProfileOptions {
  std::string base;   // as --cluster takes it
  std::string stack;  // whose values are fitted
  std::string out;    // path of the file; a base that is a path is written relative to it
  std::string date;   // YYYY-MM-DD
  std::string from;   // what the values are fitted to, in words: "2 traces"
};

/// Throws Error when nothing was observed that the base can predict.
MeasuredProfile measured_profile(const profiles::ObservationSet& set,
                                 const MeasuredProfileOptions& options);

/// The base as a profile, sized to the processor of the first source where it is one.
profiles::Profile sized_base(const std::string& base, const std::string& stack,
                             const profiles::ObservationSet& set);

}  // namespace shardwright::cli
