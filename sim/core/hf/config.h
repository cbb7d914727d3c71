// SPDX-License-Identifier: Apache-2.0
// Finding a model by what a user types: a built-in name, a Hugging Face name, a config.json, or a
// folder that holds one.
//
// Built-in models are config.json files in a data folder; the file's name is the model's name, its
// key "_aliases" lists the names under which the Hugging Face Hub knows it. Nothing is downloaded.
// What the keys of a config mean is told in sim/core/hf/families.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/base/json_file.h"
#include "sim/core/model.h"

namespace shardwright {

/// A config.json and the name of the model in it.
struct ModelFile {
  std::filesystem::path path;
  std::string name;
};

/// What `name_or_path` means: a built-in name in any case ("Llama-3-70B"), else an existing file or
/// folder, else an alias of a built-in with or without its organisation
/// ("meta-llama/Llama-2-70b-hf"). A folder of the same name as a built-in is reached by "./name".
/// Throws Error with the nearest names when nothing is found.
ModelFile find_model(const std::filesystem::path& builtin_folder, std::string_view name_or_path);

/// The model that find_model finds. Throws Error also when the config is refused.
Model load_model(const std::filesystem::path& builtin_folder, std::string_view name_or_path);

/// The text of the config.json that find_model finds, with null for Infinity and NaN.
std::string read_model_config(const std::filesystem::path& builtin_folder,
                              std::string_view name_or_path);

/// The config.json at `path`, in which Infinity and NaN count as null: Python writes them.
JsonFile load_model_config(const std::filesystem::path& path);

/// The name that find_model gives to what was typed, whether or not it is there (any more).
std::string model_name_of(std::string_view name_or_path);

/// As above for the text of a config.json; `file` stands for it in errors.
Model parse_hf_config(std::string_view text, std::string file, std::string model_name);

/// The names of the built-in models, sorted by their parts with numbers by value.
std::vector<std::string> builtin_models(const std::filesystem::path& builtin_folder);

// Rotary embeddings of a Hugging Face config.json, in both generations of its keys.

/// What a family calls the two plain keys, and the fraction that it rotates when nothing is said.
struct RopeKeys {
  std::string_view theta_key = "rope_theta";
  std::string_view fraction_key = "partial_rotary_factor";
  double fraction = 1.0;
  /// Whether layers may have angles of their own (gemma3: full and sliding attention), and whether
  /// angles may be those of rows and columns (mrope). Angles cost nothing; such models are planned.
  bool by_layer = false;
  bool sections = false;
};

/// Reads rope_parameters (Transformers 5), or rope_theta with rope_scaling (before). Throws Error
/// naming the key for types other than default, dynamic, linear, llama3, yarn and longrope, for
/// parameters per layer type unless `keys` allow them (then those of full attention are read), and
/// when both generations are there and disagree. Of yarn and longrope only the type is kept, of
/// dynamic nothing.
Rope read_rope(const JsonReader& config, std::int64_t head_dim, const RopeKeys& keys);

/// Whether the type is dynamic: angles depend on the longest sequence that was met.
bool stretches_dynamically(const JsonReader& config);

}  // namespace shardwright
