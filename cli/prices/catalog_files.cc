// SPDX-License-Identifier: Apache-2.0
#include "cli/prices/catalog_files.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <map>
#include <system_error>
#include <utility>

#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

bool is_table(const fs::path& path) {
  return path.filename() == "vms.csv" || path.filename() == "pricing.csv";
}

CatalogFile file_at(const fs::path& path) {
  CatalogFile file;
  file.path = path;
  const fs::path folder = fs::absolute(path).parent_path().filename();
  file.cloud = is_table(path) && !folder.empty() ? folder.string() : path.stem().string();
  struct stat status = {};
  const bool known = ::stat(path.c_str(), &status) == 0;
  const std::chrono::sys_seconds time(std::chrono::seconds(known ? status.st_mtime : 0));
  file.written = std::chrono::floor<std::chrono::days>(time);
  return file;
}

/// 8 of ".../v8/aws/vms.csv"; 0 where no version is in the path.
std::int64_t version_of(const fs::path& path) {
  const std::string name = path.parent_path().parent_path().filename().string();
  if (name.size() < 2 || name[0] != 'v') return 0;
  return parse_int64(std::string_view(name).substr(1)).value_or(0);
}

std::vector<CatalogFile> files_below(const fs::path& folder) {
  std::map<std::pair<std::string, std::string>, fs::path> newest;  // by cloud and name
  std::error_code problem;
  fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied,
                                      problem);
  for (; !problem && at != fs::recursive_directory_iterator(); at.increment(problem)) {
    if (at.depth() > 4) at.disable_recursion_pending();
    if (!is_table(at->path())) continue;
    const std::string cloud = file_at(at->path()).cloud;
    fs::path& known = newest[{cloud, at->path().filename().string()}];
    if (known.empty() || version_of(at->path()) > version_of(known)) known = at->path();
  }
  if (newest.empty()) {
    throw Error(
        fmt::format("{}: holds no vms.csv, expected a folder of the SkyPilot catalog such "
                    "as ~/.sky/catalogs/v8",
                    folder.string()));
  }
  std::vector<CatalogFile> files;
  for (const auto& [key, path] : newest) files.push_back(file_at(path));
  return files;
}

}  // namespace

std::vector<CatalogFile> catalog_files(const std::vector<std::string>& paths) {
  std::vector<CatalogFile> files;
  for (const std::string& path : paths) {
    std::error_code problem;
    if (fs::is_directory(path, problem)) {
      for (CatalogFile& file : files_below(path)) files.push_back(std::move(file));
    } else {
      files.push_back(file_at(path));
    }
  }
  return files;
}

}  // namespace shardwright::cli
