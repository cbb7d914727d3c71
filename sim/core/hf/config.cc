// SPDX-License-Identifier: Apache-2.0
#include "sim/core/hf/config.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/read_file.h"
#include "sim/core/base/words.h"
#include "sim/core/hf/families.h"
#include "sim/core/hf/keys.h"

namespace shardwright {

namespace {

namespace fs = std::filesystem;

constexpr JsonLimits kConfigLimits{.max_bytes = std::size_t{4} << 20, .max_depth = 32};

Model model_of(const JsonFile& file, std::string name) {
  Model model = hf::model_from_config(file.root());
  model.name = std::move(name);
  try {
    check_model(model);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", file.root().file(), error.what()));
  }
  return model;
}

/// Built-in names have no separators, so that a name cannot leave the folder.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name.find('/') == std::string_view::npos && name.front() != '.';
}

std::string without_organisation(std::string_view name) {
  return std::string(name.substr(name.rfind('/') + 1));  // npos + 1 is 0
}

/// The built-in whose "_aliases" list `name`, with its organisation or without.
std::optional<std::string> builtin_of_alias(const fs::path& folder, std::string_view name) {
  const std::string wanted = lower_case(name);
  for (const std::string& builtin : builtin_models(folder)) {
    const JsonFile file = JsonFile::load(folder / (builtin + ".json"), kConfigLimits);
    if (!file.root().has("_aliases")) continue;
    for (const std::string& alias : file.root().require_list<std::string>("_aliases")) {
      const std::string known = lower_case(alias);
      if (known == wanted || without_organisation(known) == wanted) return builtin;
    }
  }
  return std::nullopt;
}

JsonFile parse_config(std::string_view text, std::string file) {
  if (text.starts_with("\x1f\x8b")) return JsonFile::parse(text, std::move(file), kConfigLimits);
  return JsonFile::parse(hf::without_python_literals(text), std::move(file), kConfigLimits);
}

ModelFile find_path(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    if (!fs::exists(path / "config.json", ignored)) {
      throw Error(fmt::format("{}: holds no config.json, expected a model folder", path.string()));
    }
    return find_path(path / "config.json");
  }
  return {path, model_name_of(path.string())};
}

/// Digits compare by value, so that 8b comes before 70b.
bool natural_less(std::string_view a, std::string_view b) {
  const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  const auto take_number = [&](std::string_view& text) {
    const std::string_view digits = text.substr(
        0,
        static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), digit) - text.begin()));
    text.remove_prefix(digits.size());
    return std::pair(digits.size(), digits);
  };
  while (!a.empty() && !b.empty()) {
    if (digit(a.front()) && digit(b.front())) {
      const auto x = take_number(a);
      const auto y = take_number(b);
      if (x != y) return x < y;
    } else if (a.front() != b.front()) {
      return a.front() < b.front();
    } else {
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

}  // namespace

std::vector<std::string> builtin_models(const fs::path& builtin_folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(builtin_folder, error)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  if (error) {
    throw Error(fmt::format("{}: cannot list the built-in models: {}", builtin_folder.string(),
                            error.message()));
  }
  std::sort(names.begin(), names.end(), natural_less);
  return names;
}

Model parse_hf_config(std::string_view text, std::string file, std::string model_name) {
  return model_of(parse_config(text, std::move(file)), std::move(model_name));
}

ModelFile find_model(const fs::path& builtin_folder, std::string_view name_or_path) {
  if (name_or_path.empty()) {
    throw Error(
        "the model is '', expected a built-in name, a config.json or a folder that holds one");
  }
  const auto builtin = [&](const std::string& name) {
    return ModelFile{builtin_folder / (name + ".json"), name};
  };
  std::error_code ignored;
  if (is_plain_name(name_or_path)) {
    ModelFile file = builtin(lower_case(name_or_path));
    if (fs::is_regular_file(file.path, ignored)) return file;
  }
  const fs::path path(name_or_path);
  if (fs::exists(path, ignored)) return find_path(path);
  if (path.extension() == ".json" || name_or_path.front() == '.' || path.is_absolute()) {
    throw Error(
        fmt::format("{}: no such file or folder, expected a config.json or a folder that holds one",
                    name_or_path));
  }
  if (const auto name = builtin_of_alias(builtin_folder, name_or_path)) return builtin(*name);
  throw Error(fmt::format(
      "model '{}' is not known; the nearest are {}; `shardwright inspect models` lists all, and "
      "the "
      "path of a config.json or of its folder is accepted too",
      name_or_path,
      fmt::join(nearest_few(lower_case(without_organisation(name_or_path)),
                            builtin_models(builtin_folder), 3),
                ", ")));
}

std::string read_model_config(const fs::path& builtin_folder, std::string_view name_or_path) {
  return hf::without_python_literals(
      read_file(find_model(builtin_folder, name_or_path).path, kConfigLimits.max_bytes));
}

std::string model_name_of(std::string_view name_or_path) {
  const fs::path absolute = fs::absolute(name_or_path).lexically_normal();
  if (absolute.filename() == "config.json") return absolute.parent_path().filename().string();
  if (absolute.extension() == ".json") return absolute.stem().string();
  const fs::path named = absolute.has_filename() ? absolute : absolute.parent_path();
  return named.filename().string();
}

Model load_model(const fs::path& builtin_folder, std::string_view name_or_path) {
  const ModelFile file = find_model(builtin_folder, name_or_path);
  return model_of(load_model_config(file.path), file.name);
}

JsonFile load_model_config(const fs::path& path) {
  return parse_config(read_file(path, kConfigLimits.max_bytes), path.string());
}

namespace {

constexpr std::string_view kDynamic = "dynamic";

std::string type_of(const JsonReader& object) {
  return object.optional<std::string>(object.has("rope_type") ? "rope_type" : "type", "default");
}

RopeScaling scaling_type(const JsonReader& object, const RopeKeys& keys) {
  const std::string_view key = object.has("rope_type") ? "rope_type" : "type";
  const std::string type = object.optional<std::string>(key, "default");
  // "mrope" is the older name of the default with sections.
  // "proportional" spreads the angles of a part of a head over all of it.
  // "dynamic" changes angles beyond the original length, by the length that is met.
  if (type == "default" || type == kDynamic || (type == "mrope" && keys.sections) ||
      (type == "proportional" && keys.by_layer))
    return RopeScaling::kNone;
  if (type == "linear") return RopeScaling::kLinear;
  if (type == "llama3") return RopeScaling::kLlama3;
  if (type == "yarn") return RopeScaling::kYarn;
  if (type == "longrope" || type == "su") return RopeScaling::kLongrope;
  object.fail(key,
              "default, dynamic, linear, llama3, yarn or longrope, because others are not "
              "modelled");
}

/// The keys of rope_scaling or rope_parameters that say how frequencies are scaled. Those of llama3
/// are required, as in Transformers.
Rope read_scaling(const JsonReader& object, const JsonReader& config, const RopeKeys& keys) {
  for (const auto& [key, value] : object.raw().items()) {
    if (value.is_object()) object.fail(key, "one set of RoPE parameters for all layers");
  }
  if (object.has("mrope_section") && !keys.sections) {
    object.fail("mrope_section", "no such key, because it is not modelled");
  }
  Rope rope;
  rope.scaling = scaling_type(object, keys);
  const bool angles_only =
      rope.scaling == RopeScaling::kYarn || rope.scaling == RopeScaling::kLongrope;
  if (rope.scaling == RopeScaling::kNone || angles_only) return rope;
  rope.factor = object.require<double>("factor", at_least(1.0));
  if (rope.scaling == RopeScaling::kLinear) return rope;
  rope.low_freq_factor = object.require<double>("low_freq_factor", above(0.0));
  rope.high_freq_factor = object.require<double>("high_freq_factor", above(0.0));
  // Llama 4 Scout has both at 1: frequencies are kept or stretched, with nothing in between.
  if (rope.high_freq_factor < rope.low_freq_factor) {
    object.fail("high_freq_factor",
                fmt::format("at least low_freq_factor, {}", rope.low_freq_factor));
  }
  constexpr std::string_view kOriginal = "original_max_position_embeddings";
  const JsonReader& holder = !object.has(kOriginal) && config.has(kOriginal) ? config : object;
  rope.original_max_positions =
      holder.require<std::int64_t>(kOriginal, between<std::int64_t>(1, model_limits::kPositions));
  return rope;
}

bool same_scaling(const Rope& a, const Rope& b) {
  return a.scaling == b.scaling && a.factor == b.factor && a.low_freq_factor == b.low_freq_factor &&
         a.high_freq_factor == b.high_freq_factor &&
         a.original_max_positions == b.original_max_positions;
}

/// The number under `key` of `object` where both are there, else what `config` has, else
/// `fallback`.
double number(const std::optional<JsonReader>& object, std::string_view key,
              const JsonReader& config, std::string_view config_key, double fallback,
              NumberRange<double> accepted) {
  if (object && object->has(key)) return object->require<double>(key, accepted);
  return config.optional<double>(config.has(config_key) ? config_key : key, fallback, accepted);
}

}  // namespace

Rope read_rope(const JsonReader& config, std::int64_t head_dim, const RopeKeys& keys) {
  auto parameters = config.find_object("rope_parameters");
  if (parameters && keys.by_layer && parameters->has("full_attention"))
    parameters = parameters->require_object("full_attention");
  const auto scaling = config.find_object("rope_scaling");
  Rope rope;
  if (parameters) rope = read_scaling(*parameters, config, keys);
  if (scaling) {
    const Rope legacy = read_scaling(*scaling, config, keys);
    if (parameters && !same_scaling(rope, legacy)) {
      config.fail("rope_scaling", "the same as rope_parameters, or only one of the two");
    }
    rope = legacy;
  }
  rope.theta = number(parameters, "rope_theta", config, keys.theta_key, rope.theta, above(0.0));
  rope.rotary_fraction = number(parameters, "partial_rotary_factor", config, keys.fraction_key,
                                keys.fraction, {0.0, 1.0, true});
  const double rotated = std::floor(static_cast<double>(head_dim) * rope.rotary_fraction);
  if (rotated < 2 || std::fmod(rotated, 2) != 0) {
    throw Error(
        fmt::format("{}: RoPE turns {} of the {} dimensions of a head, expected an even number",
                    config.file(), rotated, head_dim));
  }
  return rope;
}

bool stretches_dynamically(const JsonReader& config) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto object = config.find_object(key);
    if (object && type_of(*object) == kDynamic) return true;
  }
  return false;
}

}  // namespace shardwright
