// SPDX-License-Identifier: Apache-2.0
// The tables of the SkyPilot catalog behind what stands on the command line.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace shardwright::cli {

struct CatalogFile {
  std::filesystem::path path;
  std::string cloud;  // the folder that vms.csv is in, else the file's name
  std::chrono::sys_days written;
};

/// In the order of the paths, of a folder by cloud. Throws Error for a path that is not there and a
/// folder without tables.
std::vector<CatalogFile> catalog_files(const std::vector<std::string>& paths);

}  // namespace shardwright::cli
