// SPDX-License-Identifier: Apache-2.0
// Another trainer's settings in each language that is read here (Python is not), and the plan that
// they are read as.
#include "cli/config/imported.h"
#include "cli/config/setting.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "tests/fuzz/fuzz_target.h"

namespace shardwright::fuzz {
namespace {

void become_a_plan(cli::Settings settings, const std::string& file) {
  cli::SettingBox box(std::move(settings), file);
  cli::ImportedConfig config;
  cli::recognized_format(box).read(box, config);
  box.finish(config);
  constexpr std::int64_t kGpus = 64, kLayers = 32, kGpusPerNode = 8;
  const Plan plan = cli::plan_of(config, config.gpus.value_or(kGpus), kLayers, file);
  check_plan(plan, kLayers, kGpusPerNode);
}

void fuzz_settings(std::string_view input) {
  using Language = cli::SettingsLanguage;
  bool taken = false;
  for (const auto& [language, file] :
       {std::pair{Language::kShell, "run.sh"}, std::pair{Language::kJson, "ds.json"},
        std::pair{Language::kYaml, "axolotl.yaml"}, std::pair{Language::kToml, "titan.toml"}}) {
    if (!cli::reads(language)) continue;
    try {
      cli::Settings settings = cli::parse_settings(language, input, file);
      SHARDWRIGHT_CHECK(settings.size() <= cli::kMostSettings, "{} settings", settings.size());
      become_a_plan(std::move(settings), file);
      taken = true;
    } catch (const Error&) {
      // It may be of another language.
    }
  }
  if (!taken) throw Error("no plan in any language");
}

SHARDWRIGHT_FUZZ_TARGET(settings, fuzz_settings, nullptr);

}  // namespace
}  // namespace shardwright::fuzz
