// SPDX-License-Identifier: Apache-2.0
// Every flag on every kind of plan: an answer whose parts add up and whose words are true, or one
// sentence; never a signal.

#include <cmath>
#include <cstdlib>

#include "cli/embed/verb_call.h"
#include "tests/cli/program.h"
#include "tests/support/parameter_name.h"

namespace shardwright::cli {
namespace {

struct Kind {
  const char* name;
  Words flags;
};

void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

const std::vector<Kind>& kinds() {
  static const Words dense = {"--model", "llama-3.2-1b", "--cluster", "dgx-h100", "--gpus",
                              "8",       "--seq-len",    "1024"};
  static const Words experts = {"--model", "mixtral-8x7b", "--cluster", "dgx-h100",
                                "--gpus",  "16",           "--seq-len", "1024"};
  const auto of = [](const Words& base, const Words& more) { return joined(base, more); };
  static const std::vector<Kind> all = {{"ddp", of(dense, {"--strategy", "ddp"})},
                                        {"fsdp", of(dense, {"--strategy", "fsdp2"})},
                                        {"yafsdp", of(dense, {"--strategy", "yafsdp"})},
                                        {"tp", of(dense, {"--tp", "2"})},
                                        {"pp", of(dense, {"--pp", "2", "--grad-accum", "4"})},
                                        {"cp", of(dense, {"--cp", "2"})},
                                        {"ep", of(experts, {"--ep", "8"})},
                                        {"fp8", of(dense, {"--precision", "fp8"})},
                                        {"lora", of(dense, {"--lora", "16"})},
                                        {"moe", experts}};
  return all;
}

/// One value of each flag that says how a plan runs.
const std::vector<Words>& plan_flags() {
  static const std::vector<Words> all = {{},
                                         {"--shard-group", "4"},
                                         {"--micro-batch", "2"},
                                         {"--grad-accum", "8"},
                                         {"--ckpt-layers", "4"},
                                         {"--ckpt-layers", "all", "--recompute", "selective-op"},
                                         {"--recompute", "none"},
                                         {"--ckpt-layers", "all", "--recompute", "norm,swiglu"},
                                         {"--param-dtype", "fp32"},
                                         {"--reduce-dtype", "bf16"},
                                         {"--moment-dtype", "bf16"},
                                         {"--buffers", "3"},
                                         {"--prefetch", "0"},
                                         {"--attention", "eager"},
                                         {"--offload", "optimizer"},
                                         {"--offload", "activations:4"},
                                         {"--deterministic", "on"},
                                         {"--loss-chunks", "4"},
                                         {"--allocator", "expandable"},
                                         {"--sp", "off"},
                                         {"--tp", "4"},
                                         {"--pp", "4"},
                                         {"--virtual-stages", "2"},
                                         {"--pp-schedule", "gpipe"},
                                         {"--pp-schedule", "zbv"},
                                         {"--pp-schedule", "dualpipe"},
                                         {"--pp-layout", "Et*8|t*8L"},
                                         {"--cp", "4"},
                                         {"--cp", "2", "--cp-comm", "all-gather"},
                                         {"--ep", "4"},
                                         {"--etp", "2"},
                                         {"--dispatcher", "deepep"},
                                         {"--ep-overlap", "on"},
                                         {"--expert-capacity", "1.25"},
                                         {"--expert-load", "balanced"},
                                         {"--cuda-graphs", "layers"},
                                         {"--tp-overlap", "userbuffers"},
                                         {"--rank-order", "tp-cp-ep-pp-dp"},
                                         {"--precision", "nvfp4"},
                                         {"--precision", "fp8", "--fp8-recipe", "block"},
                                         {"--fp8-params", "on"},
                                         {"--optimizer", "adamw-8bit"},
                                         {"--optimizer", "muon"},
                                         {"--lora", "8"},
                                         {"--stack", "megatron-core"},
                                         {"--stack", "torch-eager"},
                                         {"--stack", "hf-eager"},
                                         {"--stack", "native"},
                                         {"--set", "stack.host.step_s=0.01"},
                                         {"--strategy", "zero1"},
                                         {"--strategy", "hsdp"},
                                         {"--strategy", "fsdp2-hpz"},
                                         {"--strategy", "megatron-fsdp"},
                                         {"--strategy", "distributed-optimizer"},
                                         {"--global-batch", "64"}};
  return all;
}

/// The flags of a kind, then those of a case; a flag of the case takes the place of the kind's.
Words line_of(const char* verb, const Kind& kind, const Words& flags, const Words& more = {}) {
  Words words{verb};
  for (std::size_t i = 0; i + 1 < kind.flags.size(); i += 2) {
    if (std::find(flags.begin(), flags.end(), kind.flags[i]) != flags.end()) continue;
    const bool batch = kind.flags[i] == "--grad-accum" &&
                       std::find(flags.begin(), flags.end(), "--global-batch") != flags.end();
    if (batch) continue;
    words.insert(words.end(), {kind.flags[i], kind.flags[i + 1]});
  }
  words.insert(words.end(), flags.begin(), flags.end());
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string told(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += " " + word;
  return text;
}

/// An error is one sentence on one line, and names no place in the code.
void expect_one_sentence(const VerbCall& call, int code, const Words& words) {
  EXPECT_THAT(code, ::testing::AnyOf(2, 3, 4, 6)) << told(words) << "\n" << call.messages();
  std::string messages = call.messages();
  const std::size_t at = messages.rfind("error: ");
  ASSERT_NE(at, std::string::npos) << told(words) << "\n" << messages;
  messages.erase(0, at);
  EXPECT_EQ(std::count(messages.begin(), messages.end(), '\n'), 1) << told(words) << messages;
  EXPECT_THAT(messages, ::testing::Not(::testing::HasSubstr(".cc:"))) << told(words);
}

double sum_of(const json& object) {
  double sum = 0;
  for (const auto& [key, value] : object.items()) sum += value.get<double>();
  return sum;
}

void expect_finite(const json& value, const std::string& where) {
  if (value.is_number()) {
    EXPECT_TRUE(std::isfinite(value.get<double>())) << where;
  }
  if (!value.is_structured()) return;
  for (const auto& [key, part] : value.items()) expect_finite(part, where + "/" + key);
}

void expect_prediction(const json& p, const std::string& words) {
  expect_finite(p, words);
  const double step = p.at("iteration_time_s");
  EXPECT_GT(step, 0) << words;
  EXPECT_NEAR(sum_of(p.at("time_s")), step, 1e-6 * step) << words;
  for (const auto& [key, part] : p.at("time_s").items())
    EXPECT_GE(part.get<double>(), -1e-6 * step) << words << " " << key;
  EXPECT_LE(p.at("iteration_time_interval_s")[0].get<double>(), step) << words;
  EXPECT_GE(p.at("iteration_time_interval_s")[1].get<double>(), step) << words;
  const json& memory = p.at("memory");
  const double allocated = memory.at("peak_allocated_bytes");
  EXPECT_NEAR(sum_of(memory.at("breakdown_bytes")), allocated, 1e-3 * allocated + 64) << words;
  EXPECT_LE(allocated, memory.at("peak_reserved_bytes").get<double>()) << words;
  EXPECT_EQ(memory.at("total_bytes").get<double>(), memory.at("peak_reserved_bytes").get<double>() +
                                                        memory.at("runtime_bytes").get<double>())
      << words;
  const json& sent = p.at("communication_bytes");
  double by_kind = 0;
  for (const char* kind :
       {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "point_to_point"})
    by_kind += sent.at(kind).get<double>();
  if (p.contains("stages")) {
    double by_group = 0;
    for (const char* group : {"tensor", "pipeline", "context", "expert", "data"})
      by_group += sent.at(group).get<double>();
    EXPECT_NEAR(by_kind, by_group, 1e-9 * by_group) << words;
    for (const json& stage : p.at("stages"))
      EXPECT_LE(sum_of(stage.at("time_s")), step * (1 + 1e-6)) << words;
    EXPECT_TRUE(p.at("pipeline").at("bubble").get<double>() == 0 || p.at("stages").size() > 1)
        << words;
  }
  for (const json& origin : p.at("origins")) {
    if (origin.at("what") != "memory") continue;
    const bool replayed =
        origin.at("words").get<std::string>().find("replayed") != std::string::npos;
    const json& plan = p.at("inputs").at("plan");
    const std::string stack = plan.at("stack");
    const bool never = stack == "native" || stack.starts_with("megatron") ||
                       (p.contains("stages") && p.at("stages").size() > 1);
    EXPECT_FALSE(replayed && never) << words;
    EXPECT_TRUE(replayed || never || p.contains("stages")) << words;
  }
}

class FlagMatrix : public ::testing::TestWithParam<Kind> {};

TEST_P(FlagMatrix, PredictAnswersOrSaysWhyNot) {
  int answers = 0;
  for (const Words& flags : plan_flags()) {
    const Words words = line_of("predict", GetParam(), flags, {"--json"});
    VerbCall call;
    const int code = call.run(words);
    if (code != 0) {
      expect_one_sentence(call, code, words);
      continue;
    }
    ++answers;
    expect_prediction(json::parse(call.results()), told(words));
  }
  EXPECT_GT(answers, 20);
}

TEST_P(FlagMatrix, PredictsOtherFlagsAnswerOrSayWhyNot) {
  const std::string folder = testing::temp_folder().string();
  const std::vector<Words> others = {{"--explain"},
                                     {"--explain", "--json"},
                                     {"--trace", folder + "/t.json"},
                                     {"--tokens", "1T"},
                                     {"--tokens", "1T", "--price", "dgx-h100=2", "--json"},
                                     {"--require-fit"},
                                     {"--jitter", "0.02"},
                                     {"--jitter", "0.02", "--json"}};
  for (const Words& flags : others) {
    const Words words = line_of("predict", GetParam(), {}, flags);
    VerbCall call;
    const int code = call.run(words);
    const bool misfit = flags.front() == "--require-fit" && code == 4;  // the answer stands there
    if (code != 0 && !misfit) expect_one_sentence(call, code, words);
    if (flags.front() != "--require-fit") {
      EXPECT_EQ(code, 0) << told(words) << call.messages();
    }
  }
}

TEST_P(FlagMatrix, ReportExportAndCompareAnswerOrSayWhyNot) {
  const std::string folder = testing::temp_folder().string();
  std::vector<Words> lines = {line_of("report", GetParam(), {}, {"--out", folder + "/r.html"}),
                              line_of("predict", GetParam(), {}, {"--trace", folder + "/t.json"}),
                              {"compare", folder + "/t.json", folder + "/t.json"},
                              {"calibrate", "--trace", folder + "/t.json", "--base", "dgx-h100",
                               "--out", folder + "/c.json"}};
  const std::size_t answered = lines.size();  // what follows may say why not
  for (const char* format :
       {"torchtitan", "accelerate", "deepspeed", "yafsdp", "megatron-lm", "megatron-bridge"}) {
    lines.push_back(line_of("export", GetParam(), {}, {"--format", format}));
    lines.push_back(line_of("export", GetParam(), {"--stack", "megatron-core"},
                            {"--format", format, "--out", folder + "/" + format}));
  }
  for (const Words& words : lines) {
    VerbCall call;
    const int code = call.run(words);
    if (code != 0) expect_one_sentence(call, code, words);
    if (&words < lines.data() + answered) {
      EXPECT_EQ(code, 0) << told(words) << call.messages();
    }
  }
}

TEST(PipelineMatrix, EveryScheduleHasATraceThatComparesAndKernelsThatVary) {
  const std::string trace = (testing::temp_folder() / "t.json").string();
  const std::vector<Words> schedules = {{"--pp-schedule", "gpipe"},
                                        {"--pp-schedule", "1f1b"},
                                        {"--pp-schedule", "interleaved", "--virtual-stages", "2"},
                                        {"--pp-schedule", "zb1p"},
                                        {"--pp-schedule", "zbv", "--virtual-stages", "2"},
                                        {"--pp-schedule", "dualpipe", "--virtual-stages", "2"}};
  const std::vector<Words> others = {{"--tp", "2"},
                                     {"--cp", "2"},
                                     {"--strategy", "ddp"},
                                     {"--strategy", "yafsdp"},
                                     {"--precision", "fp8"},
                                     {"--lora", "16"},
                                     {"--stack", "megatron-core", "--tp", "2"}};
  const std::string model = (profiles::data_dir() / "examples" / "tiny-llama.json").string();
  int answers = 0;
  for (const Words& schedule : schedules) {
    for (const Words& more : others) {
      Words words = joined(
          {"predict", "--model", model, "--cluster", "dgx-h100", "--gpus", "8", "--seq-len", "256",
           "--pp", "2", "--grad-accum", "4", "--jitter", "0.05", "--trace", trace, "--json"},
          schedule, more);
      VerbCall call;
      const int code = call.run(words);
      if (code != 0) {
        expect_one_sentence(call, code, words);
        continue;
      }
      ++answers;
      const json prediction = json::parse(call.results());
      expect_prediction(prediction, told(words));
      EXPECT_GT(prediction.at("jitter").at("slowdown").get<double>(), -0.02) << told(words);
      EXPECT_LT(prediction.at("jitter").at("slowdown").get<double>(), 0.3) << told(words);
      VerbCall compare;
      ASSERT_EQ(compare.run({"compare", trace, trace, "--json"}), 0)
          << told(words) << compare.messages();
      const json compared = json::parse(compare.results());
      EXPECT_NEAR(compared.at("step_time_s").at("predicted").get<double>(),
                  prediction.at("iteration_time_s").get<double>(), 3e-9)
          << told(words);
      EXPECT_NEAR(compared.at("bubble").at("measured").at("share").get<double>(),
                  prediction.at("pipeline").at("bubble").get<double>(), 1e-9)
          << told(words);
    }
  }
  EXPECT_GT(answers, 30);
}

double score_of(const json& tuning) {
  const json& best = tuning.at("best");
  const json& plan = best.at("plan");
  const double ranks = plan.at("gpus");
  return ranks / best.at("prediction").at("tokens_per_s").get<double>();
}

/// Those that matter to a search and take it little time.
const std::vector<Words>& tuned_flags() {
  static const std::vector<Words> all = {{},
                                         {"--micro-batch", "2"},
                                         {"--ckpt-layers", "4"},
                                         {"--recompute", "full"},
                                         {"--reduce-dtype", "bf16"},
                                         {"--buffers", "2"},
                                         {"--attention", "eager"},
                                         {"--offload", "optimizer"},
                                         {"--loss-chunks", "4"},
                                         {"--allocator", "native"},
                                         {"--tp", "4"},
                                         {"--pp", "2"},
                                         {"--virtual-stages", "2"},
                                         {"--cp", "2"},
                                         {"--ep", "2"},
                                         {"--shard-group", "4"},
                                         {"--optimizer", "adamw-8bit"},
                                         {"--stack", "torch-eager"},
                                         {"--strategy", "zero1"},
                                         {"--strategy", "hsdp"},
                                         {"--strategy", "megatron-fsdp"},
                                         {"--objective", "headroom"},
                                         {"--allow", "bf16-reduce,fp8"},
                                         {"--robust"}};
  return all;
}

/// Whether all searches are made (scripts/nightly flags), not only a third of them.
bool makes_all_searches() {
  return std::getenv("SHARDWRIGHT_ALL_SEARCHES") != nullptr;
}

// Every flag with three or four of the kinds.
TEST_P(FlagMatrix, TuneAnswersOrSaysWhyNot) {
  const auto same = [](const Kind& kind) { return kind.name == std::string(GetParam().name); };
  const auto kind = std::find_if(kinds().begin(), kinds().end(), same) - kinds().begin();
  const auto offset = static_cast<std::size_t>(kind);
  for (std::size_t i = 0; i < tuned_flags().size(); ++i) {
    if (!makes_all_searches() && (i + offset) % 3 != 0) continue;
    const Words& flags = tuned_flags()[i];
    Words words = line_of("tune", GetParam(), flags, {"--threads", "1", "--json"});
    const auto accum = std::find(words.begin(), words.end(), "--grad-accum");
    if (accum != words.end()) words.erase(accum, accum + 2);
    words.insert(words.end(), {"--global-batch", "32"});
    VerbCall call;
    const int code = call.run(words);
    if (code != 0) {
      expect_one_sentence(call, code, words);
      continue;
    }
    const json tuning = json::parse(call.results());
    expect_prediction(tuning.at("best").at("prediction"), told(words));
    for (const auto& [reason, count] : tuning.at("rejected").items())
      EXPECT_GE(count.get<std::int64_t>(), 0) << told(words) << ": " << reason;
    for (const json& sentence : tuning.at("why")) {
      EXPECT_THAT(sentence.get<std::string>(),
                  ::testing::Not(::testing::HasSubstr("goes no further")))
          << told(words);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, FlagMatrix, ::testing::ValuesIn(kinds()), parameter_name);

struct Question {
  const char* name;
  bool always;
  Words flags;
};

void PrintTo(const Question& question, std::ostream* out) {
  *out << question.name;
}

class FixedOptions : public ::testing::TestWithParam<Question> {};

// The answer without an option is the best with any value of it.
TEST_P(FixedOptions, MakeNoAnswerBetter) {
  const auto score_with = [](const Words& flags) -> std::optional<double> {
    Words words = joined({"tune"}, GetParam().flags, flags, {"--threads", "1", "--json"});
    VerbCall call;
    if (call.run(words) != 0) return std::nullopt;
    return score_of(json::parse(call.results()));
  };
  const std::optional<double> best = score_with({});
  ASSERT_TRUE(best);
  int found = 0;
  for (const Words& flags :
       std::vector<Words>{{"--tp", "1"},
                          {"--tp", "2"},
                          {"--pp", "2"},
                          {"--cp", "2"},
                          {"--tp", "1", "--pp", "1", "--cp", "1", "--strategy", "megatron-fsdp"},
                          {"--strategy", "distributed-optimizer"},
                          {"--strategy", "fsdp2"},
                          {"--strategy", "yafsdp"},
                          {"--strategy", "ddp"},
                          {"--micro-batch", "1"},
                          {"--micro-batch", "2"},
                          {"--recompute", "none"},
                          {"--recompute", "full"}}) {
    const std::optional<double> fixed = score_with(flags);
    if (!fixed) continue;
    ++found;
    EXPECT_GE(*fixed, *best * (1 - 1e-9)) << told(flags) << " is better than the best";
  }
  EXPECT_GT(found, 4);
}

std::vector<Question> questions() {
  std::vector<Question> all = {{"Small8Gpus",
                                true,
                                {"--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "8",
                                 "--seq-len", "8192", "--global-batch", "128"}},
                               {"Small64Gpus",
                                false,
                                {"--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "64",
                                 "--seq-len", "8192", "--global-batch", "512"}},
                               {"SmallB200",
                                false,
                                {"--model", "llama-3-8b", "--cluster", "dgx-b200", "--gpus", "16",
                                 "--seq-len", "4096", "--global-batch", "256"}},
                               {"Long",
                                true,
                                {"--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "16",
                                 "--seq-len", "32768", "--global-batch", "16"}},
                               {"Large",
                                true,
                                {"--model", "llama-3-70b", "--cluster", "dgx-h100", "--gpus", "64",
                                 "--seq-len", "8192", "--global-batch", "128"}},
                               {"A100",
                                false,
                                {"--model", "llama-2-13b", "--cluster", "dgx-a100-80g", "--gpus",
                                 "32", "--seq-len", "4096", "--global-batch", "256"}}};
  std::erase_if(all, [](const Question& q) { return !q.always && !makes_all_searches(); });
  return all;
}

INSTANTIATE_TEST_SUITE_P(Questions, FixedOptions, ::testing::ValuesIn(questions()), parameter_name);

}  // namespace
}  // namespace shardwright::cli
