// SPDX-License-Identifier: Apache-2.0
// How --help looks: two columns within 100, long descriptions wrapped under themselves.
#pragma once

#include <string>

namespace shardwright::cli {

/// "  --gpus N        how many", with a long name on a line of its own.
std::string help_entry(const std::string& name, const std::string& description);

}  // namespace shardwright::cli
