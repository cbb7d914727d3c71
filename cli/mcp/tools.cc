// SPDX-License-Identifier: Apache-2.0
#include "cli/mcp/tools.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/mcp/brief.h"
#include "sim/core/base/error.h"
#include "sim/core/base/nearest.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Flags that write, ask for help, or say how the answer is printed.
constexpr std::array<std::string_view, 10> kNotOffered = {
    "--out",   "--trace", "--json",    "--help",    "--version",
    "--color", "--quiet", "--verbose", "--explain", "--plan"};

bool offered(const ToolOption& option) {
  return option.flag.starts_with("--") &&
         std::find(kNotOffered.begin(), kNotOffered.end(), option.flag) == kNotOffered.end();
}

std::string property_of(const ToolOption& option) {
  std::string name = option.flag.substr(2);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// May be given several times.
bool repeats(const ToolOption& option) {
  return option.description.find("repeatable") != std::string::npos;
}

Json property_schema(const ToolOption& option) {
  Json schema;
  if (option.type.empty()) {
    schema["type"] = "boolean";
  } else if (repeats(option)) {
    schema["type"] = "array";
    schema["items"] = {{"type", "string"}};
  } else if (option.type == "N" || option.type == "X" || option.type == "S" ||
             option.type == "K|all") {
    // Also as people write it: "2T", "8k", "all".
    schema["type"] = {"number", "string"};
  } else {
    schema["type"] = "string";
  }
  schema["description"] = option.type.empty() || option.type == "N" || option.type == "X"
                              ? option.description
                              : fmt::format("{}: {}", option.type, option.description);
  return schema;
}

std::string word_of(const std::string& name, const nlohmann::json& value) {
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    if (text.find('\0') == text.npos) return text;
  }
  if (value.is_number()) return value.dump();
  throw Error(fmt::format("{} is {}, expected a number or a text", name,
                          value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)));
}

constexpr const char* kFull = "full";

}  // namespace

bool wants_all(const nlohmann::json& arguments) {
  if (!arguments.is_object() || !arguments.contains(kFull)) return false;
  const nlohmann::json& value = arguments.at(kFull);
  if (value.is_null()) return false;
  if (!value.is_boolean()) throw Error(fmt::format("{} is no true or false", kFull));
  return value.get<bool>();
}

std::vector<McpTool> mcp_tools(const std::vector<ToolVerb>& verbs) {
  std::vector<McpTool> tools = {
      {"predict",
       "Predict a training step",
       "Memory, time of a step, tokens per second, days and dollars of training a transformer with "
       "a "
       "given configuration on given GPUs. Give model, cluster and gpus at least. Times and memory "
       "come with 90 % intervals; memory.verdict says whether it fits.",
       "predict",
       {"--json"},
       {}},
      {"explain",
       "Explain a training step",
       "As predict, with what bounds each phase, where memory goes, and what one change would buy.",
       "predict",
       {"--json", "--explain"},
       {}},
      {"tune",
       "Find the best configuration",
       "Searches sharding, checkpointed layers, micro-batch and all other knobs for a model on a "
       "cluster: the best plans, why, and what to change when nothing fits. What is given is held "
       "fixed.",
       "tune",
       {"--json"},
       {}},
      {"size",
       "Choose kind and number of GPUs",
       "For a goal in tokens, with a deadline or budget: which cluster and how many GPUs, with "
       "days "
       "and dollars of the whole run, failures counted.",
       "size",
       {"--json"},
       {}}};
  for (McpTool& tool : tools) {
    const auto verb = std::find_if(verbs.begin(), verbs.end(), [&](const ToolVerb& candidate) {
      return candidate.name == tool.verb;
    });
    if (verb == verbs.end()) continue;
    std::copy_if(verb->options.begin(), verb->options.end(), std::back_inserter(tool.options),
                 offered);
  }
  return tools;
}

Json input_schema(const McpTool& tool) {
  Json properties = Json::object();
  for (const ToolOption& option : tool.options)
    properties[property_of(option)] = property_schema(option);
  properties[kFull] = {
      {"type", "boolean"},
      {"description",
       fmt::format("the whole document instead of one below {} letters", kLongestAnswer)}};
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", tool.name == "size" ? Json{"model", "tokens"} : Json{"model", "cluster"}},
          {"additionalProperties", false}};
}

std::vector<std::string> arguments_of(const McpTool& tool, const nlohmann::json& arguments) {
  std::vector<std::string> words{tool.verb};
  words.insert(words.end(), tool.always.begin(), tool.always.end());
  if (arguments.is_null()) return words;
  if (!arguments.is_object()) throw Error("arguments are no object, expected names and values");
  std::vector<std::string> known;
  for (const ToolOption& option : tool.options) known.push_back(property_of(option));
  for (const auto& [name, value] : arguments.items()) {
    if (name == kFull) continue;
    const auto at = std::find(known.begin(), known.end(), name);
    if (at == known.end()) {
      throw Error(
          fmt::format("{} has no argument '{}'{}", tool.name, name, did_you_mean(name, known)));
    }
    const ToolOption& option = tool.options[static_cast<std::size_t>(at - known.begin())];
    const std::string& flag = option.flag;
    if (value.is_null()) continue;
    if (option.type.empty()) {
      if (!value.is_boolean()) throw Error(fmt::format("{} is no true or false", name));
      if (value.get<bool>()) words.push_back(flag);
      continue;
    }
    // Joined by '=', so that no value can be taken for a flag.
    if (!value.is_array() || !repeats(option)) {
      words.push_back(fmt::format("{}={}", flag, word_of(name, value)));
      continue;
    }
    for (const nlohmann::json& element : value)
      words.push_back(fmt::format("{}={}", flag, word_of(name, element)));
  }
  return words;
}

}  // namespace shardwright::cli
