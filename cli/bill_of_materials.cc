// SPDX-License-Identifier: Apache-2.0
#include "cli/bill_of_materials.h"

#include <fmt/core.h>

#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Upstream {
  const char* name;     // as in BuildInfo
  const char* package;  // package URL without the version
  const char* licence;  // an SPDX identifier, or a name
  bool spdx;
  const char* linked;
};

constexpr const char* kHeaders = "headers only";
constexpr const char* kShared = "shared";
constexpr const char* kCompiledIn = "compiled in";
constexpr const char* kAsBuilt = nullptr;  // shared or compiled in, as the build chose
constexpr const char* kNvidia = "NVIDIA Software License Agreement";

constexpr std::array kUpstreams = {
    Upstream{"fmt", "pkg:github/fmtlib/fmt", "MIT", true, kAsBuilt},
    Upstream{"nlohmann-json", "pkg:github/nlohmann/json", "MIT", true, kHeaders},
    Upstream{"CLI11", "pkg:github/cliutils/cli11", "BSD-3-Clause", true, kHeaders},
    Upstream{"Boost", "pkg:generic/boost", "BSL-1.0", true, kAsBuilt},
    Upstream{"Eigen", "pkg:gitlab/libeigen/eigen", "MPL-2.0", true, kHeaders},
    Upstream{"zlib", "pkg:generic/zlib", "Zlib", true, kAsBuilt},
    Upstream{"SQLite", "pkg:generic/sqlite", "blessing", true, kAsBuilt},
    Upstream{"yaml-cpp", "pkg:github/jbeder/yaml-cpp", "MIT", true, kAsBuilt},
    Upstream{"toml++", "pkg:github/marzer/tomlplusplus", "MIT", true, kHeaders},
    Upstream{"CUDA toolkit", "pkg:generic/cuda-toolkit", kNvidia, false, kShared},
    Upstream{"NCCL", "pkg:github/nvidia/nccl", "BSD-3-Clause", true, kShared},
    Upstream{"CUPTI", "pkg:generic/cupti", kNvidia, false, kShared},
    Upstream{"cuDNN", "pkg:generic/cudnn", kNvidia, false, kShared},
    Upstream{"Open MPI", "pkg:github/open-mpi/ompi", "BSD-3-Clause-Open-MPI", true, kShared},
    Upstream{"MPICH", "pkg:github/pmodels/mpich", "mpich2", true, kShared},
    Upstream{"MPI", "pkg:generic/mpi", "of its vendor", false, kShared},
    Upstream{"libstdc++", "pkg:generic/libstdc%2B%2B", "GPL-3.0-or-later WITH GCC-exception-3.1",
             false, kAsBuilt},
    Upstream{"libc++", "pkg:generic/libc%2B%2B", "Apache-2.0 WITH LLVM-exception", false,
             kCompiledIn},
};

const Upstream& origin_of(const std::string& library) {
  for (const Upstream& origin : kUpstreams) {
    if (library == origin.name) return origin;
  }
  throw std::logic_error(library + " has no origin in the bill of materials");
}

Json licences(const char* licence, bool spdx) {
  return Json::array({{{"license", {{spdx ? "id" : "name", licence}}}}});
}

Json component_of(const LibraryVersion& library, bool self_contained) {
  const Upstream& origin = origin_of(library.name);
  const char* linked = origin.linked;
  if (linked == kAsBuilt) linked = self_contained ? kCompiledIn : kShared;
  const std::string package = fmt::format("{}@{}", origin.package, library.version);
  return {{"type", "library"},
          {"bom-ref", package},
          {"name", library.name},
          {"version", library.version},
          {"licenses", licences(origin.licence, origin.spdx)},
          {"purl", package},
          {"properties", Json::array({{{"name", "linked"}, {"value", linked}}})}};
}

/// In a package URL.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' ||
                       c == '_' || c == '~';
    result += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return result;
}

/// As the distribution's advisories name it.
Json component_of(const LinkedPackage& package, const std::string& distribution) {
  const std::string vendor = distribution.substr(0, distribution.find('-'));
  const std::string url = fmt::format("pkg:deb/{}/{}@{}?arch={}&upstream={}&distro={}", vendor,
                                      escaped(package.name), escaped(package.version),
                                      package.architecture, escaped(package.source), distribution);
  return {{"type", "library"},
          {"bom-ref", url},
          {"name", package.name},
          {"version", package.version},
          {"purl", url},
          {"properties", Json::array({{{"name", "linked"}, {"value", kShared}}})}};
}

}  // namespace

std::string bill_of_materials(const BuildInfo& build) {
  const std::string self = "pkg:generic/shardwright@" + build.version;
  std::string executors;
  for (const std::string& executor : build.executors) {
    executors += (executors.empty() ? "" : " ") + executor;
  }
  Json components = Json::array(), references = Json::array();
  for (const LibraryVersion& library : build.libraries) {
    if (library.version.empty()) continue;
    components.push_back(component_of(library, build.self_contained));
    references.push_back(components.back()["bom-ref"]);
  }
  for (const LinkedPackage& package : build.packages) {
    components.push_back(component_of(package, build.distribution));
    references.push_back(components.back()["bom-ref"]);
  }
  const Json properties = Json::array({{{"name", "compiler"}, {"value", build.compiler}},
                                       {{"name", "build type"}, {"value", build.build_type}},
                                       {{"name", "sanitizers"}, {"value", build.sanitizers}},
                                       {{"name", "executors"}, {"value", executors}}});
  const Json document = {
      {"bomFormat", "CycloneDX"},
      {"specVersion", "1.5"},
      {"serialNumber", "urn:uuid:" + build.serial_number},
      {"version", 1},
      {"metadata",
       {{"timestamp", build.configured},
        {"component",
         {{"type", "application"},
          {"bom-ref", self},
          {"name", "shardwright"},
          {"version", build.version},
          {"licenses", licences("Apache-2.0", true)},
          {"purl", self}}},
        {"properties", properties}}},
      {"components", components},
      {"dependencies", Json::array({{{"ref", self}, {"dependsOn", references}}})}};
  return document.dump(2) + "\n";
}

}  // namespace shardwright::cli
