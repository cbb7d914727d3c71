// SPDX-License-Identifier: Apache-2.0
#include "sim/core/hf/rope.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "sim/core/base/error.h"

namespace shardwright {
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
