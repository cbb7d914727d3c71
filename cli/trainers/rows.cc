// SPDX-License-Identifier: Apache-2.0
#include "cli/trainers/rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/export/settings.h"
#include "cli/trainers/fine_tuning.h"
#include "sim/core/base/words.h"

namespace shardwright::cli {
namespace {

std::string_view first_key(const Row& row) {
  return row.keys.substr(0, row.keys.find(' '));
}

/// "_component_" is no bare word.
YamlSource yaml_key(std::string_view name) {
  return name.starts_with('_') ? "_" + YamlSource(bare(name.substr(1))) : bare(name);
}

YamlSource written_value(const Row& row, const Told& told) {
  const bool holds = row.only == nullptr || row.only(told);
  if (*row.words != 0) return holds ? row.words : row.otherwise;
  if (!holds) return "";
  return row.value != nullptr ? row.value(told) : bare(plan_knob(row.knob).write(told.run));
}

/// What is written, in its order.
std::vector<std::pair<std::string_view, YamlSource>> lines_of(std::span<const Row> rows,
                                                              const Told& told) {
  std::vector<const Row*> ordered;
  for (const Row& row : rows) {
    if (row.line > 0) ordered.push_back(&row);
  }
  std::sort(ordered.begin(), ordered.end(),
            [](const Row* a, const Row* b) { return a->line < b->line; });
  std::vector<std::pair<std::string_view, YamlSource>> lines;
  for (const Row* row : ordered) {
    YamlSource value = written_value(*row, told);
    if (!value.text().empty()) lines.emplace_back(first_key(*row), std::move(value));
  }
  return lines;
}

void read_knob(const Row& row, SettingBox& box, ImportedConfig& to) {
  if (box.take_knob(row.keys, row.knob, to)) return;
  const std::string_view key = first_key(row);
  if (!row.usual.empty()) plan_knob(row.knob).read(to.knobs, key, std::string(row.usual));
  if (row.usual.empty() && row.remark.empty()) return;
  const char* const gap = row.usual.empty() || row.remark.empty() ? "" : ", ";
  to.assumed.push_back(fmt::format("{} is not said: {}{}{}", key, row.usual, gap, row.remark));
}

void read_packing(const Row& row, SettingBox& box, ImportedConfig& to) {
  bool packs = false;
  for (const std::string_view key : Keys(row.keys)) packs = box.is_on(key) || packs;
  if (packs) return;
  to.assumed.push_back(fmt::format(
      "without {} most sequences are shorter than {}: times and memory are of full ones",
      first_key(row), row.usual));
}

void read_count(const Row& row, SettingBox& box, ImportedConfig& to) {
  const std::int64_t count = box.take_count(row.keys).value_or(1);
  if (count == 1) return;
  if (row.kind == Row::Kind::kDegree) return box.set_knob(row.knob, fmt::format("{}", count), to);
  to.replicate = count;
  to.strategy = Strategy::kHsdp;
  to.overrides.emplace_back("stack.hsdp_on_fsdp1=false");
  box.took(copies_words(count), to);
}

void read_row(const Row& row, SettingBox& box, ImportedConfig& to) {
  switch (row.kind) {
    case Row::Kind::kKnob:
      return read_knob(row, box, to);
    case Row::Kind::kDegree:
    case Row::Kind::kCopies:
      return read_count(row, box, to);
    case Row::Kind::kSwitch:
      if (box.is_on(row.keys)) box.set_knob(row.knob, std::string(row.usual), to);
      return;
    case Row::Kind::kModel:
      if (const auto name = box.take(row.keys)) {
        to.model = *name;
        box.took(fmt::format("model {}", *name), to);
      }
      return;
    case Row::Kind::kOptimizer:
      return take_optimizer_word(box, row.keys, to);
    case Row::Kind::kPacking:
      return read_packing(row, box, to);
    case Row::Kind::kLeft:
      return box.leave(row.keys, row.remark, to);
    case Row::Kind::kRefused:
      for (const std::string_view key : Keys(row.keys)) {
        if (lower_case(box.take(key).value_or("false")) != "false") box.fail(row.remark);
      }
      return;
    case Row::Kind::kFree:
      return box.pass(row.keys, row.usual);
    case Row::Kind::kSections:
      for (const std::string_view key : Keys(row.keys)) box.take_section(key);
      return;
    case Row::Kind::kCode:
      if (row.take != nullptr) row.take(box, to);
  }
}

}  // namespace

void read_rows(std::span<const Row> rows, SettingBox& box, ImportedConfig& to) {
  for (const Row& row : rows) read_row(row, box, to);
}

YamlSource yaml_of(std::span<const Row> rows, const Told& told) {
  YamlSource text;
  std::string_view section;
  for (const auto& [key, value] : lines_of(rows, told)) {
    const std::size_t dot = key.find('.');
    const std::string_view above = dot == key.npos ? "" : key.substr(0, dot);
    if (above != section && !above.empty()) text += YamlSource::format("{}:\n", bare(above));
    section = above;
    const std::string_view name = above.empty() ? key : key.substr(dot + 1);
    text += YamlSource::format("{}{}: {}\n", above.empty() ? "" : "  ", yaml_key(name), value);
  }
  return text;
}

JsonSource json_of(std::span<const Row> rows, const Told& told) {
  using Json = nlohmann::ordered_json;
  Json settings;
  for (const auto& [key, value] : lines_of(rows, told)) {
    std::string place = fmt::format("/{}", key);
    std::replace(place.begin(), place.end(), '.', '/');
    settings[Json::json_pointer(place)] =
        Json::accept(value.text()) ? Json::parse(value.text()) : Json(value.text());
  }
  return json_source(settings.dump(2) + "\n");
}

YamlSource Write::layer_class(const Told& t) {
  return bare(module_names(t.inputs.model).layer_class);
}

}  // namespace shardwright::cli
