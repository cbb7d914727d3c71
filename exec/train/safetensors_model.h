// SPDX-License-Identifier: Apache-2.0
// A model's tensors across one or several safetensors files.
//
// Reads a single file, an index (model.safetensors.index.json) or a folder with either; writes a
// folder the way Hugging Face transformers does: one file, or numbered parts with an index when the
// model is larger than a part may be.
#pragma once

#include <functional>

#include "exec/train/safetensors.h"

namespace shardwright::exec {

class SafetensorsModel {
 public:
  /// Throws Error when a file is missing or wrong, when the index names a tensor that its file
  /// lacks, or a file outside the folder.
  explicit SafetensorsModel(const std::filesystem::path& path);

  /// All tensors, by name.
  std::vector<std::string> names() const;
  /// The tensor's dtype and shape; null when there is none of this name.
  const TensorSpec* find(std::string_view name) const;
  /// As SafetensorsFile::read_floats. Throws Error when there is no such tensor.
  void read_floats(std::string_view name, std::int64_t first, std::span<float> out) const;

 private:
  struct Place {
    const SafetensorsFile* file;
    const StoredTensor* tensor;
  };
  void add_file(const std::filesystem::path& path);
  void read_index(const std::filesystem::path& index);

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Place, std::less<>> places_;
};

/// Splits tensors into parts of at most `max_bytes` each, in order; a larger tensor is a part
/// alone.
std::vector<std::vector<TensorSpec>> split_into_parts(std::span<const TensorSpec> tensors,
                                                      std::int64_t max_bytes);

/// Gives the bytes of a tensor in order, in calls of any size.
using TensorSource =
    std::function<void(const TensorSpec&, const std::function<void(std::span<const std::byte>)>&)>;

/// Writes model.safetensors, or its parts and then the index, into an existing folder.
void write_safetensors_model(const std::filesystem::path& folder,
                             std::span<const TensorSpec> tensors, std::int64_t max_part_bytes,
                             const TensorSource& source);

}  // namespace shardwright::exec
