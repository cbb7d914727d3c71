// SPDX-License-Identifier: Apache-2.0
// Finding and opening the data file behind a name.
//
// A GPU, cluster or stack is given by the name of a shipped file (profiles/data/<kind>/<name>.json)
// or by the path of a user's own file of the same schema. Words with a '/' or ending in ".json" are
// paths; a path inside a data file is relative to that file.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
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

// Shipped files that every prediction needs, read once: a host of the planner (a page, a Python
// process) asks thousands of questions, and parsing the fitted costs takes longer than predicting.

/// What a reader made of files, kept for as long as a file's time and size stay what they were. May
/// be asked by several threads.
template <typename Value>
class KeptFiles {
 public:
  using Read = Value (*)(const std::string&);
  explicit KeptFiles(Read read) : read_(read) {}

  /// Never null. Throws what the reader throws, and keeps nothing then.
  std::shared_ptr<const Value> get(const std::string& file) {
    std::error_code unknown;
    const Stamp stamp{std::filesystem::last_write_time(file, unknown),
                      std::filesystem::file_size(file, unknown)};
    const std::lock_guard lock(mutex_);
    Kept& kept = kept_[file];
    if (unknown || kept.value == nullptr || kept.stamp != stamp) {
      kept = {stamp, std::make_shared<const Value>(read_(file))};
    }
    return kept.value;
  }

 private:
  using Stamp = std::pair<std::filesystem::file_time_type, std::uintmax_t>;
  struct Kept {
    Stamp stamp{};
    std::shared_ptr<const Value> value;
  };

  Read read_;
  std::mutex mutex_;
  std::map<std::string, Kept> kept_;
};

// Where the shipped data files are: GPUs, clusters, stacks, models, published measurements.
//
// The first of these that applies, so that the same binary works installed, moved, and in a build
// tree:
//   1. the environment variable SHARDWRIGHT_DATA;
//   2. the folder that a library says it ships with (a Python module);
//   3. ../share/shardwright/profiles beside the folder of the running executable (an installation,
//   a
//      build tree), unless somebody else put it there;
//   4. what was installed under the prefix of this build.

/// Of a library: the folder that ships beside it. To be said before the first thread asks for it.
void set_shipped_data_dir(std::filesystem::path folder);

/// Whether the folder is root's, this user's, or of whoever owns the program. Figures of anybody
/// else are not taken unasked, as where the program was copied to a place that all may write to.
bool is_trusted_folder(const std::filesystem::path& path);

/// An existing folder. Throws Error when SHARDWRIGHT_DATA names none, or when no place has it.
std::filesystem::path data_dir();

}  // namespace shardwright::profiles
