// SPDX-License-Identifier: Apache-2.0
// What tests of the program share: command lines, what it answers, and how it refuses.
#pragma once

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "profiles/data_file.h"
#include "sim/core/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/files.h"
#include "tests/support/not_empty.h"
#include "tests/support/refusal.h"
#include "tests/support/run_program.h"
#include "tests/support/shardwright.h"
#include "tests/support/temp_folder.h"

namespace shardwright::cli {

namespace {
using nlohmann::json;  // unnamed, because parameters of headers have this name, too
}  // namespace

using shardwright::testing::expect_error;
using shardwright::testing::get;
using shardwright::testing::ProgramResult;
using shardwright::testing::put;
using shardwright::testing::refusal_of;
using shardwright::testing::run_program;
using shardwright::testing::shardwright;
using shardwright::testing::temp_folder;
using shardwright::testing::temp_path;
using shardwright::testing::written;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

inline Words joined(Words words, const Words& second, const Words& third = {},
                    const Words& fourth = {}) {
  for (const Words* more : {&second, &third, &fourth})
    words.insert(words.end(), more->begin(), more->end());
  return words;
}

/// What a run printed that ends well.
inline std::string output_of(const ProgramResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

/// The document of a run that ends with this code.
inline json document_of(const ProgramResult& result, int exit_code = 0) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  return json::parse(result.out);
}

/// `text` has all these parts.
inline void expect_says(const std::string& text, const Words& parts) {
  for (const std::string& part : parts) EXPECT_THAT(text, HasSubstr(part));
}

/// A run that ends with this code and has all these parts on standard error.
inline void expect_end(const ProgramResult& result, int exit_code, const Words& parts) {
  EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
  expect_says(result.err, parts);
}

/// Of `document` what stands at the keys of `keys`.
inline json part_of(const json& document, const json& keys) {
  if (!keys.is_object() || !document.is_object()) return document;
  json part = json::object();
  for (const auto& [key, inner] : keys.items()) {
    if (document.contains(key)) part[key] = part_of(document.at(key), inner);
  }
  return part;
}

/// `document` has these values, whatever else it has.
inline void expect_has(const json& document, const json& values) {
  EXPECT_EQ(part_of(document, values), values);
}

}  // namespace shardwright::cli
