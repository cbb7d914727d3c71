// SPDX-License-Identifier: Apache-2.0
#include "exec/train/safetensors_model.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"

namespace shardwright::exec {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

}  // namespace

SafetensorsModel::SafetensorsModel(const fs::path& path) : path_(path.string()) {
  if (!fs::is_directory(path)) {
    if (path.extension() == ".json") {
      read_index(path);
    } else {
      add_file(path);
    }
    return;
  }
  if (fs::exists(path / kIndexFile)) {
    read_index(path / kIndexFile);
  } else if (fs::exists(path / kSingleFile)) {
    add_file(path / kSingleFile);
  } else {
    throw Error(
        fmt::format("{}: the folder has neither {} nor {}", path_, kSingleFile, kIndexFile));
  }
}

void SafetensorsModel::add_file(const fs::path& path) {
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  for (const StoredTensor& tensor : files_.back()->tensors()) {
    places_[tensor.spec.name] = {files_.back().get(), &tensor};
  }
}

void SafetensorsModel::read_index(const fs::path& index) {
  const JsonFile document = JsonFile::load(index);
  const JsonReader map = document.root().require_object("weight_map");
  std::map<std::string, const SafetensorsFile*> opened;
  for (const std::string& name : map.keys()) {
    const auto file = map.require<std::string>(name);
    // An index from elsewhere must not reach out of its folder.
    if (file.empty() || file == ".." || fs::path(file).filename() != file) {
      map.fail(name, "the name of a file in the same folder");
    }
    const SafetensorsFile*& part = opened[file];
    if (part == nullptr) {
      files_.push_back(std::make_unique<SafetensorsFile>(index.parent_path() / file));
      part = files_.back().get();
    }
    const StoredTensor* tensor = part->find(name);
    if (tensor == nullptr) map.fail(name, "a file that holds this tensor");
    places_[name] = {part, tensor};
  }
}

std::vector<std::string> SafetensorsModel::names() const {
  std::vector<std::string> result;
  for (const auto& [name, place] : places_) result.push_back(name);
  return result;
}

const TensorSpec* SafetensorsModel::find(std::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &found->second.tensor->spec;
}

void SafetensorsModel::read_floats(std::string_view name, std::int64_t first,
                                   std::span<float> out) const {
  const auto found = places_.find(name);
  if (found == places_.end()) throw Error(fmt::format("{}: there is no tensor {}", path_, name));
  found->second.file->read_floats(*found->second.tensor, first, out);
}

std::vector<std::vector<TensorSpec>> split_into_parts(std::span<const TensorSpec> tensors,
                                                      std::int64_t max_bytes) {
  std::vector<std::vector<TensorSpec>> parts;
  std::int64_t bytes = 0;
  for (const TensorSpec& tensor : tensors) {
    if (parts.empty() || (bytes > 0 && bytes + tensor.size_bytes() > max_bytes)) {
      parts.emplace_back();
      bytes = 0;
    }
    parts.back().push_back(tensor);
    bytes += tensor.size_bytes();
  }
  return parts;
}

void write_safetensors_model(const fs::path& folder, std::span<const TensorSpec> tensors,
                             std::int64_t max_part_bytes, const TensorSource& source) {
  const auto parts = split_into_parts(tensors, max_part_bytes);
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  std::int64_t total_bytes = 0;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const std::string name =
        parts.size() == 1 ? std::string(kSingleFile)
                          : fmt::format("model-{:05}-of-{:05}.safetensors", part + 1, parts.size());
    SafetensorsWriter writer(folder / name, parts[part]);
    for (const TensorSpec& tensor : parts[part]) {
      source(tensor, [&](std::span<const std::byte> bytes) { writer.write(bytes); });
      weight_map[tensor.name] = name;
      total_bytes += tensor.size_bytes();
    }
    writer.finish();
  }
  const fs::path index = folder / kIndexFile;
  if (parts.size() > 1) {
    const nlohmann::ordered_json document = {{"metadata", {{"total_size", total_bytes}}},
                                             {"weight_map", weight_map}};
    write_file_atomically(index, document.dump(2) + "\n", OutputPlace::kInFolder);
  } else {
    fs::remove(index);  // of a larger model that lay here before; readers would prefer it
  }
}

}  // namespace shardwright::exec
