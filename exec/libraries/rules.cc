// SPDX-License-Identifier: Apache-2.0
#include "exec/libraries/rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <nlohmann/json.hpp>

#include "sim/core/base/check.h"

namespace shardwright::exec::libraries {

const char* rules_text();  // rules.json, by CMake

namespace {

const nlohmann::json& document() {
  static const nlohmann::json parsed = nlohmann::json::parse(rules_text());
  return parsed;
}

const nlohmann::json& value_of(std::string_view id, std::string_view key) {
  for (const nlohmann::json& rule : document().at("rules")) {
    if (rule.at("id") == id) return rule.at("values").at(std::string(key));
  }
  SHARDWRIGHT_CHECK(false, "no rule '{}' of a vendor", id);
}

std::vector<int> numbers_of(std::string_view version) {
  std::vector<int> numbers;
  const char* at = version.data();
  const char* const end = at + version.size();
  for (int number = 0; at < end; ++at) {
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc()) break;
    numbers.push_back(number);
    at = next;
  }
  return numbers;
}

}  // namespace

const std::vector<VendorRule>& vendor_rules() {
  static const std::vector<VendorRule> all = [] {
    std::vector<VendorRule> rules;
    for (const nlohmann::json& rule : document().at("rules")) {
      rules.push_back({rule.at("id"), rule.at("library"), rule.at("from"), rule.at("to"),
                       rule.at("rule"), rule.at("source"), rule.at("known") == "read"});
    }
    return rules;
  }();
  return all;
}

std::int64_t rule_number(std::string_view id, std::string_view key) {
  return value_of(id, key).get<std::int64_t>();
}

std::string rule_text(std::string_view id, std::string_view key) {
  return value_of(id, key).get<std::string>();
}

bool is_older(std::string_view a, std::string_view b) {
  std::vector<int> first = numbers_of(a), second = numbers_of(b);
  const std::size_t parts = std::min(first.size(), second.size());
  first.resize(parts);
  second.resize(parts);
  return first < second;
}

std::string beyond_rules(std::string_view library, std::string_view version) {
  std::string newest;
  for (const VendorRule& rule : vendor_rules()) {
    if (rule.library == library && (newest.empty() || is_older(newest, rule.to))) newest = rule.to;
  }
  if (newest.empty() || version.empty() || !is_older(newest, version)) return "";
  return fmt::format("its rules were read up to {}, so what {} does otherwise is not known", newest,
                     version);
}

std::string drivers_of(int cuda_major) {
  for (const nlohmann::json& rule : document().at("rules")) {
    const nlohmann::json& values = rule.at("values");
    if (values.value("cuda", 0) != cuda_major) continue;
    return fmt::format("{} or newer, or on data-centre GPUs the package {}",
                       values.at("branch").get<std::string>(),
                       values.at("package").get<std::string>());
  }
  return "";
}

std::string way_out_of_status(int code) {
  constexpr std::string_view kRule = "cuda_driver.fabric_manager";
  if (code != rule_number(kRule, "code")) return "";
  return ": GPUs behind NVSwitches wait for the fabric manager; start it with '" +
         rule_text(kRule, "command") + "'";
}

int run_ahead_of(std::int64_t ranks) {
  constexpr std::string_view kRule = "cuda_driver.launch_queue";
  constexpr std::int64_t kLeast = 2, kMost = 8;
  const std::int64_t passes =
      rule_number(kRule, "launches") / (2 * ranks * rule_number(kRule, "of_a_unit"));
  return static_cast<int>(std::clamp(passes, kLeast, kMost));
}

std::int64_t message_channels(std::int64_t links, std::int64_t most_ctas) {
  constexpr std::string_view kRule = "nccl.message_channels";
  std::int64_t channels =
      links > 0 ? rule_number(kRule, "a_link") * links : rule_number(kRule, "elsewhere");
  channels = std::min(channels, rule_number(kRule, "channels"));
  if (most_ctas > 0) channels = std::min(channels, most_ctas);
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(channels)));
}

int message_ctas(int allowed) {
  constexpr std::int64_t kManyLinks = 64;
  auto ctas = static_cast<int>(rule_number("nccl.message_rate", "enough_ctas"));
  const int most = allowed > 0 ? std::min(ctas, allowed) : ctas;
  while (ctas > 1 && message_channels(kManyLinks, ctas) > most) --ctas;
  return ctas;
}

}  // namespace shardwright::exec::libraries
