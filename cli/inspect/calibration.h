// SPDX-License-Identifier: Apache-2.0
// `shardwright inspect profile NAME`: what a calibrated profile was made of and how good it is.
#pragma once

#include <string>

#include "cli/inspect/form.h"
#include "cli/render/text/terminal.h"

namespace shardwright::cli {

/// Provenance, sources, errors by group, and the values that moved with their intervals; of a
/// profile without a calibration, that it has none. Throws Error for what is no cluster.
std::string inspect_calibration(const std::string& name, Form form, const Terminal& out);

}  // namespace shardwright::cli
