// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <set>

#include "exec/train/checkpoint.h"
#include "exec/train/data/checksum.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/plan_json.h"

namespace shardwright::exec {
namespace {

constexpr std::string_view kSchema = "shardwright.checkpoint";
constexpr int kMajor = 1;
// The checksum stands for the text in which its own digits are zeros.
constexpr std::string_view kChecksumKey = "\"manifest_crc32\": \"";
constexpr std::size_t kDigits = 8;

std::string digits(std::uint32_t crc) {
  return fmt::format("{:08x}", crc);
}

std::uint32_t from_digits(const JsonReader& object, std::string_view key) {
  const auto text = object.require<std::string>(key);
  if (text.size() != kDigits || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    object.fail(key, "eight hexadecimal digits");
  }
  return static_cast<std::uint32_t>(std::stoul(text, nullptr, 16));
}

}  // namespace

std::string manifest_text(const CheckpointManifest& manifest) {
  nlohmann::ordered_json root = {{"schema", fmt::format("{}/{}.0", kSchema, kMajor)},
                                 {"step", manifest.step},
                                 {"sequences", manifest.sequences},
                                 {"tokens", manifest.tokens},
                                 {"seed", fmt::format("{}", manifest.seed)},
                                 {"data_fingerprint", digits(manifest.data_fingerprint)},
                                 {"plan", plan_to_json(manifest.plan)},
                                 {"config", manifest.config},
                                 {"tensors", nlohmann::ordered_json::array()},
                                 {"files", nlohmann::ordered_json::array()},
                                 {"tool_version", manifest.tool_version},
                                 {"manifest_crc32", std::string(kDigits, '0')}};
  for (const CheckpointTensor& tensor : manifest.tensors) {
    root["tensors"].push_back({{"name", tensor.name}, {"shape", tensor.shape}});
  }
  for (const CheckpointFile& file : manifest.files) {
    root["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"crc32", digits(file.crc)}});
  }
  if (!manifest.job_hash.empty()) {
    root["job"] = {{"sha256", manifest.job_hash}, {"facts", nlohmann::ordered_json::object()}};
    for (const JobFact& fact : manifest.job) root["job"]["facts"][fact.key] = fact.value;
  }
  std::string text =
      root.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const std::size_t at = text.rfind(kChecksumKey);
  SHARDWRIGHT_CHECK(at != std::string::npos, "the manifest has a checksum");
  text.replace(at + kChecksumKey.size(), kDigits, digits(crc32(text)));
  return text;
}

CheckpointManifest parse_manifest(std::string_view text, const std::string& file) {
  const JsonFile document = JsonFile::parse(text, file);
  const JsonReader root = document.root();
  require_schema(root, kSchema, kMajor);
  const std::uint32_t promised = from_digits(root, "manifest_crc32");
  std::string zeroed(text);
  const std::size_t at = zeroed.rfind(kChecksumKey);
  if (at != std::string::npos && at + kChecksumKey.size() + kDigits <= zeroed.size()) {
    zeroed.replace(at + kChecksumKey.size(), kDigits, std::string(kDigits, '0'));
  }
  if (crc32(zeroed) != promised) {
    throw Error(fmt::format("{}: the checksum is {}, expected {}: the file was altered", file,
                            digits(crc32(zeroed)), digits(promised)));
  }
  constexpr std::int64_t kNone = 0;
  const auto counted = between(kNone, kMostCounted);
  CheckpointManifest manifest;
  manifest.step = root.require<std::int64_t>("step", counted);
  manifest.sequences = root.require<std::int64_t>("sequences", counted);
  manifest.tokens = root.require<std::int64_t>("tokens", counted);
  const auto seed = root.require<std::string>("seed");
  if (seed.empty() || seed.size() > 19 || seed.find_first_not_of("0123456789") != seed.npos) {
    root.fail("seed", "a number below 10^19 as text");
  }
  manifest.seed = std::stoull(seed);
  manifest.data_fingerprint = from_digits(root, "data_fingerprint");
  manifest.plan = plan_from_json(root.require_object("plan"));
  manifest.config = root.require<std::string>("config");
  for (const JsonReader& entry : root.require_array("tensors")) {
    manifest.tensors.push_back(
        {entry.require<std::string>("name"), entry.require_list<std::int64_t>("shape")});
  }
  std::set<std::string> names;
  for (const JsonReader& entry : root.require_array("files")) {
    CheckpointFile named{entry.require<std::string>("name"),
                         entry.require<std::int64_t>("bytes", at_least(kNone)),
                         from_digits(entry, "crc32")};
    if (named.name.empty() || named.name.find('/') != std::string::npos || named.name[0] == '.') {
      entry.fail("name", "a file of the checkpoint's folder");
    }
    if (!names.insert(named.name).second) entry.fail("name", "each file once");
    manifest.files.push_back(std::move(named));
  }
  manifest.tool_version = root.optional<std::string>("tool_version", "");
  if (root.has("job")) {
    const JsonReader job = root.require_object("job"), facts = job.require_object("facts");
    manifest.job_hash = job.require<std::string>("sha256");
    for (const std::string& key : facts.keys())
      manifest.job.push_back({key, facts.require<std::string>(key)});
  }
  return manifest;
}

}  // namespace shardwright::exec
