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

/// A library that the program loads, directly or through another one, as its distribution has it.
struct LinkedPackage {
  std::string name{};  // "libfmt9"
  std::string version{};
  std::string architecture{};
  std::string source{};  // the package that advisories name
};

struct BuildInfo {
  std::string version{};     // "0.1.0"
  std::string compiler{};    // "GNU 12.2.0"
  std::string build_type{};  // "Release"
  std::string sanitizers{};  // "address,undefined"; mostly empty
  /// What a distribution would have as shared libraries is compiled in, but for CUDA's.
  bool self_contained = false;
  std::vector<LibraryVersion> libraries{};
  std::string distribution{};  // "debian-12"; empty: it is not known
  std::vector<LinkedPackage> packages{};
  std::string configured{};     // "2026-11-23T15:00:00Z"
  std::string serial_number{};  // a UUID of all of this
  /// What exec was built with, of: host, cuda, nccl, mpi, cupti.
  std::vector<std::string> executors{};
  std::string why_no_cuda{};  // a clause, where executors lack cuda

  bool has_executor(const std::string& name) const;
  /// 13 when built with toolkit 13.0; 0 when built without.
  int cuda_major() const;
};

BuildInfo build_info();

}  // namespace shardwright::cli
