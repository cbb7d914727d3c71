// SPDX-License-Identifier: Apache-2.0
// What numbers in a framework's file may be.
#pragma once

#include "profiles/fields.h"

namespace shardwright::profiles {

inline const NumberRange<double> kBytesPerElement = between(0.0, 1e6);
inline const NumberRange<double> kLaunches = between(0.0, 10000.0);
inline const NumberRange<double> kUpToAnHour = between(0.0, 3600.0);

}  // namespace shardwright::profiles
