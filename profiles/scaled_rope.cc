// SPDX-License-Identifier: Apache-2.0
#include "profiles/scaled_rope.h"

#include "profiles/data_dir.h"
#include "sim/core/json_file.h"

namespace shardwright::profiles {
namespace {

ScaledRope load_scaled_rope() {
  const JsonFile file = JsonFile::load(data_dir() / "parallel_kernels.json");
  const JsonReader entry = file.root().require_object("scaled_rope");
  ScaledRope rope;
  for (const JsonReader& stack : entry.require_array("stacks")) {
    rope.stacks.push_back(stack.value<std::string>());
  }
  const auto count = [&](std::string_view name) {
    return entry.require<double>(name, between(0.0, 1e3));
  };
  rope.kernels.forward_bytes = count("forward_bytes");
  rope.kernels.backward_bytes = count("backward_bytes");
  rope.kernels.forward_kernels = static_cast<int>(count("forward_kernels"));
  rope.kernels.backward_kernels = static_cast<int>(count("backward_kernels"));
  return rope;
}

}  // namespace

const ScaledRope& scaled_rope() {
  static const ScaledRope rope = load_scaled_rope();
  return rope;
}

}  // namespace shardwright::profiles
