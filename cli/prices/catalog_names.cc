// SPDX-License-Identifier: Apache-2.0
#include "cli/prices/catalog_names.h"

#include <fmt/core.h>

#include <algorithm>

#include "profiles/data_dir.h"
#include "sim/core/base/json_file.h"

namespace shardwright::cli {
namespace {

bool applies(const std::string& cloud, std::string_view of) {
  return cloud.empty() || cloud == of;
}

}  // namespace

bool matches_pattern(std::string_view pattern, std::string_view word) {
  std::size_t p = 0, w = 0, star = std::string_view::npos, resume = 0;
  while (w < word.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = w;
    } else if (p < pattern.size() && pattern[p] == word[w]) {
      ++p, ++w;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      w = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

CatalogNames CatalogNames::load() {
  const JsonFile document = JsonFile::load(profiles::data_dir() / "skypilot.json");
  const JsonReader root = document.root();
  require_schema(root, "shardwright.skypilot_names", 1);
  CatalogNames names;
  const auto text = [](const JsonReader& from, const char* key) {
    return from.find<std::string>(key).value_or("");
  };
  for (const JsonReader& entry : root.require_array("clouds")) {
    names.clouds_[entry.require<std::string>("cloud")] = {
        text(entry, "no_prices"), entry.optional<double>("sentinel", 0),
        entry.optional<bool>("lists_commitments", false),
        entry.optional<bool>("tells_memory", false)};
  }
  for (const JsonReader& entry : root.require_array("gpus")) {
    names.gpus_.push_back({text(entry, "cloud"), entry.require<std::string>("accelerator"),
                           text(entry, "instance"), text(entry, "gpu"),
                           entry.find<double>("least_mib"), entry.find<double>("most_mib")});
  }
  for (const JsonReader& entry : root.require_array("clusters")) {
    names.clusters_.push_back({text(entry, "cloud"), entry.require<std::string>("instance"),
                               entry.require<std::string>("cluster")});
  }
  for (const JsonReader& entry : root.require_array("hosts")) {
    names.hosts_.push_back(
        {entry.require<std::string>("cloud"), entry.require<std::string>("instance"),
         entry.require<std::string>("accelerator"), entry.optional<std::int64_t>("count", 0)});
  }
  return names;
}

std::string CatalogNames::gpu_of(const CatalogMachine& machine) const {
  for (const Gpu& gpu : gpus_) {
    if (gpu.accelerator != machine.accelerator || !applies(gpu.cloud, machine.cloud)) continue;
    if (!gpu.instance.empty() && !matches_pattern(gpu.instance, machine.instance)) continue;
    if (gpu.least_mib && machine.gpu_memory_mib.value_or(0) < *gpu.least_mib) continue;
    if (gpu.most_mib && machine.gpu_memory_mib.value_or(*gpu.most_mib + 1) > *gpu.most_mib)
      continue;
    return gpu.gpu;
  }
  return "";
}

std::string CatalogNames::accelerator_of(std::string_view gpu) const {
  const auto at = std::find_if(gpus_.begin(), gpus_.end(), [&](const Gpu& entry) {
    return entry.cloud.empty() && entry.gpu == gpu;
  });
  return at == gpus_.end() ? "" : at->accelerator;
}

std::string CatalogNames::cluster_of(const CatalogMachine& machine) const {
  const auto at = std::find_if(clusters_.begin(), clusters_.end(), [&](const OwnCluster& own) {
    return applies(own.cloud, machine.cloud) && matches_pattern(own.instance, machine.instance);
  });
  return at == clusters_.end() ? "" : at->cluster;
}

bool CatalogNames::has_provider(std::string_view cluster) const {
  return std::any_of(clusters_.begin(), clusters_.end(),
                     [&](const OwnCluster& own) { return own.cluster == cluster; });
}

std::optional<std::string> CatalogNames::host_of(std::string_view cloud,
                                                 std::string_view accelerator,
                                                 std::int64_t count) const {
  for (const Host& host : hosts_) {
    if (host.cloud != cloud || host.accelerator != accelerator) continue;
    if (host.count != 0 && host.count != count) continue;
    std::string name = host.instance;
    const std::size_t at = name.find("{n}");
    if (at != std::string::npos) name.replace(at, 3, fmt::format("{}", count));
    return name;
  }
  return std::nullopt;
}

bool CatalogNames::prices_hosts_apart(std::string_view cloud) const {
  return std::any_of(hosts_.begin(), hosts_.end(),
                     [&](const Host& host) { return host.cloud == cloud; });
}

std::string CatalogNames::no_prices(std::string_view cloud) const {
  const auto at = clouds_.find(cloud);
  return at == clouds_.end() ? "" : at->second.no_prices;
}

double CatalogNames::sentinel(std::string_view cloud) const {
  const auto at = clouds_.find(cloud);
  return at == clouds_.end() ? 0 : at->second.sentinel;
}

bool CatalogNames::lists_commitments(std::string_view cloud) const {
  const auto at = clouds_.find(cloud);
  return at != clouds_.end() && at->second.commitments;
}

bool CatalogNames::tells_memory(std::string_view cloud) const {
  const auto at = clouds_.find(cloud);
  return at != clouds_.end() && at->second.memory;
}

}  // namespace shardwright::cli
