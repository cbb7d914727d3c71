// SPDX-License-Identifier: Apache-2.0
#include "cli/mcp/tools.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/mcp/brief.h"
#include "sim/core/base/error.h"
#include "sim/core/base/words.h"

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

std::string words_of(const ToolOption& option) {
  return option.type.empty() || option.type == "N" || option.type == "X"
             ? option.description
             : fmt::format("{}: {}", option.type, option.description);
}

/// The first clause, without what is in brackets.
std::string gist_of(const ToolOption& option) {
  const std::string words = words_of(option);
  return words.substr(0, std::min(words.find("; "), words.find(" (")));
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
  schema["description"] = gist_of(option);
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

/// The index of the option with this name. Throws Error with the nearest.
std::size_t option_of(const McpTool& tool, const std::string& name) {
  std::vector<std::string> known;
  for (const ToolOption& option : tool.options) known.push_back(property_of(option));
  const auto at = std::find(known.begin(), known.end(), name);
  if (at == known.end()) {
    throw Error(
        fmt::format("{} has no argument '{}'{}", tool.name, name, did_you_mean(name, known)));
  }
  return static_cast<std::size_t>(at - known.begin());
}

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
       "Memory, time of a step, tokens per second, days and dollars of training a model in a given "
       "configuration on given GPUs. Times and memory come with 90 % intervals; "
       "memory.verdict says whether it fits.",
       "predict",
       {"--json"},
       {"model", "cluster", "gpus", "strategy", "seq_len", "micro_batch", "global_batch",
        "ckpt_layers", "tp", "pp", "cp", "ep", "precision", "task"}},
      {"explain",
       "Explain a training step",
       "As predict, with what bounds each phase, where memory goes, and what one change buys. "
       "Takes the arguments of predict.",
       "predict",
       {"--json", "--explain"},
       {"model", "cluster", "gpus"}},
      {"tune",
       "Find the best configuration",
       "Searches sharding, checkpointed layers, micro-batch and other knobs for a model on a "
       "cluster: the best plans, why, and what to change when none fits. What is given is held "
       "fixed.",
       "tune",
       {"--json"},
       {"model", "cluster", "gpus", "for", "task", "seq_len", "global_batch", "strategy", "allow",
        "time_limit"}},
      {"size",
       "Choose kind and number of GPUs",
       "For a goal in tokens, a deadline or budget: which cluster and how many GPUs, with "
       "days and dollars of a whole run, failures counted.",
       "size",
       {"--json"},
       {"model", "tokens", "deadline", "budget", "clusters", "gpus", "max_gpus", "seq_len",
        "global_batch", "precision", "price_kind"}},
      {kDescribe,
       "Describe arguments",
       "Every argument of a tool with what it means and its default.",
       "",
       {},
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
  if (tool.verb.empty()) {
    return {{"type", "object"},
            {"properties",
             {{"tool", {{"type", "string"}, {"enum", {"predict", "explain", "tune", "size"}}}},
              {"argument", {{"type", "string"}, {"description", "that alone"}}}}},
            {"required", Json{"tool"}},
            {"additionalProperties", false}};
  }
  Json properties = Json::object();
  std::string others;
  for (const std::string& name : tool.usual)
    properties[name] = property_schema(tool.options[option_of(tool, name)]);
  for (const ToolOption& option : tool.options) {
    const std::string name = property_of(option);
    if (!properties.contains(name)) others += (others.empty() ? "" : " ") + name;
  }
  properties[kFull] = {
      {"type", "boolean"},
      {"description", fmt::format("the whole document, not {} letters", kLongestAnswer)}};
  Json further;
  further["description"] =
      tool.name == "explain" ? "as of predict" : fmt::format("See {}: {}", kDescribe, others);
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", tool.name == "size" ? Json{"model", "tokens"} : Json{"model", "cluster"}},
          {"additionalProperties", std::move(further)}};
}

Json describe(const std::vector<McpTool>& tools, const nlohmann::json& arguments) {
  const auto text = [&](const char* key) -> std::string {
    if (!arguments.is_object() || !arguments.contains(key)) return "";
    if (!arguments.at(key).is_string()) throw Error(fmt::format("{} is no text", key));
    return arguments.at(key).get<std::string>();
  };
  const std::string name = text("tool"), argument = text("argument");
  const auto tool = std::find_if(tools.begin(), tools.end(), [&](const McpTool& known) {
    return known.name == name && !known.verb.empty();
  });
  if (tool == tools.end())
    throw Error(fmt::format("tool is '{}', expected predict, explain, tune or size", name));
  const std::size_t only = argument.empty() ? 0 : option_of(*tool, argument);
  Json described = Json::object();
  for (std::size_t i = 0; i < tool->options.size(); ++i) {
    if (argument.empty() || i == only)
      described[property_of(tool->options[i])] = words_of(tool->options[i]);
  }
  return {{"tool", name}, {"arguments", std::move(described)}};
}

std::vector<std::string> arguments_of(const McpTool& tool, const nlohmann::json& arguments) {
  std::vector<std::string> words{tool.verb};
  words.insert(words.end(), tool.always.begin(), tool.always.end());
  if (arguments.is_null()) return words;
  if (!arguments.is_object()) throw Error("arguments are no object, expected names and values");
  for (const auto& [name, value] : arguments.items()) {
    if (name == kFull) continue;
    const ToolOption& option = tool.options[option_of(tool, name)];
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
