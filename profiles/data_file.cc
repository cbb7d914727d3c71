// SPDX-License-Identifier: Apache-2.0
#include "profiles/data_file.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "profiles/import/byte_stream.h"
#include "sim/core/base/error.h"
#include "sim/core/base/words.h"

namespace shardwright::profiles {

namespace {

namespace fs = std::filesystem;

constexpr int kMaxBases = 8;

fs::path folder_of(DataKind kind) {
  return data_dir() / fmt::format("{}s", name_of(kind));
}

/// Versions up to this one are read; what a minor version adds may be absent. Clusters of 1.1 may
/// carry a calibration.
struct SchemaVersion {
  int major = 1, minor = 0;
};
SchemaVersion version_of(DataKind kind) {
  return {1, kind == DataKind::kCluster ? 1 : 0};
}

std::string schema_of(DataKind kind) {
  const SchemaVersion version = version_of(kind);
  return fmt::format("shardwright.{}/{}.{}", name_of(kind), version.major, version.minor);
}

void check_schema(DataKind kind, const JsonReader& root) {
  if (!root.has("schema")) return;
  const std::string schema = root.require<std::string>("schema");
  const SchemaVersion known = version_of(kind);
  const std::string name = fmt::format("shardwright.{}/", name_of(kind));
  int major = 0, minor = 0;
  char rest = 0;
  if (schema.starts_with(name) &&
      std::sscanf(schema.c_str() + name.size(), "%4d.%4d%c", &major, &minor, &rest) == 2) {
    if (major == known.major && minor >= 0 && minor <= known.minor) return;
    if (major > known.major || (major == known.major && minor > known.minor)) {
      throw Error(fmt::format(
          "{}: schema is \"{}\", written by a newer Shardwright; this one reads up to \"{}\"",
          root.file(), schema, schema_of(kind)));
    }
  }
  root.fail("schema", fmt::format("\"{}\"", schema_of(kind)));
}

fs::path presets_folder() {
  return data_dir() / "published" / "presets";
}

/// The data files of a folder, in alphabetical order.
std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (entry->path().extension() == ".json") files.push_back(entry->path());
  }
  if (failed) {
    throw Error(fmt::format("{}: cannot list the files that ship there: {}", folder.string(),
                            failed.message()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// What a packed file ends with.
constexpr std::string_view kPacked = ".json.gz";

bool is_path(const std::string& name_or_path) {
  return name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".json") ||
         name_or_path.ends_with(kPacked);
}

fs::path shipped_file(DataKind kind, const std::string& given) {
  std::string name = given;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  fs::path file = folder_of(kind) / (name + ".json");
  std::error_code unknown;
  // Presets beside the ledger have names, too, which are told to nobody.
  if (kind == DataKind::kStack && !fs::exists(file, unknown)) {
    fs::path preset = presets_folder() / (name + ".json");
    if (fs::exists(preset, unknown)) return preset;
  }
  if (!fs::exists(file, unknown)) {
    throw Error(fmt::format(
        "{} '{}' is not known; the nearest are {}; `shardwright inspect {}s` lists all, and the "
        "path of a JSON file is accepted too",
        name_of(kind), given, fmt::join(nearest_few(given, shipped_names(kind), 3), ", "),
        name_of(kind)));
  }
  return file;
}

JsonFile load_json(const std::string& path) {
  constexpr JsonLimits kLimits{.max_bytes = std::size_t{4} << 20};
  if (!path.ends_with(kPacked)) return JsonFile::load(path, kLimits);
  return JsonFile::parse(read_unpacked(path, kLimits.max_bytes, "a data file"), path, kLimits);
}

/// The file's name without .json and .gz.
std::string stem_of(const fs::path& path) {
  return path.string().ends_with(kPacked) ? path.stem().stem().string() : path.stem().string();
}

DataFile describe(DataKind kind, std::shared_ptr<const JsonFile> json, fs::path path) {
  const JsonReader root = json->root();
  if (!root.is_object()) root.fail("an object");
  check_schema(kind, root);
  std::string id = root.optional<std::string>("id", stem_of(path));
  if (!is_shown(id)) root.fail("id", "a name without control characters or marks of direction");
  std::string description = root.optional<std::string>("description", "");
  return {std::move(json), std::move(path), std::move(id), std::move(description)};
}

}  // namespace

std::string_view name_of(DataKind kind) {
  static constexpr std::array<std::string_view, 3> kNames = {"gpu", "cluster", "stack"};
  static_assert(kNames.size() == static_cast<std::size_t>(DataKind::kStack) + 1);
  return name_in(kNames, kind);
}

std::vector<std::string> shipped_names(DataKind kind) {
  std::vector<std::string> names;
  for (const fs::path& file : files_of(folder_of(kind))) names.push_back(file.stem().string());
  return names;
}

std::vector<fs::path> published_presets() {
  return files_of(presets_folder());
}

DataFile open_data_file(DataKind kind, const std::string& name_or_path, const fs::path& from) {
  static KeptFiles<JsonFile> kept(&load_json);
  if (!is_path(name_or_path)) {
    const fs::path path = shipped_file(kind, name_or_path);
    return describe(kind, kept.get(path), path);
  }
  const fs::path given = name_or_path;
  const fs::path path =
      given.is_absolute() || from.empty() ? given : (from / given).lexically_normal();
  if (path.parent_path() == presets_folder()) return describe(kind, kept.get(path), path);
  return describe(kind, std::make_shared<const JsonFile>(load_json(path)), path);
}

DataFile parse_data_file(DataKind kind, std::string_view text, const std::string& name) {
  return describe(kind, std::make_shared<const JsonFile>(JsonFile::parse(text, name)), name);
}

std::string data_file_head(DataKind kind, const std::string& id, const std::string& description,
                           const std::vector<std::pair<std::string, std::string>>& more) {
  nlohmann::ordered_json head{
      {"schema", schema_of(kind)}, {"id", id}, {"description", description}};
  for (const auto& [key, word] : more) head[key] = word;
  const std::string text = head.dump();
  return text.substr(1, text.size() - 2);
}

std::optional<DataFile> open_base(DataKind kind, const DataFile& file, int depth) {
  const std::optional<std::string> base = file.json->root().find<std::string>("base");
  if (!base) return std::nullopt;
  if (depth >= kMaxBases) {
    file.json->root().fail("base", fmt::format("at most {} files that build on each other, and no "
                                               "file that builds on itself",
                                               kMaxBases));
  }
  return open_data_file(kind, *base, file.path.parent_path());
}

namespace {

namespace fs = std::filesystem;

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

fs::path installed_data_dir() {
  std::error_code failed;
  const fs::path executable = fs::read_symlink("/proc/self/exe", failed);
  if (failed) return {};
  return (executable.parent_path() / "../share/shardwright/profiles").lexically_normal();
}

fs::path shipped_folder;  // empty where the program is no library

}  // namespace

bool is_trusted_folder(const fs::path& path) {
  struct stat folder {
  }, program{};
  if (::stat(path.c_str(), &folder) != 0 || !S_ISDIR(folder.st_mode)) return false;
  if (folder.st_uid == 0 || folder.st_uid == ::geteuid()) return true;
  return ::stat("/proc/self/exe", &program) == 0 && folder.st_uid == program.st_uid;
}

void set_shipped_data_dir(fs::path folder) {
  shipped_folder = std::move(folder);
}

fs::path data_dir() {
  if (const char* chosen = std::getenv("SHARDWRIGHT_DATA"); chosen != nullptr && *chosen != '\0') {
    if (is_folder(chosen)) return chosen;
    throw Error(
        fmt::format("SHARDWRIGHT_DATA is '{}', but there is no such folder; unset it to use the "
                    "data that shipped with this program.",
                    chosen));
  }
  if (!shipped_folder.empty() && is_folder(shipped_folder)) return shipped_folder;
  const fs::path installed = installed_data_dir();
  if (is_trusted_folder(installed)) return fs::canonical(installed);
#ifdef SHARDWRIGHT_SOURCE_DATA_DIR
  if (is_folder(SHARDWRIGHT_SOURCE_DATA_DIR)) return SHARDWRIGHT_SOURCE_DATA_DIR;
#endif
#ifdef SHARDWRIGHT_INSTALLED_DATA_DIR
  if (is_trusted_folder(SHARDWRIGHT_INSTALLED_DATA_DIR)) return SHARDWRIGHT_INSTALLED_DATA_DIR;
#endif
  throw Error(fmt::format("there is no data folder '{}' of this program; install the program "
                          "(cmake --install), or set "
                          "SHARDWRIGHT_DATA to the profiles/data folder of the source tree.",
                          installed.string()),
              ExitCode::kFailed);
}

}  // namespace shardwright::profiles
