// SPDX-License-Identifier: Apache-2.0
// A file of a checkpoint of two tensors, of which it holds ranges and rectangles. What is taken can
// be read whole. The mutation changes the header as JSON and makes its length right.
#include "exec/train/checkpoint.h"

#include "exec/train/data/mapped_file.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/json_mutator.h"

namespace shardwright::fuzz {
namespace {

void fuzz_checkpoint(std::string_view input) {
  exec::CheckpointManifest manifest;
  manifest.config = "{}";
  manifest.tensors = {{"matrix", {4, 6}}, {"vector", {5}}};
  manifest.files = {{"rank.safetensors", std::ssize(input), exec::crc32(input)}};
  const std::filesystem::path folder = scratch_folder() / "step-000002";
  std::filesystem::create_directories(folder);
  scratch_file("step-000002/rank.safetensors", input);
  scratch_file("step-000002/checkpoint.json", manifest_text(manifest));
  const exec::Checkpoint checkpoint(folder);
  for (const exec::StateKind kind : exec::kStateKinds) {
    std::vector<float> matrix(24), vector(5);
    checkpoint.read(kind, "matrix", 0, matrix);
    checkpoint.read(kind, "vector", 0, vector);
  }
}

SHARDWRIGHT_FUZZ_TARGET(checkpoint, fuzz_checkpoint, mutate_safetensors);

}  // namespace
}  // namespace shardwright::fuzz
