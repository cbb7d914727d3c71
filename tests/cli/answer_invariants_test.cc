// SPDX-License-Identifier: Apache-2.0
// What holds for the answers of all verbs: they follow from values, not from what was said, and
// agree with one another.
#include <fmt/ranges.h>

#include <clocale>
#include <locale>
#include <optional>
#include <set>

#include "cli/embed/verb_call.h"
#include "cli/flags/plan_flags.h"
#include "cli/render/prediction.h"
#include "profiles/ledger/ledger.h"
#include "sim/predict.h"
#include "tests/cli/program.h"
#include "tests/support/invariant.h"
#include "tests/support/random_plans.h"

namespace shardwright::cli::answers {
namespace {

using testing::DrawnPlan;
using testing::Invariant;
using testing::RandomPlans;

std::optional<sim::Job> resolved(const DrawnPlan& drawn) {
  PlanFlags flags;
  flags.model = drawn.model;
  flags.cluster = drawn.cluster;
  flags.stack = drawn.stack;
  flags.gpus = drawn.gpus;
  try {
    for (const auto& [name, value] : drawn.knobs)
      plan_knob(name).read(flags.knobs, "--" + name, value);
    return resolve(flags);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// What help calls the default of a knob, as a value for this plan; none where it has none that can
/// be said.
std::optional<std::string> printed_default(const PlanKnob& knob, const DrawnPlan& drawn,
                                           const sim::Job& job) {
  const std::string name(knob.name);
  const Plan& plan = job.plans.front();
  const Stack& stack = job.profile.stack;
  if (name == "strategy") return std::string(name_of(plan.strategy));
  if (name == "seq-len") return fmt::format("{}", plan.seq_len);
  if (name == "ckpt-layers" || name == "recompute") {
    const bool neither = !drawn.has("ckpt-layers") && !drawn.has("recompute");
    return neither ? std::optional<std::string>(name == "recompute" ? "none" : "0") : std::nullopt;
  }
  if (name == "pp-layout") return std::nullopt;
  if (name == "prefetch") return fmt::format("{}", plan.buffers - 1);
  if (name == "sum-shape") return fmt::format("{}", plan.parallel.tp);
  if (name == "allocator") return stack.allocator.expandable_segments ? "expandable" : "native";
  if (name == "sp") return plan.parallel.tp > 1 ? "on" : "off";
  if (name == "pp-schedule") return plan.parallel.virtual_stages > 1 ? "interleaved" : "1f1b";
  if (name == "cp-comm") return stack.parallel.cp_comm;
  if (name == "cuda-graphs") return stack.parallel.cuda_graphs;
  if (name == "tp-overlap") {
    return plan.parallel.sequence_parallel() ? std::string(name_of(profiles::usual_overlap(
                                                   stack, job.model, plan.numerics.precision)))
                                             : "none";
  }
  const bool of_experts = name == "dispatcher" || name == "expert-load";
  if (of_experts && !job.model.is_moe()) return std::nullopt;
  if (name == "dispatcher") return std::string(name_of(profiles::usual_dispatcher(stack)));
  if (name == "fp8-recipe") {
    return plan.numerics.precision == Precision::kFp8 ? std::optional<std::string>("tensorwise")
                                                      : std::nullopt;
  }
  try {
    GivenKnobs given;
    knob.read(given, name, std::string(knob.otherwise));
  } catch (const Error&) {
    return std::nullopt;
  }
  return std::string(knob.otherwise);
}

/// A plan that resolves, with what it resolves to.
template <typename Judge>
void for_jobs(std::uint32_t seed, std::int64_t jobs, Judge&& judge) {
  RandomPlans random(seed);
  const std::int64_t asked = testing::asked_plans(jobs);
  for (std::int64_t tried = 0, draws = 0; tried < asked && draws < 200 * asked; ++draws) {
    const DrawnPlan drawn = random.draw();
    const std::optional<sim::Job> job = resolved(drawn);
    if (!job) continue;
    ++tried;
    judge(drawn, *job);
  }
}

TEST(AnswerInvariants, AKnobAtItsDefaultLeavesThePlanAsItIs) {
  Invariant invariant(500);
  for_jobs(11, 60, [&](const DrawnPlan& drawn, const sim::Job& job) {
    for (const PlanKnob& knob : plan_knobs()) {
      const std::string name(knob.name);
      if (!knob.read || drawn.has(name)) continue;
      const std::optional<std::string> usual = printed_default(knob, drawn, job);
      if (!usual) continue;
      DrawnPlan said = drawn;
      said.set(name, *usual);
      const std::optional<sim::Job> same = resolved(said);
      invariant.expect(same && same->plans == job.plans,
                       fmt::format("{}: --{} {} {}", drawn.text(), name, *usual,
                                   same ? "makes another plan" : "is refused"));
    }
  });
}

/// Paths of a document's objects, "time_s.compute"; of lists those of the first entry.
void add_paths(const json& value, const std::string& path, std::set<std::string>& paths) {
  if (value.is_array() && !value.empty()) return add_paths(value.front(), path + "[]", paths);
  static const std::set<std::string> kOfTheQuestion = {".inputs", ".runs_here", ".routing",
                                                       ".novelty[]"};
  if (!value.is_object() || kOfTheQuestion.contains(path)) return;
  for (const auto& [key, inner] : value.items()) {
    const std::string own = fmt::format("{}.{}", path, key);
    paths.insert(own);
    add_paths(inner, own, paths);
  }
}

// A client needs one parser.
TEST(AnswerInvariants, EveryPlanIsAnsweredInTheSameKeys) {
  Invariant invariant(10);
  std::set<std::string> first;
  for_jobs(12, 100, [&](const DrawnPlan& drawn, const sim::Job& job) {
    try {
      const Plan& plan = job.plans.front();
      const json answer = prediction_json(job, sim::predict(job.model, job.profile, plan));
      std::set<std::string> paths;
      add_paths(answer, "", paths);
      if (first.empty()) first = paths;
      invariant.expect(paths == first, drawn.text());
      invariant.expect(answer["stages"].size() == static_cast<std::size_t>(plan.parallel.pp),
                       drawn.text());
    } catch (const Error&) {  // nobody predicts it
    }
  });
}

std::string answer_of(const Words& words) {
  VerbCall call;
  const int code = call.run(words);
  return code == 0 ? call.results() : fmt::format("exit code {}", code);
}

const Words kDense = {"--model", "llama-3-8b", "--cluster", "dgx-h100",   "--gpus",
                      "16",      "--seq-len",  "8192",      "--strategy", "fsdp2"};
const std::vector<Words> kNeutral = {{"--sp", "off"},           {"--tp-overlap", "none"},
                                     {"--cuda-graphs", "none"}, {"--ep-overlap", "off"},
                                     {"--cp-comm", "ring"},     {"--precision", "bf16"},
                                     {"--optimizer", "adamw"},  {"--tp", "1"}};

// The same to the byte of an answer, also with the framework that knows data parallelism alone.
TEST(AnswerInvariants, AKnobAtItsDefaultChangesNoByte) {
  Invariant invariant(3 * static_cast<std::int64_t>(kNeutral.size()));
  for (const char* stack : {"torch-compile", "hf-eager", "native"}) {
    const Words plan = joined({"predict", "--stack", stack}, kDense, {"--json"});
    const std::string before = answer_of(plan);
    ASSERT_EQ(before.substr(0, 1), "{") << before;
    for (const Words& neutral : kNeutral)
      invariant.expect(answer_of(joined(plan, neutral)) == before,
                       fmt::format("{} {}", stack, fmt::join(neutral, " ")));
  }
}

json predicted(const Words& words) {
  VerbCall call;
  EXPECT_EQ(call.run(joined({"predict"}, words, {"--json"})), 0) << call.messages();
  return json::parse(call.results());
}

// Adapters, low precision, another optimizer and offloading divide nothing among ranks.
TEST(AnswerInvariants, WhatDividesNothingTakesNoMoreCommunicators) {
  Invariant invariant(4);
  const json base = predicted(kDense);
  for (const Words& more : std::vector<Words>{{"--precision", "fp8"},
                                              {"--lora", "16", "--stack", "torch-compile"},
                                              {"--optimizer", "adamw-8bit"},
                                              {"--offload", "activations:4"}}) {
    const json other = predicted(joined(kDense, more));
    invariant.expect(
        other.at("memory").at("runtime_bytes") == base.at("memory").at("runtime_bytes"),
        fmt::format("{}", fmt::join(more, " ")));
  }
}

/// Sizes of a GPU's memory around what the plan takes, from too little to plenty.
std::vector<Words> machines_around(const json& prediction) {
  const json& memory = prediction.at("memory");
  std::vector<Words> sizes;
  for (int percent = 90; percent <= 118; percent += 2) {
    const double bytes = memory.at("total_bytes").get<double>() * percent / 100;
    sizes.push_back({"--set", fmt::format("gpu.memory_bytes={:.0f}", bytes)});
  }
  return sizes;
}

const Words kOnePlan = {"--model",        "llama-3.2-1b",
                        "--cluster",      "dgx-h100",
                        "--gpus",         "8",
                        "--seq-len",      "2048",
                        "--stack",        "torch-compile",
                        "--strategy",     "fsdp2",
                        "--micro-batch",  "2",
                        "--grad-accum",   "1",
                        "--ckpt-layers",  "0",
                        "--attention",    "flash",
                        "--loss-chunks",  "1",
                        "--reduce-dtype", "fp32",
                        "--tp",           "1",
                        "--pp",           "1",
                        "--cp",           "1"};

TEST(AnswerInvariants, TuneOffersWhatPredictSaysFits) {
  Invariant invariant(10);
  for (const Words& size : machines_around(predicted(kOnePlan))) {
    const Words words = joined(kOnePlan, size);
    const std::string verdict = predicted(words).at("memory").at("verdict");
    VerbCall tune;
    const int code = tune.run(joined({"tune"}, words, {"--threads", "1", "--json"}));
    const bool offered = code == 0 && json::parse(tune.results()).at("best").is_object();
    invariant.expect(offered == (verdict == "fits"),
                     fmt::format("{}: {}, tune {}", fmt::join(size, " "), verdict,
                                 offered ? "offers it" : "does not"));
  }
}

// Memory that is estimated does not follow the machine's: the verdict passes from one to the next.
TEST(AnswerInvariants, TightIsAlsoALittleMoreThanThereIs) {
  const Words plan = {"--model",   "llama-3.1-8b", "--cluster", "dgx-h100",      "--gpus", "8",
                      "--seq-len", "2048",         "--stack",   "megatron-core", "--tp",   "2"};
  const double total = predicted(plan).at("memory").at("total_bytes");
  Invariant invariant(40);
  int below = 0, above = 0;
  std::vector<std::string> verdicts;
  for (int per_mille = 970; per_mille < 1070; per_mille += 2) {
    const json memory = predicted(joined(plan, {"--set", fmt::format("gpu.memory_bytes={:.0f}",
                                                                     total * per_mille / 1000)}))
                            .at("memory");
    const bool more = memory.at("total_bytes") > memory.at("usable_bytes");
    const std::string verdict = memory.at("verdict");
    invariant.expect(memory.at("fits") == !more && (!more || verdict != "fits"),
                     fmt::format("{} thousandths: {}", per_mille, verdict));
    if (verdict == "tight") ++(more ? above : below);
    if (verdicts.empty() || verdicts.back() != verdict) verdicts.push_back(verdict);
  }
  invariant.expect(verdicts == Words{"does not fit", "tight", "fits"}, "verdicts in disorder");
  invariant.expect(below > 0 && above > 0, fmt::format("{} tight below, {} above", below, above));
}

// A file of LLaMA-Factory that was not enough for 24 GB cards, and a little more memory.
TEST(AnswerInvariants, ImportConfigSaysTheVerdictOfPredict) {
  Invariant invariant(10);
  const std::string file = testing::temp_path("sft.yaml");
  std::ofstream(file) << "model_name_or_path: meta-llama/Llama-3.1-8B-Instruct\nstage: sft\n"
                         "finetuning_type: full\ndeepspeed: examples/deepspeed/ds_z3_config.json\n"
                         "cutoff_len: 1024\nper_device_train_batch_size: 1\n"
                         "gradient_accumulation_steps: 2\nbf16: true\n";
  const Words here = {"--cluster", "rtx-4090-pcie8", "--gpus", "8"};
  const std::string out = testing::temp_path("imported.json");
  VerbCall import;
  ASSERT_EQ(import.run(joined({"import-config", file, "--out", out}, here)), 0)
      << import.messages();
  const Words plan = {"--plan", out};
  for (const Words& size : machines_around(predicted(plan))) {
    const std::string verdict = predicted(joined(plan, size)).at("memory").at("verdict");
    VerbCall again;
    again.run(joined({"import-config", file, "--fix"}, here, size));
    const std::string& text = again.results();
    const bool as_it_is = text.find("It fits as it is") != std::string::npos;
    invariant.expect(
        text.find(", " + verdict + ".") != std::string::npos && as_it_is == (verdict == "fits"),
        fmt::format("{}: predict says {}", fmt::join(size, " "), verdict));
  }
}

// As help says, whatever the model.
TEST(AnswerInvariants, FineTuningRunsOnItsUsualFramework) {
  Invariant invariant(14);
  const auto expect_usual = [&](const json& plan, const std::string& asked) {
    const std::string stack = plan.at("stack");
    invariant.expect(stack == "hf-trainer", fmt::format("{}: {}", asked, stack));
  };
  for (const char* task : {"sft", "lora", "qlora"}) {
    for (const char* model : {"llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b"}) {
      const json answer = predicted({"--model", model, "--cluster", "dgx-a100-80g", "--gpus", "16",
                                     "--task", task, "--strategy", "zero3"});
      expect_usual(answer.at("inputs").at("plan"), fmt::format("{} {}", model, task));
    }
    const json bucketed = predicted({"--model", "llama-3.2-1b", "--cluster", "dgx-h100", "--task",
                                     task, "--strategy", "distributed-optimizer"});
    expect_usual(bucketed.at("inputs").at("plan"), task);
    if (std::string_view(task) == "qlora") continue;
    VerbCall call;
    const int code = call.run({"tune", "--model", "llama-3.2-1b", "--cluster", "rtx-4090-pcie8",
                               "--gpus", "4", "--task", task, "--json"});
    ASSERT_EQ(code, 0) << call.messages();
    const json tuned = json::parse(call.results());
    expect_usual(tuned.at("best").at("plan"), fmt::format("tune {}", task));
    const std::string lead = tuned.at("lead");
    EXPECT_EQ(lead.find("faster"), std::string::npos) << lead;
  }
}

TEST(AnswerInvariants, MegatronQuantizesNoWeights) {
  Invariant invariant(1);
  const Words words = {"predict", "--model", "llama-3.1-8b", "--cluster", "dgx-h100",     "--gpus",
                       "8",       "--task",  "qlora",        "--stack",   "megatron-core"};
  VerbCall call;
  invariant.expect(call.run(words) == 3, "QLoRA on megatron-core is predicted");
}

TEST(AnswerInvariants, SizeFineTunesOnOneGpuAsTuneDoes) {
  Invariant invariant(2);
  for (const char* task : {"lora", "qlora"}) {
    VerbCall call;
    const int code = call.run({"size", "--model", "llama-3.1-8b", "--task", task, "--tokens", "50M",
                               "--cluster", "rtx-4090-pcie8", "--gpus", "1", "--json"});
    if (code != 0) {
      invariant.expect(false, fmt::format("{}: {}", task, call.messages()));
      continue;
    }
    const json plan = json::parse(call.results()).at("options").at(0).at("plan");
    invariant.expect(plan.at("strategy") == "single" && plan.at("stack") == "hf-trainer",
                     fmt::format("{}: {}", task, plan.dump()));
  }
}

json sized(const Words& more) {
  VerbCall call;
  const Words words = {"size", "--model", "llama-3.2-1b", "--tokens", "1T", "--deadline", "20d"};
  const int code = call.run(joined(words, more, {"--json"}));
  EXPECT_TRUE(code == 0 || code == 4) << call.messages();  // 4: answers that miss the deadline
  return json::parse(call.results());
}

/// What an option costs, without what the question adds to it.
json numbers_of(const json& option) {
  json numbers;
  for (const char* key : {"gpus", "plan", "days", "days_interval", "cost_usd", "gpu_hours"})
    numbers[key] = option.at(key);
  return numbers;
}

TEST(AnswerInvariants, AClusterCostsTheSameInCompany) {
  Invariant invariant(1);
  const std::string cluster = "dgx-a100-80g";
  const json alone = sized({"--max-gpus", "128", "--clusters", cluster});
  const json company = sized({"--max-gpus", "128", "--clusters",
                              cluster + ",dgx-h100,dgx-b200,mi300x-8x400,voltage-park-h100"});
  for (const json& best : company.at("best_of_each")) {
    if (best.at("cluster") != cluster) continue;
    const json& own = alone.at("best_of_each").at(0);
    invariant.expect(
        numbers_of(best) == numbers_of(own),
        fmt::format("{} GPUs alone, {} in company", own.at("gpus").dump(), best.at("gpus").dump()));
  }
}

TEST(AnswerInvariants, ForcingAPrintedSizeChangesNoNumber) {
  Invariant invariant(7);
  const Words cluster = {"--clusters", "dgx-h100"};
  const json all = sized(joined(cluster, {"--max-gpus", "64"}));
  for (const json& option : all.at("options")) {
    const json forced = sized(joined(cluster, {"--gpus", option.at("gpus").dump()}));
    invariant.expect(numbers_of(forced.at("options").at(0)) == numbers_of(option),
                     fmt::format("{} GPUs", option.at("gpus").dump()));
  }
}

// A framework that nobody ruled out and that the answer calls faster is the answer; this project's
// own has never run on a GPU.
TEST(AnswerInvariants, NoFrameworkIsNamedAsFasterThanTheAnswer) {
  Invariant invariant(10);
  for (const Words& question : std::vector<Words>{
           {"--model", "qwen2.5-7b", "--cluster", "dgx-a100-80g", "--seq-len", "64k"},
           {"--model", "qwen2.5-7b", "--cluster", "dgx-a100-80g", "--seq-len", "128k"},
           {"--model", "llama-3-8b", "--cluster", "dgx-h100", "--seq-len", "8192"}}) {
    VerbCall call;
    ASSERT_EQ(call.run(joined({"tune", "--gpus", "8"}, question, {"--json"})), 0)
        << call.messages();
    const json answer = json::parse(call.results());
    const double best = answer.at("best").at("prediction").at("tokens_per_s");
    for (const json& other : answer.at("frameworks")) {
      if (other.at("plan").is_null() || other.at("framework") == "native") continue;
      invariant.expect(
          other.at("tokens_per_s").get<double>() <= best * (1 + 1e-9),
          fmt::format("{}: {} {} tokens/s, the answer {}", fmt::join(question, " "),
                      other.at("framework").dump(), other.at("tokens_per_s").dump(), best));
    }
  }
}

// Of one machine.
TEST(AnswerInvariants, RunAndPredictKnowTheSameHost) {
  Invariant invariant(2);
  const std::string model = (profiles::data_dir() / "examples" / "tiny-llama.json").string();
  const Words plan = {"--model",    model,    "--seq-len",     "64",  "--micro-batch", "1",
                      "--strategy", "yafsdp", "--param-dtype", "fp32"};
  const std::string folder = testing::temp_path("host_run");
  VerbCall run;
  ASSERT_EQ(run.run(joined({"run", "--ranks", "2", "--device", "host", "--data", "synthetic",
                            "--steps", "1", "--out", folder},
                           plan)),
            0)
      << run.messages();
  std::ifstream metrics(folder + "/metrics.jsonl");
  const double told = json::parse(std::string(std::istreambuf_iterator<char>(metrics), {}))
                          .at("predicted_step_time_s");
  const Words here = {"--cluster", "host"};
  const double by_flags = predicted(joined(plan, here, {"--gpus", "2"})).at("iteration_time_s");
  const double by_plan =
      predicted(joined({"--plan", folder + "/plan.json"}, here)).at("iteration_time_s");
  invariant.expect(by_flags == told, fmt::format("run {} s, predict {} s", told, by_flags));
  invariant.expect(by_plan == told, fmt::format("run {} s, predict --plan {} s", told, by_plan));
}

TEST(AnswerInvariants, FasterLinksInsideTheNodeAreFaster) {
  Invariant invariant(4);
  for (const char* cluster : {"dgx-h100", "dgx-a100-80g", "rtx-4090-pcie8", "a40-pcie8"}) {
    const Words words = {"--model",   "llama-3-8b", "--cluster",  cluster, "--gpus",  "8",
                         "--seq-len", "2048",       "--strategy", "fsdp2", "--stack", "hf-eager"};
    const json usual = predicted(words);
    const double links = json::parse(answer_of({"inspect", "cluster", cluster, "--json"}))
                             .at("intra_link_bytes_per_s")
                             .at("value");
    const auto with = [&](double share) {
      return predicted(joined(words, {"--set", fmt::format("cluster.intra_link_bytes_per_s={}",
                                                           share * links)}))
          .at("iteration_time_s")
          .get<double>();
    };
    const double as_is = usual.at("iteration_time_s");
    invariant.expect(with(1) == as_is && with(2) < as_is && with(0.5) > as_is,
                     fmt::format("{}: {} s, with twice {} s, with half {} s", cluster, as_is,
                                 with(2), with(0.5)));
  }
}

// A Python program, or whoever else holds this process, may have set one with commas.
TEST(AnswerInvariants, NumbersDoNotDependOnTheLocale) {
  struct Commas final : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const Words plan = {"--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "16"};
  const std::vector<Words> asked = {joined(Words{"predict"}, plan),
                                    joined(Words{"predict", "--json", "--explain"}, plan),
                                    joined(Words{"export", "--format", "torchtitan"}, plan),
                                    {"inspect", "cluster", "dgx-h100"}};
  const auto answers = [&] {
    std::vector<std::string> all;
    for (const Words& words : asked) all.push_back(answer_of(words));
    return all;
  };
  const std::vector<std::string> before = answers();
  for (const std::string& answer : before) ASSERT_FALSE(answer.starts_with("exit code")) << answer;
  const std::locale usual = std::locale::global(std::locale(std::locale::classic(), new Commas));
  for (const char* name : {"de_DE.UTF-8", "fr_FR.UTF-8", "ru_RU.UTF-8"})
    if (std::setlocale(LC_NUMERIC, name) != nullptr) break;
  const std::vector<std::string> with_commas = answers();
  std::locale::global(usual);
  std::setlocale(LC_NUMERIC, "C");
  EXPECT_EQ(with_commas, before);
}

}  // namespace
}  // namespace shardwright::cli::answers
