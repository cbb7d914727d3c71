// SPDX-License-Identifier: Apache-2.0
// Model weights of strangers: one file, or an index beside files. The mutation changes the header
// as JSON and makes its length right.
#include "exec/train/safetensors.h"

#include <algorithm>
#include <array>

#include "sim/core/base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/json_mutator.h"

namespace shardwright::fuzz {
namespace {

constexpr std::int64_t kMostElements = 4096;

/// The good part that an index may name.
void write_part() {
  const std::array<float, 4> values = {1, 2, 3, 4};
  const exec::TensorSpec spec{"a", exec::TensorType::kF32, {4}};
  exec::SafetensorsWriter part(scratch_folder() / "part.safetensors", std::span(&spec, 1));
  part.write(std::as_bytes(std::span(values)));
  part.finish();
}

void read_floats(const exec::SafetensorsModel& model) {
  for (const std::string& name : model.names()) {
    const std::int64_t count = std::min(model.find(name)->elements(), kMostElements);
    std::vector<float> out(static_cast<std::size_t>(count));
    model.read_floats(name, model.find(name)->elements() - count, out);
  }
}

void fuzz_safetensors(std::string_view input) {
  static const bool written = (write_part(), true);
  SHARDWRIGHT_CHECK(written, "");
  const bool is_index = input.starts_with('{');
  read_floats(exec::SafetensorsModel(
      scratch_file(is_index ? "model.safetensors.index.json" : "model.safetensors", input)));
}

std::string mutate(const std::string& input, std::size_t most_bytes, std::uint32_t seed) {
  if (input.starts_with('{')) return mutate_json(input, most_bytes, seed);
  return mutate_safetensors(input, most_bytes, seed);
}

SHARDWRIGHT_FUZZ_TARGET(safetensors, fuzz_safetensors, mutate);

}  // namespace
}  // namespace shardwright::fuzz
