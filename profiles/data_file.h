// SPDX-License-Identifier: Apache-2.0
// Finding and opening the data file behind a name.
//
// A GPU, cluster or stack is given by the name of a shipped file (profiles/data/<kind>/<name>.json)
// or by the path of a user's own file of the same schema. Words with a '/' or ending in ".json" are
// paths; a path inside a data file is relative to that file.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/base/json_file.h"

namespace shardwright::profiles {

enum class DataKind { kGpu, kCluster, kStack };

/// "gpu", "cluster", "stack".
std::string_view name_of(DataKind kind);

/// The names that ship, in alphabetical order.
std::vector<std::string> shipped_names(DataKind kind);

/// Stacks beside the ledger, for rows whose software one source alone describes
/// (published/presets): their files, by name. They have names, too, but no list shows them.
std::vector<std::filesystem::path> published_presets();

struct DataFile {
  std::shared_ptr<const JsonFile> json;  // never null
  std::filesystem::path path;
  std::string id;           // the file's "id", else its name without ".json"
  std::string description;  // may be empty
};

/// Opens and checks schema, id and description. `from` is the folder that relative paths start
/// from. Throws Error; an unknown name lists the nearest shipped ones.
DataFile open_data_file(DataKind kind, const std::string& name_or_path,
                        const std::filesystem::path& from = {});
/// As open_data_file for text in memory.
DataFile parse_data_file(DataKind kind, std::string_view text, const std::string& name);

/// The first members of a data file in JSON text: schema, id, description and the words of `more`.
std::string data_file_head(DataKind kind, const std::string& id, const std::string& description,
                           const std::vector<std::pair<std::string, std::string>>& more = {});

/// The file's "base", opened, or none. Throws Error when bases nest deeper than a person would.
std::optional<DataFile> open_base(DataKind kind, const DataFile& file, int depth);

}  // namespace shardwright::profiles
