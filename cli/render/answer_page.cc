// SPDX-License-Identifier: Apache-2.0
#include "cli/render/answer_page.h"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/build_info.h"
#include "cli/render/text/quantity.h"
#include "cli/text.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string in_html(std::string_view text) {
  std::string safe;
  for (const char c : printable(text, true)) {
    if (c == '&') {
      safe += "&amp;";
    } else if (c == '<') {
      safe += "&lt;";
    } else if (c == '>') {
      safe += "&gt;";
    } else {
      safe += c;
    }
  }
  return safe;
}

/// JSON in ASCII in which no name can end the script element that holds it, or begin a comment.
std::string in_script(const Json& json) {
  std::string safe;
  for (const char c : json.dump(-1, ' ', true, Json::error_handler_t::replace)) {
    if (c == '<' || c == '>' || c == '&') {
      safe += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      safe += c;
    }
  }
  return safe;
}

/// A number as its key says what it is: "iteration_time_s", "peak_reserved_bytes".
std::string number_text(const std::string& key, double value) {
  if (key.find("_bytes") != key.npos) return bytes(static_cast<Bytes>(value));
  if (key.find("_per_") == key.npos && (key.ends_with("_s") || key.find("_s,") != key.npos))
    return duration(value);
  return fmt::format("{:.6g}", value);
}

/// A row for each number and word of `object` and of those in it, `depth` deep.
void add_rows(const Json& object, const std::string& before, int depth, std::string& rows) {
  for (const auto& [name, value] : object.items()) {
    const std::string key = before + name;
    std::string text;
    if (value.is_number()) {
      text = number_text(key, value.get<double>());
    } else if (value.is_string() && name != "schema") {
      text = value.get<std::string>();
    } else if (value.is_object() && depth > 0) {
      add_rows(value, key + ", ", depth - 1, rows);
    }
    if (text.empty()) continue;
    std::string words = key;
    std::replace(words.begin(), words.end(), '_', ' ');
    rows += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", in_html(words), in_html(text));
  }
}

/// What is there without scripts: the summary and the numbers of the answer, or of the comparison.
std::string plain_answer(const Json& page) {
  const auto comparison = page.find("comparison");
  const Json& answer =
      page.at("answer").is_null() && comparison != page.end() ? *comparison : page.at("answer");
  std::string body;
  if (const auto summary = answer.find("summary"); summary != answer.end()) {
    for (const Json& sentence : *summary)
      body += fmt::format("<p>{}</p>\n", in_html(sentence.get<std::string>()));
  }
  const auto several = answer.find("predictions");
  for (const Json& one : several != answer.end() ? *several : Json::array({answer})) {
    std::string rows;
    add_rows(one, "", 1, rows);
    body += fmt::format("<table>\n{}</table>\n", rows);
  }
  return body;
}

}  // namespace

std::string answer_page(const std::string& title, const Json& page) {
  return fmt::format(
      R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'">
<title>Shardwright: {0}</title>
<style>
{1}</style>
</head>
<body data-view="answer">
<header><h1>{0}</h1></header>
<main><div id="answers"><noscript>
{2}</noscript></div></main>
<script type="application/json" id="answer">{3}</script>
<script type="module">
{4}</script>
</body>
</html>
)",
      in_html(title), answer_page_style(), plain_answer(page), in_script(page),
      answer_page_script());
}

Json page_provenance(const std::string& command_line) {
  const BuildInfo build = build_info();
  Json rows = Json::array();
  rows.push_back({"Written by", fmt::format("shardwright {} ({}, {})", build.version,
                                            build.compiler, build.build_type)});
  rows.push_back({"On", fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)))});
  rows.push_back({"Command", command_line});
  return rows;
}

}  // namespace shardwright::cli
