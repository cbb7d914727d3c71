// SPDX-License-Identifier: Apache-2.0
// The checkpoint.json of a checkpoint: as it is, then with the checksum made right, alone and as
// that of a folder.
#include <fmt/format.h>

#include "exec/train/checkpoint.h"
#include "exec/train/data/mapped_file.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/json_mutator.h"

namespace shardwright::fuzz {
namespace {

/// The checksum is that of the text with zeros in its place.
std::string with_checksum(std::string text) {
  constexpr std::string_view kKey = "\"manifest_crc32\"", kZeros = "00000000";
  const std::size_t key = text.rfind(kKey);
  if (key == std::string::npos) return text;
  const std::size_t at = text.find('"', key + kKey.size());
  if (at == std::string::npos || at + 1 + kZeros.size() > text.size()) return text;
  text.replace(at + 1, kZeros.size(), kZeros);
  const std::uint32_t sum = exec::crc32(std::string_view(text));
  return text.replace(at + 1, kZeros.size(), fmt::format("{:08x}", sum));
}

void fuzz_manifest(std::string_view input) {
  try {
    exec::parse_manifest(input, "checkpoint.json");
  } catch (const Error&) {
    // Mostly: the checksum is wrong.
  }
  const std::string right = with_checksum(std::string(input));
  const std::string text = manifest_text(exec::parse_manifest(right, "checkpoint.json"));
  SHARDWRIGHT_CHECK(manifest_text(exec::parse_manifest(text, "again")) == text,
                    "another manifest: {}", text);
  const std::filesystem::path folder = scratch_folder() / "step-000001";
  std::filesystem::create_directories(folder);
  scratch_file("step-000001/checkpoint.json", right);
  exec::Checkpoint(folder).verify();
}

SHARDWRIGHT_FUZZ_TARGET(manifest, fuzz_manifest, mutate_json);

}  // namespace
}  // namespace shardwright::fuzz
