// SPDX-License-Identifier: Apache-2.0
// What `tune --json` said, read back for the report.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "sim/core/base/json_file.h"

namespace shardwright::cli {

struct TunedModel {
  std::string name;  // as it was given
  std::int64_t parameters = 0;
  std::int64_t layers = 0;
};

struct TuningFile {
  JsonFile file;
  std::optional<TunedModel> model;  // none: nothing fits
};

/// Throws Error naming file and key when it is no document of `tune --json`.
TuningFile read_tuning(const std::filesystem::path& path);

}  // namespace shardwright::cli
