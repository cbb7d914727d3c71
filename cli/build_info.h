// SPDX-License-Identifier: Apache-2.0
// What this binary was made from, as CMake saw it when it configured the build.
#pragma once

#include <string>
#include <vector>

namespace shardwright::cli {

struct LibraryVersion {
  std::string name{};
  std::string version{};  // empty: was not there when the build was configured
};

struct BuildInfo {
  std::string version{};     // "0.1.0"
  std::string compiler{};    // "GNU 12.2.0"
  std::string build_type{};  // "Release"
  std::string sanitizers{};  // "address,undefined"; mostly empty
  std::vector<LibraryVersion> libraries{};
  /// What exec was built with, of: host, cuda, nccl, mpi, cupti.
  std::vector<std::string> executors{};
  std::string why_no_cuda{};  // a clause, where executors lack cuda

  bool has_executor(const std::string& name) const;
  /// 13 when built with toolkit 13.0; 0 when built without.
  int cuda_major() const;
};

BuildInfo build_info();

}  // namespace shardwright::cli
