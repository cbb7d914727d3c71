// SPDX-License-Identifier: Apache-2.0
#include "cli/profiles/profile_validation.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <vector>

#include "cli/render/text/quantity.h"
#include "profiles/cluster_file.h"
#include "profiles/data_file.h"
#include "profiles/gpu_file.h"
#include "profiles/profile.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/words.h"
#include "sim/cost/collectives.h"
#include "sim/cost/op_cost.h"

namespace shardwright::cli {

namespace {

using PlainJson = nlohmann::json;
namespace fs = std::filesystem;

// Above this a held-out error says that the formula does not fit the machine.
constexpr double kLargeError = 0.25;

class Validation {
 public:
  explicit Validation(const std::string& path) : path_(path) {}

  std::vector<Finding> run() {
    const ProfileKind kind = profile_kind(path_);
    const JsonFile file = JsonFile::load(path_);
    check_head(file.root().raw());
    check_strings(file.root().raw(), "");
    check_values(file.root().raw(), "");
    try {
      if (kind == ProfileKind::kStack) {
        profiles::load_stack(path_);
        check_physics(profiles::load_profile("dgx-h100", path_));
      } else if (kind == ProfileKind::kGpu) {
        profiles::load_gpu(path_);
      } else {
        check_cluster(profiles::load_cluster(path_));
      }
    } catch (const Error& error) {
      fail(error.what());
    }
    if (!undated_.empty()) {
      const std::size_t shown = std::min<std::size_t>(undated_.size(), 3);
      remark(
          fmt::format("{} of the values have no date, among them {}: say when they were measured "
                      "or read.",
                      undated_.size(),
                      fmt::join(undated_.begin(),
                                undated_.begin() + static_cast<std::ptrdiff_t>(shown), ", ")));
    }
    std::stable_sort(findings_.begin(), findings_.end(),
                     [](const Finding& a, const Finding& b) { return a.error && !b.error; });
    return std::move(findings_);
  }

 private:
  void fail(std::string sentence) { findings_.push_back({true, std::move(sentence)}); }
  void remark(std::string sentence) { findings_.push_back({false, std::move(sentence)}); }

  void check_head(const PlainJson& root) {
    const std::string stem = fs::path(path_).stem().string();
    const auto id = root.find("id");
    if (id == root.end() || !id->is_string()) {
      fail("The file has no \"id\": others could not tell it from another.");
    } else if (id->get<std::string>() != stem) {
      fail(fmt::format("The id is \"{}\" but the file is called \"{}\": make them the same.",
                       id->get<std::string>(), stem));
    }
    const auto description = root.find("description");
    if (description == root.end() || !description->is_string() ||
        description->get<std::string>().size() < 10) {
      fail("The \"description\" is missing or too short to say what machine this is.");
    }
  }

  /// Nothing of somebody's own machine belongs into a shared file.
  void check_strings(const PlainJson& value, const std::string& at) {
    if (value.is_string()) {
      const std::string& text = value.get_ref<const std::string&>();
      static const std::regex kOwnFolder(R"((^|[ "'])(/(home|root|Users|work|mnt|tmp)/|~/))");
      if (std::regex_search(text, kOwnFolder)) {
        fail(fmt::format("{} names a folder of your machine (\"{}\"): keep the file's name only.",
                         at, text));
      }
    }
    if (!value.is_structured()) return;
    for (const auto& [key, item] : value.items()) {
      check_strings(item, at.empty() ? key : at + "." + key);
    }
  }

  /// Each number that the file gives has a source and a date.
  void check_values(const PlainJson& value, const std::string& at) {
    if (!value.is_object()) return;
    for (const auto& [key, item] : value.items()) {
      if (key.starts_with('_')) continue;
      if (at.empty() && (key == "calibration" || key == "measured_products")) continue;
      const std::string path = at.empty() ? key : at + "." + key;
      if (item.is_object() && item.contains("value")) {
        check_origin(item, path);
      } else if (item.is_object()) {
        check_values(item, path);
      } else if (item.is_number() || item.is_boolean()) {
        fail(fmt::format("{} has no source: write {{\"value\": {}, \"source\": .., \"date\": ..}}.",
                         path, item.dump()));
      }
    }
  }

  void check_origin(const PlainJson& item, const std::string& path) {
    const auto text = [&](const char* key) {
      const auto found = item.find(key);
      return found != item.end() && found->is_string() ? found->get<std::string>() : "";
    };
    if (text("source").size() < 4) {
      fail(fmt::format("{} has no source: say where the value comes from.", path));
    }
    static const std::regex kDate(R"(\d{4}(-\d{2}(-\d{2})?)?)");
    if (text("date").empty()) {
      undated_.push_back(path);
    } else if (!std::regex_match(text("date"), kDate)) {
      fail(fmt::format("{}: the date is \"{}\", expected 2026, 2026-11 or 2026-11-21.", path,
                       text("date")));
    }
  }

  void check_cluster(const profiles::ClusterFile& file) {
    std::string stack = "native";
    if (file.calibration) {
      check_calibration(*file.calibration);
      if (!file.calibration->stack.empty()) stack = file.calibration->stack;
    } else {
      remark(
          "The file carries no calibration, so that its errors are not known: `shardwright "
          "calibrate` writes one with its sources and residuals.");
    }
    try {
      check_physics(profiles::load_profile(path_, stack));
    } catch (const Error& error) {
      // The stack of the calibration may be a file of the contributor's.
      if (stack == "native" || !is_path(stack)) throw;
      fail(fmt::format("The framework it was calibrated with cannot be read: {}", error.what()));
    }
  }

  void check_calibration(const profiles::Calibration& calibration) {
    if (calibration.sources.empty()) fail("The calibration names no source.");
    if (calibration.date.empty()) fail("The calibration has no date.");
    for (const profiles::ObservationSource& source : calibration.sources) {
      if (source.truncated) {
        remark(fmt::format("{} was cut short when it was read.", source.file));
      }
    }
    for (const profiles::CalibratedGroup& group : calibration.groups) {
      if (group.rows == 0) continue;
      if (group.held_out.n == 0) {
        remark(fmt::format("The errors of {} were not held out: {} rows are too few.",
                           name_of(group.group), group.rows));
      } else if (group.held_out.median > kLargeError) {
        fail(
            fmt::format("The fit of {} misses its own measurements by {} (median, held out): they "
                        "are of another machine, or the formula does not hold on this one.",
                        name_of(group.group), percent(group.held_out.median, 0)));
      }
    }
  }

  /// Nothing runs faster than the data sheet.
  void check_physics(const profiles::Profile& profile) {
    const sim::KernelCosts costs = sim::kernel_costs(profile);
    if (profile.cluster.gpu.is_processor()) return;  // its peaks are nominal
    Work product;
    product.kind = WorkKind::kGemm;
    product.m = product.n = product.k = 16384;
    const double flops = sim::gemm_flops(16384, 16384, 16384);
    faster("A product of 16384 x 16384 x 16384", sim::kernel_time_s(costs, product, {}),
           flops / profile.cluster.gpu.peak_bf16_flops);
    Work copy;
    copy.kind = WorkKind::kMemory;
    copy.bytes = std::int64_t{1} << 34;
    faster("A copy of 16 GiB", sim::kernel_time_s(costs, copy, {}),
           static_cast<double>(copy.bytes) / profile.cluster.gpu.hbm_bytes_per_s);
    if (profile.cluster.gpus_per_node > 1 && profile.cluster.intra_link_bytes_per_s > 0) {
      CollectiveGroup group;
      group.ranks = group.ranks_per_node = profile.cluster.gpus_per_node;
      const sim::CollectiveCost cost =
          sim::collective_cost(profile.cost.collectives.values, sim::network_of(profile.cluster),
                               group, Collective::kAllGather, 4 * kGiB);
      faster("all_gather of 4 GiB in a node", cost.time_s,
             cost.wire_bytes / profile.cluster.intra_link_bytes_per_s);
    }
  }

  void faster(const std::string& what, double time_s, double least_s) {
    if (time_s >= 0.999 * least_s) return;
    fail(fmt::format("{} would take {}, less than the {} that the hardware's peak allows.", what,
                     quantity(time_s, "s"), quantity(least_s, "s")));
  }

  std::string path_;
  std::vector<Finding> findings_;
  std::vector<std::string> undated_;
};

}  // namespace

std::vector<Finding> validate_profile(const std::string& path) {
  return Validation(path).run();
}

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
