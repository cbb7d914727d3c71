// SPDX-License-Identifier: Apache-2.0
#include "cli/bill_of_materials.h"

#include <fmt/core.h>

#include <array>
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
    Upstream{"MPI", "pkg:generic/mpi", "BSD-3-Clause-Open-MPI", true, kShared},
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
  const Json properties = Json::array({{{"name", "compiler"}, {"value", build.compiler}},
                                       {{"name", "build type"}, {"value", build.build_type}},
                                       {{"name", "sanitizers"}, {"value", build.sanitizers}},
                                       {{"name", "executors"}, {"value", executors}}});
  const Json document = {
      {"bomFormat", "CycloneDX"},
      {"specVersion", "1.5"},
      {"version", 1},
      {"metadata",
       {{"component",
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
