// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "cli/inspect/inspect.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "cli/run/options.h"
#include "exec/train/checkpoint.h"

namespace shardwright::cli {
namespace {

using nlohmann::ordered_json;

}  // namespace

std::string inspect_run(const std::string& path, Form form, const Terminal& out) {
  RunSettings settings;
  settings.set_flag(kConfig, path);
  settings.resolve(process_environment());
  const RunOptions options = run_options(settings);
  if (form == Form::kJson) {
    ordered_json document{{"schema", "shardwright.inspection/1.0"},
                          {"kind", "run"},
                          {"name", path},
                          {"settings", ordered_json::object()}};
    for (const SettingInfo& info : setting_table()) {
      if (!settings.listed(info)) continue;
      const RunSetting& setting = settings.at(info.key);
      document["settings"][info.key] = {{"value", setting.value}, {"origin", setting.origin}};
    }
    return json_text(document) + "\n";
  }
  Table table({"setting", left("value"), left("from")});
  const char* group = "";
  for (const SettingInfo& info : setting_table()) {
    if (!settings.listed(info)) continue;
    if (std::string_view(group) != info.group && *group != '\0') table.add_rule();
    group = info.group;
    const RunSetting& setting = settings.at(info.key);
    table.add_row({info.key, setting.value.empty() ? "-" : setting.value, setting.origin});
  }
  std::string text = table.render(out);
  for (const std::string& note : options.notes) text += fmt::format("note: {}\n", note);
  return text;
}

std::string inspect_checkpoint(const std::string& path, Form form, const Terminal& out) {
  const exec::Checkpoint checkpoint(path);
  checkpoint.verify();
  const exec::CheckpointManifest& manifest = checkpoint.manifest();
  std::int64_t parameters = 0, stored = 0;
  for (const exec::CheckpointTensor& tensor : manifest.tensors) {
    std::int64_t size = 1;
    for (const std::int64_t n : tensor.shape) size *= n;
    parameters += size;
  }
  for (const exec::CheckpointFile& file : manifest.files) stored += file.bytes;
  if (form == Form::kJson) {
    return json_text(ordered_json{{"schema", "shardwright.inspection/1.0"},
                                  {"kind", "checkpoint"},
                                  {"name", path},
                                  {"step", manifest.step},
                                  {"sequences", manifest.sequences},
                                  {"tokens", manifest.tokens},
                                  {"seed", manifest.seed},
                                  {"parameters", parameters},
                                  {"tensors", manifest.tensors.size()},
                                  {"files", manifest.files.size()},
                                  {"bytes", stored},
                                  {"plan", plan_to_json(manifest.plan)},
                                  {"tool_version", manifest.tool_version}}) +
           "\n";
  }
  Table table({"", left("")});
  table.add_row({"step", manifest.step});
  table.add_row({"trained on", fmt::format("{} sequences, {} counted tokens", manifest.sequences,
                                           manifest.tokens)});
  table.add_row({"parameters", fmt::format("{} in {} tensors, with both moments", parameters,
                                           manifest.tensors.size())});
  table.add_row(
      {"files", fmt::format("{}, {}, checksums right", manifest.files.size(), bytes(stored))});
  table.add_row({"written by", fmt::format("{} on {} ranks; any other number can resume it",
                                           name_of(manifest.plan.strategy), manifest.plan.gpus)});
  table.add_row({"master weights", name_of(manifest.plan.master_dtype)});
  table.add_row({"moments", name_of(manifest.plan.moment_dtype)});
  table.add_row({"seed", manifest.seed});
  return table.render(out);
}

}  // namespace shardwright::cli
