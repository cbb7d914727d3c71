// SPDX-License-Identifier: Apache-2.0
#include "exec/train/data/sft_line.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>

#include "exec/train/data/token_source.h"

namespace shardwright::exec {
namespace {

constexpr std::string_view kBegin = "<|im_start|>", kEnd = "<|im_end|>\n";

/// What users of TRL call the response.
constexpr std::string_view kCompletion = "completion";

bool is_list(const JsonReader& object, std::string_view key) {
  return object.raw()[std::string(key)].is_array();
}

/// A content that is a list of {"type": "text", "text": ...}, as of models that also see.
bool is_list_of_parts(const JsonReader& message) {
  const nlohmann::json& content = message.raw()["content"];
  return content.is_array() && !content.empty() && content.front().is_object();
}

/// A conversation in place of a text.
bool is_list_of_messages(const JsonReader& object, std::string_view key) {
  const nlohmann::json& value = object.raw()[std::string(key)];
  return value.is_array() && !value.empty() && value.front().is_object();
}

std::string text_of_parts(const JsonReader& message) {
  std::string text;
  for (const JsonReader& part : message.require_array("content")) {
    part.require_choice("type", {"text"});
    text += part.require<std::string>("text");
  }
  return text;
}

}  // namespace

void SftLine::append_text(const JsonReader& object, std::string_view key, std::string_view text,
                          bool counts) {
  if (vocab_ < 256 || (vocab_ > kMostByteVocabulary && !bytes_)) {
    object.fail(key, fmt::format("a list of token ids: the bytes of a text are no tokens of the "
                                 "model's vocabulary of {}",
                                 vocab_));
  }
  for (const char c : text) {
    tokens_.push_back(static_cast<unsigned char>(c));
    counts_.push_back(counts);
  }
}

void SftLine::append(const JsonReader& object, std::string_view key, bool counts) {
  if (!object.has(key)) object.fail(key, "a text or a list of token ids");
  if (is_list_of_messages(object, key)) {
    append_messages(object.require_array(key), counts);
    return;
  }
  if (!is_list(object, key)) {
    append_text(object, key, object.require<std::string>(key), counts);
    return;
  }
  for (const JsonReader& element : object.require_array(key)) {
    tokens_.push_back(static_cast<std::int32_t>(
        element.value<std::int64_t>(between<std::int64_t>(0, vocab_ - 1))));
    counts_.push_back(counts);
  }
}

void SftLine::append_message(const JsonReader& message, bool may_count) {
  if (!message.is_object()) message.fail("an object with role and content");
  const std::string role = message.require<std::string>("role");
  const bool counts = may_count && role == "assistant";
  const bool parts = message.has("content") && is_list_of_parts(message);
  if (message.has("content") && !parts && is_list(message, "content")) {
    append(message, "content", counts);
    return;
  }
  const std::string text = parts ? text_of_parts(message) : message.require<std::string>("content");
  append_text(message, "role", fmt::format("{}{}\n", kBegin, role), false);
  append_text(message, "content", text, counts);
  // That the assistant stops is what it has to learn, too.
  append_text(message, "content", kEnd, counts);
}

void SftLine::append_messages(const std::vector<JsonReader>& messages, bool may_count) {
  for (const JsonReader& message : messages) append_message(message, may_count);
}

bool SftLine::read(const JsonReader& object) {
  if (!object.is_object()) object.fail("an object with prompt and response, messages, or text");
  const std::size_t first = tokens_.size();
  if (object.has("messages")) {
    append_messages(object.require_array("messages"), true);
    if (tokens_.size() == first) object.fail("messages", "at least one message with a token");
    return false;
  }
  if (object.has("text") && !object.has("prompt")) {
    append(object, "text", true);
    if (tokens_.size() == first) object.fail("text", "at least one token");
    return true;
  }
  if (!object.has("prompt")) {
    object.fail("prompt", "prompt and response, or messages, or text: each a text or token ids");
  }
  if (object.has("response") && object.has(kCompletion)) {
    object.fail(kCompletion, "no such key beside response, which means the same");
  }
  const std::string_view response = object.has(kCompletion) ? kCompletion : "response";
  append(object, "prompt", false);
  const std::size_t prompt = tokens_.size();
  append(object, response, true);
  if (tokens_.size() == prompt) object.fail(response, "at least one token");
  return false;
}

bool holds_text(std::string_view line) {
  const nlohmann::json value = parse_json(line, false);
  if (!value.is_object()) return false;  // reading it says why it is wrong
  const auto is_ids = [](const nlohmann::json& of) {
    return of.is_array() && (of.empty() || of.front().is_number());
  };
  const nlohmann::json none;
  const auto at = [&none](const nlohmann::json& of, const char* key) -> const nlohmann::json& {
    return of.is_object() && of.contains(key) ? of[key] : none;
  };
  const nlohmann::json& messages = at(value, "messages");
  if (messages.is_array() && !messages.empty()) return !is_ids(at(messages.front(), "content"));
  return !is_ids(at(value, value.contains("prompt") ? "prompt" : "text"));
}

}  // namespace shardwright::exec
