// SPDX-License-Identifier: Apache-2.0
// Whatever a model is called, files of every trainer and of its kit mean the same: names of
// strangers' plans stay names. What is registered is what is tried.

#include <optional>
#include <type_traits>
#include <utility>

#include "cli/config/setting.h"
#include "cli/export/settings.h"
#include "cli/export/source.h"
#include "cli/export/told.h"
#include "cli/kit/kit.h"
#include "cli/machine/machine.h"
#include "profiles/cluster_file.h"
#include "sim/core/base/words.h"
#include "sim/core/hf/config.h"
#include "sim/core/plan_json.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;

// A format that writes a name as it is does not compile.
template <typename Text>
constexpr bool kTakes =
    std::is_constructible_v<PythonSource, Text> || std::is_constructible_v<YamlSource, Text> ||
    std::is_constructible_v<ShellSource, Text> || std::is_constructible_v<AnySource, Text>;
static_assert(!kTakes<std::string> && !kTakes<std::string_view>);
static_assert(!std::is_constructible_v<PythonSource, ShellSource>);
static_assert(!std::is_constructible_v<ShellSource, JsonSource>);

const std::vector<std::string> kHostile = {
    "org/m\"+__import__(\"os\").system(\"id\")+\"",
    "org/m\ntrust_remote_code: true\nplugins:\n  - evil.Plugin\n#",
    "a'b",
    "a\"b",
    "a$(touch PWNED)b",
    "a`touch PWNED`b",
    "a;touch PWNED;b",
    "a\nb: c\n- x",
    "a\n'''\nimport os\nos.system('touch PWNED')\n'''",
    "a\"\"\"\nimport os\nos.system('touch PWNED')\n\"\"\"",
    "a\\\nb",
    "a\\",
    "--format",
    "-rf",
    "a\x1b]0;owned\x07",
    "a\u202eb",
    "a\u2028INJECTED: true\u2028",
    "a\u2029INJECTED: true",
    "a\u0085INJECTED: true",
    "é ü",
    "{{x}}",
    "{x}",
    "${PATH}",
    "%(x)s",
    "<script>alert(1)</script>",
    "a\tb",
    "a#b",
    "a #b",
    "a: b",
    "&x",
    "*y",
    "!!python/object:os.system",
    "true",
    "1e5",
    "EOF",
    "a\nEOF\ntouch PWNED\n",
    "a\r\nb: c",
    "[a, b]",
    "| x",
    std::string(200, 'x')};

sim::Job job_of(const Plan& plan) {
  sim::Job job;
  job.model_name = "m";
  job.cluster_name = "dgx-h100";
  job.cluster_file = profiles::load_cluster("dgx-h100");
  job.model = load_model(profiles::data_dir() / "models", "llama-3-8b");
  job.profile = profiles::load_profile("dgx-h100", plan.stack);
  job.plans = {plan};
  return job;
}

/// What the trainer makes of a plan that it takes; a new one that takes none of these wants
/// another.
std::optional<AsRun> as_run_of(const Trainer& trainer) {
  for (const bool adapters : {false, true}) {
    for (const auto& [strategy, stack] : {std::pair{Strategy::kFsdp2, "torch-eager"},
                                          {Strategy::kYafsdp, "hf-eager"},
                                          {Strategy::kZero3, "hf-eager"},
                                          {Strategy::kDistributedOptimizer, "megatron-core"}}) {
      Plan plan;
      plan.strategy = strategy;
      plan.stack = adapters ? "hf-trainer" : stack;
      plan.gpus = 8;
      plan.seq_len = 512;
      plan.numerics.lora = adapters ? 8 : 0;
      const sim::Job job = job_of(plan);
      try {
        AsRun as_run = predict_as_run(job, trainer.settings(job, plan));
        if (as_run.prediction) return as_run;
      } catch (const Error&) {  // another one may do
      }
    }
  }
  return std::nullopt;
}

/// The trainer's file and those of its kit, with the name of the job, which is made of the model's
/// letters, written as "JOB".
std::vector<KitFile> files_of(const Trainer& trainer, AsRun as_run, const std::string& name) {
  as_run.inputs.model_name = name;
  const TrainerSettings settings = trainer.settings(as_run.inputs, as_run.inputs.plans.front());
  const AnySource text = trainer_file(trainer, settings, {name + " on 8 GPUs: a plan."});
  std::vector<KitFile> files = {{"settings", text}};
  std::optional<KitJob> kit;
  try {
    kit = kit_job(as_run, trainer);
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("have no kit yet"));
    return files;
  }
  files.front().name = kit->settings_file;
  kit->name = "JOB";
  files.push_back({"README.md", kit_readme(*kit, as_run, trainer)});
  files.push_back({"env.sh", environment_file(*kit)});
  files.push_back({"job.sh", sbatch_file(*kit)});
  files.push_back({"skypilot.yaml", skypilot_file(*kit)});
  files.push_back({"jobset.yaml", jobset_file(*kit, text)});
  files.push_back({"expected.json", expected_file(as_run)});
  return files;
}

std::vector<std::string> keys_of(const KitFile& file) {
  std::vector<std::string> keys;
  try {
    for (const Setting& one : parse_settings(language_of(file.name), file.text.text(), file.name))
      keys.push_back(one.key);
  } catch (const Error& error) {  // a module of several functions
    keys.emplace_back(error.what());
  }
  return keys;
}

void expect_nothing_obeyed(const KitFile& file, const std::string& where) {
  std::string_view text = file.text.text();
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    ASSERT_TRUE(is_shown(text.substr(0, end))) << where << ": " << text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

/// Python's own readers: what is in DIR/NUMBER is what is in DIR/plain, but for the name.
constexpr const char* kCompare = R"py(
import ast, json, os, re, shlex, subprocess, sys
try: import tomllib
except ImportError: tomllib = None
try: import yaml
except ImportError: yaml = None
loader = yaml and getattr(yaml, "CSafeLoader", yaml.SafeLoader)
top = sys.argv[1]
def renamed(value, name):
    if isinstance(value, dict): return {k: renamed(v, name) for k, v in value.items() if k != "_comment"}
    if isinstance(value, list): return [renamed(v, name) for v in value]
    return "m" if value == name else value
def without_settings(value):  # of a job set: a file within, compared by itself
    if isinstance(value, list): return [without_settings(v) for v in value]
    if isinstance(value, dict) and value.get("kind") == "ConfigMap": return sorted(value["data"])
    return value
known = {}
def meaning(path, name):
    if name != "m": return read(path, name)
    if path not in known: known[path] = read(path, name)
    return known[path]
def read(path, name):
    text = open(path, encoding="utf-8", newline="").read()
    if path.endswith(".py"):
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value == name: node.value = "m"
        return ast.dump(tree)
    if path.endswith(".json"): return renamed(json.loads(text), name)
    if path.endswith(".toml"): return tomllib and renamed(tomllib.loads(text), name)
    if path.endswith(".yaml"): return yaml and renamed(without_settings(list(yaml.load_all(text, Loader=loader))), name)
    if path.endswith(".sh"):
        if name == "m": subprocess.run(["bash", "-n", path], check=True)
        return shlex.split(text, comments=True)
count = 0
for folder, _, files in os.walk(top):
    if "name" not in files: continue
    name = open(os.path.join(folder, "name"), encoding="utf-8", newline="").read()
    plain = os.path.join(os.path.dirname(folder), "plain")
    for file in files:
        if file in ("name", "README.md"): continue
        one, other = meaning(os.path.join(folder, file), name), meaning(os.path.join(plain, file), "m")
        if one != other: sys.exit(f"{file} of {name!r}: {one} is not {other}")
        count += 1
print(count)
)py";

TEST(HostileNames, StayNamesInEveryFormatAndKit) {
  const fs::path top = testing::temp_folder() / "hostile_names";
  int written = 0;
  for (const Trainer& trainer : trainers()) {
    const std::optional<AsRun> as_run = as_run_of(trainer);
    ASSERT_TRUE(as_run) << trainer.name;
    const fs::path folder = top / trainer.name;
    const std::vector<KitFile> plain = files_of(trainer, *as_run, "m");
    for (const KitFile& file : plain) put(folder / "plain" / file.name, file.text.text());
    for (std::size_t n = 0; n < kHostile.size(); ++n) {
      const std::string where = fmt::format("{} of {}", trainer.name, n);
      const std::vector<KitFile> files = files_of(trainer, *as_run, kHostile[n]);
      ASSERT_EQ(files.size(), plain.size());
      for (std::size_t i = 0; i < files.size(); ++i) {
        const KitFile& file = files[i];
        expect_nothing_obeyed(file, where);
        if (file.name == "README.md") {
          EXPECT_THAT(file.text.text(), Not(ContainsRegex("[^\\\\]<script"))) << where;
          continue;
        }
        if (file.name != "jobset.yaml" && reads(language_of(file.name))) {
          EXPECT_EQ(keys_of(file), keys_of(plain[i])) << where << file.name;
        }
        put(folder / std::to_string(n) / file.name, file.text.text());
        ++written;
      }
      put(folder / std::to_string(n) / "name", kHostile[n]);
    }
  }
  const fs::path python = program_path("python3");
  if (python.empty()) GTEST_SKIP() << "no python3";
  const ProgramResult result = run_program({python.string(), "-c", kCompare, top.string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, std::to_string(written) + "\n");
}

TEST(HostileNames, AreRefusedWhereAPlanIsReadIfTheyAreNotShown) {
  const auto refusal = [](const std::string& model, const std::string& stack) {
    PlanDocument document;
    document.model = model;
    document.cluster = "dgx-h100";
    document.plan.stack = stack;
    return refusal_of([&] { parse_plan(plan_text(document), "p.json"); });
  };
  EXPECT_EQ(refusal("org/m\"+x+\" é 模", "native"), "accepted");
  for (const char* name : {"a\nb", "a\x1b[31m", "a\u202eb", "a\u2028b", "a\u2029b", "a\u0085b",
                           "a\u2066b", "a\u200fb", "a\x7f"}) {
    EXPECT_THAT(refusal(name, "native"), HasSubstr("p.json: model holds a control character"));
    EXPECT_THAT(refusal("m", name), HasSubstr("p.json: plan.stack holds"));
  }
}

TEST(HostileNames, ABareWordIsOneEverywhere) {
  EXPECT_EQ(bare("LlamaDecoderLayer").text(), "LlamaDecoderLayer");
  for (const char* word : {"", "-x", "a b", "a\nb", "a:b", "a'b", "é", "$x", "_x"})
    EXPECT_THROW(bare(word), Error) << word;
}

}  // namespace
}  // namespace shardwright::cli
