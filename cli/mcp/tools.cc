// SPDX-License-Identifier: Apache-2.0
#include "cli/mcp/tools.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
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

namespace {

// Of these the document says the same elsewhere, or nobody asks an assistant for them; the least
// missed first.
constexpr std::string_view kBesides[] = {"options",
                                         "left_out",
                                         "simulated",
                                         "predicted_in_full",
                                         "seconds_with_reasons",
                                         "pruned",
                                         "rejected",
                                         "if_off",
                                         "savings",
                                         "pareto",
                                         "timeline",
                                         "considered",
                                         "cheapest_in_time",
                                         "fastest_in_budget",
                                         "cheapest",
                                         "fastest",
                                         "robustness",
                                         "in_the_middle",
                                         "smallest",
                                         "smallest_safe",
                                         "seconds",
                                         "other_software",
                                         "whole_run_mfu_reached",
                                         "assumptions",
                                         "nearest_feasible",
                                         "origins",
                                         "novelty",
                                         "runs_here",
                                         "inputs"};
// Of every option of `size`.
constexpr std::string_view kOfOptions[] = {"price",
                                           "production",
                                           "goodput",
                                           "extrapolated",
                                           "price_source",
                                           "mfu",
                                           "step_only",
                                           "meets",
                                           "gpu",
                                           "iteration_time_interval_s",
                                           "memory_total_bytes"};
// Of options beside the recommended one.
constexpr std::string_view kOfOthers[] = {
    "energy",           "data_parallel",       "interval_level", "tokens_per_step",
    "iteration_time_s", "over_critical_batch", "tokens_per_s"};
// Of predictions beside other answers, the least missed first.
constexpr std::string_view kOfPredictions[] = {
    "origins",  "novelty", "runs_here", "stages", "exposed_communication_by_group",
    "pipeline", "schema"};

std::size_t length_of(const Json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).size();
}

double to_five_digits(double value) {
  return parse_double(fmt::format("{:.5g}", value)).value_or(value);
}

/// Without nulls, empty lists and digits beyond the fifth.
Json plainer(const Json& json) {
  if (json.is_number_float()) return to_five_digits(json.get<double>());
  if (json.is_array()) {
    Json result = Json::array();
    for (const Json& element : json) result.push_back(plainer(element));
    return result;
  }
  if (!json.is_object()) return json;
  Json result = Json::object();
  for (const auto& [key, value] : json.items()) {
    const bool empty = value.is_null() || (value.is_structured() && value.empty());
    if (!empty) result[key] = plainer(value);
  }
  return result;
}

/// Every object below `node`, the innermost first.
template <typename Visit>
void for_each_object(Json& node, const Visit& visit) {
  if (!node.is_structured()) return;
  for (Json& child : node) for_each_object(child, visit);
  if (node.is_object()) visit(node);
}

/// A plan that was weighed: what it is in words and what it comes to, instead of all that is
/// predicted of it.
void shorten_weighed(Json& weighed) {
  const Json prediction = weighed.at("prediction");
  const Json& inputs = prediction.at("inputs");
  weighed.erase("plan");
  weighed.erase("prediction");
  weighed.erase("if_off");
  weighed["plan_words"] = inputs.at("plan_words");
  weighed["stack"] = inputs.at("plan").at("stack");
  for (const char* key : {"iteration_time_s", "tokens_per_s", "mfu"})
    weighed[key] = prediction.at(key);
  for (const char* key : {"total_bytes", "verdict"}) weighed[key] = prediction.at("memory").at(key);
}

/// Plans but for the answer's own are told in words.
void shorten_plans(Json& document) {
  Json best = document.value("best", Json());
  for_each_object(document, [](Json& object) {
    const bool weighed = object.contains("plan") && object.contains("prediction") &&
                         object["prediction"].contains("inputs");
    if (weighed) {
      shorten_weighed(object);
    } else if (object.contains("knob") ||
               (object.contains("plan_words") && !object.contains("parameters"))) {
      object.erase("plan");
    }
  });
  if (!best.is_object()) return;
  best.erase("if_off");
  if (best.contains("prediction")) best["prediction"]["inputs"].erase("plan");
  document["best"] = std::move(best);
}

/// The words of `size` begin with its summary.
void drop_repeated(Json& document) {
  Json rest = Json::array();
  for (const Json& sentence : document["words"]) {
    const Json& told = document["summary"];
    if (std::find(told.begin(), told.end(), sentence) == told.end()) rest.push_back(sentence);
  }
  document["words"] = std::move(rest);
}

void drop_from_options(Json& document) {
  const auto erase = [](Json& option, const auto& keys) {
    for (const std::string_view key : keys) option.erase(std::string(key));
  };
  Json recommended = document.value("recommended", Json());
  for_each_object(document, [&](Json& option) {
    if (option.contains("break_even_usd_per_gpu_hour")) option.erase("price");
    if (!option.contains("gpu_hours") || !option.contains("plan_words")) return;
    erase(option, kOfOptions);
    erase(option, kOfOthers);
  });
  if (!recommended.is_object()) return;
  erase(recommended, kOfOptions);
  document["recommended"] = std::move(recommended);
}

/// Of the best plan and of those that are compared.
void drop_from_predictions(Json& document, std::size_t room) {
  std::vector<Json*> predictions;
  if (const auto best = document.find("best");
      best != document.end() && best->is_object() && best->contains("prediction")) {
    predictions.push_back(&(*best)["prediction"]);
  }
  if (const auto compared = document.find("predictions"); compared != document.end()) {
    for (Json& one : *compared) {
      if (one.contains("inputs")) one["inputs"] = {{"plan_words", one["inputs"]["plan_words"]}};
      predictions.push_back(&one);
    }
  }
  for (const std::string_view key : kOfPredictions) {
    if (length_of(document) < room) return;
    for (Json* one : predictions) one->erase(std::string(key));
  }
}

/// A list of objects or sentences; one of numbers, such as an interval, means something as a whole.
struct LongList {
  Json* list = nullptr;
  std::string name;  // its key
};

/// The one that takes the most room, of more than `kept` elements.
LongList longest_list(Json& json, std::size_t kept) {
  LongList longest;
  std::size_t most = 0;
  const auto look = [&](auto&& self, const std::string& name, Json& node) -> void {
    if (node.is_array() && node.size() > kept && !node.front().is_number() &&
        length_of(node) > most) {
      most = length_of(node);
      longest = {&node, name};
    }
    if (node.is_object()) {
      for (auto& [key, child] : node.items()) self(self, key, child);
    } else if (node.is_array()) {
      for (Json& child : node) self(self, name, child);
    }
  };
  look(look, "", json);
  return longest;
}

/// Cuts lists at their ends, the longest first; says of each how many of its elements are left out.
Json cut_lists(Json& brief, std::size_t room) {
  Json cut = Json::object();
  for (std::size_t kept = 4; kept-- > 0;) {
    while (length_of(brief) + length_of(cut) >= room) {
      const LongList longest = longest_list(brief, kept);
      if (longest.list == nullptr) break;
      longest.list->erase(longest.list->size() - 1);
      cut[longest.name] = cut.value(longest.name, 0) + 1;
    }
  }
  return cut;
}

}  // namespace

Json brief_answer(const Json& document, std::size_t most) {
  if (!document.is_object() || length_of(document) < most) return document;
  constexpr std::size_t kOwn = 300;  // letters of what is said about the rest
  const std::size_t room = most > kOwn ? most - kOwn : most;
  Json brief = plainer(document);
  std::vector<std::string> left_out;
  if (brief.contains("summary") && brief.contains("words")) drop_repeated(brief);
  if (length_of(brief) >= room) shorten_plans(brief);
  if (length_of(brief) >= room) drop_from_options(brief);
  for (const std::string_view key : kBesides) {
    if (length_of(brief) < room) break;
    if (brief.erase(std::string(key)) > 0) left_out.emplace_back(key);
  }
  if (length_of(brief) >= room) drop_from_predictions(brief, room);
  const Json cut = cut_lists(brief, room);
  // What is still too long has large members.
  while (length_of(brief) >= room && brief.size() > 1) {
    std::string largest;
    std::size_t length = 0;
    for (const auto& [key, value] : brief.items()) {
      if (key != "schema" && length_of(value) > length) {
        length = length_of(value);
        largest = key;
      }
    }
    if (largest.empty()) break;
    brief.erase(largest);
    left_out.push_back(std::move(largest));
  }
  brief["shortened"] = {{"left_out", left_out},
                        {"cut_from_the_ends_of", cut},
                        {"all_of_it", "call again with full=true"}};
  return brief;
}

}  // namespace shardwright::cli
