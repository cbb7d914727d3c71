// SPDX-License-Identifier: Apache-2.0
#include "cli/profiles/profile_kind.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "profiles/data_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/words.h"

namespace shardwright::cli {
namespace {

constexpr ProfileKind kProfileKinds[] = {ProfileKind::kCluster, ProfileKind::kGpu,
                                         ProfileKind::kStack};

profiles::DataKind data_kind(ProfileKind kind) {
  if (kind == ProfileKind::kGpu) return profiles::DataKind::kGpu;
  return kind == ProfileKind::kStack ? profiles::DataKind::kStack : profiles::DataKind::kCluster;
}

}  // namespace

std::string_view name_of(ProfileKind kind) {
  return profiles::name_of(data_kind(kind));
}

bool is_path(const std::string& name_or_path) {
  return name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".json");
}

ProfileKind profile_kind(const std::string& name_or_path) {
  if (is_path(name_or_path)) {
    const JsonFile file = JsonFile::load(name_or_path);
    const JsonReader root = file.root();
    const std::string schema = root.is_object() ? root.optional<std::string>("schema", "") : "";
    for (const ProfileKind kind : kProfileKinds) {
      if (schema.starts_with(fmt::format("shardwright.{}/", name_of(kind)))) return kind;
    }
    throw Error(
        fmt::format("{}: schema is \"{}\", expected \"shardwright.cluster/1.0\" (a "
                    "calibrated profile is one), \"shardwright.gpu/1.0\" or "
                    "\"shardwright.stack/1.0\".",
                    name_or_path, schema));
  }
  std::vector<std::string> all;
  for (const ProfileKind kind : kProfileKinds) {
    for (const std::string& name : profiles::shipped_names(data_kind(kind))) {
      if (name == name_or_path) return kind;
      all.push_back(name);
    }
  }
  const std::string hint = did_you_mean(name_or_path, all);
  throw Error(
      fmt::format("'{}' is no cluster, GPU or stack that ships{}", name_or_path,
                  hint.empty() ? "; give a shipped name or the path of a .json file." : hint));
}

}  // namespace shardwright::cli
