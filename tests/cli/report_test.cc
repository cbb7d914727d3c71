// SPDX-License-Identifier: Apache-2.0

#include "cli/render/text/quantity.h"
#include "profiles/profile.h"
#include "sim/core/hf/config.h"
#include "sim/pipeline/step_program.h"
#include "sim/predict.h"
#include "sim/trace/trace_comparison.h"
#include "tests/cli/program.h"
#include "tests/support/answer_page.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;
using ::shardwright::testing::answer_in;

std::size_t count(const std::string& text, const std::string& words) {
  std::size_t found = 0;
  for (auto at = text.find(words); at != text.npos; at = text.find(words, at + 1)) ++found;
  return found;
}

/// One style, one answer and one script, and nothing from anywhere else.
void expect_self_contained(const std::string& text) {
  EXPECT_EQ(count(text, "<script"), 2U);
  EXPECT_EQ(count(text, "</script"), 2U);
  EXPECT_EQ(count(text, "<style"), 1U);
  EXPECT_THAT(text, HasSubstr("content=\"default-src 'none'; "));
  for (const char* outside :
       {"<!--", "src=", "href=", "url(", "@import", "<link", "<iframe", "fetch(", "import "})
    EXPECT_EQ(text.find(outside), std::string::npos) << outside;
}

std::string report(Words arguments, const std::string& name) {
  arguments.insert(arguments.begin(), "report");
  arguments.insert(arguments.end(), {"--out", temp_path(name)});
  const ProgramResult result = shardwright(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("The report is in "));
  std::string text = get(temp_path(name));
  expect_self_contained(text);
  return text;
}

nlohmann::json printed(Words arguments) {
  arguments.emplace_back("--json");
  const ProgramResult result = shardwright(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out);
}

TEST(Report, HoldsWhatPredictPrints) {
  for (const Words& plan : {Words{"--model", "llama-2-7b", "--cluster", "dgx-h100", "--gpus", "16"},
                            Words{"--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "16",
                                  "--tp", "2", "--pp", "2", "--stack", "megatron-core"},
                            Words{"--model", "gpt2", "--cluster", "dgx-h100", "--strategy",
                                  "ddp,fsdp2", "--stack", "torch-eager"}}) {
    Words predict = plan;
    predict.insert(predict.begin(), "predict");
    predict.emplace_back("--explain");
    const nlohmann::json page = answer_in(report(plan, "report.html"));
    EXPECT_EQ(page.at("answer"), printed(predict));
    EXPECT_EQ(page.at("timelines").size(), page.at("answer").contains("predictions") ? 2U : 1U);
    EXPECT_FALSE(page.contains("comparison"));
    EXPECT_FALSE(page.contains("tuning"));
  }
}

TEST(Report, HoldsTheSearchAndThePlansOrigin) {
  const Words tune = {"tune",       "--model", "llama-2-7b",          "--cluster", "dgx-h100",
                      "--gpus",     "16",      "--seq-len",           "2048",      "--strategy",
                      "yafsdp,ddp", "--out",   temp_path("plan.json")};
  const nlohmann::json tuned = printed(tune);
  std::ofstream(temp_path("tuning.json")) << tuned;
  const nlohmann::json page = answer_in(
      report({"--plan", temp_path("plan.json"), "--tuning", temp_path("tuning.json")}, "t.html"));
  EXPECT_EQ(page.at("tuning"), tuned);
  // So the page finds the plan of the report among those of the search.
  EXPECT_EQ(page.at("answer").at("inputs").at("plan"), tuned.at("best").at("plan"));
  EXPECT_THAT(page.at("provenance").dump(), HasSubstr("shardwright tune --model llama-2-7b"));
}

TEST(Report, ATableOfNumbersIsThereWithoutScripts) {
  const std::string text =
      report({"--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "16"}, "plain.html");
  const nlohmann::json answer = answer_in(text).at("answer");
  const std::size_t begin = text.find("<noscript>");
  const std::string plain = text.substr(begin, text.find("</noscript>") - begin);
  for (const auto& [key, value] :
       {std::pair<std::string, std::string>{"iteration time s",
                                            duration(answer.at("iteration_time_s"))},
        {"memory, total bytes", bytes(answer.at("memory").at("total_bytes").get<Bytes>())},
        {"memory, verdict", answer.at("memory").at("verdict")},
        {"inputs, model", "llama-3-8b"}})
    EXPECT_THAT(plain, HasSubstr("<td>" + key + "</td><td>" + value + "</td>"));
}

TEST(Report, NoNameEndsTheScriptThatHoldsIt) {
  const std::string name = "</script><script>alert('1')<!-- &\"x\n\x01 \xff\u2028";
  const fs::path hostile = temp_folder() / name;
  fs::create_directories(hostile);
  fs::copy_file(profiles::data_dir() / "models" / "gpt2.json", hostile / "config.json");
  const std::string text = report({"--model", hostile.string(), "--cluster", "dgx-h100", "--gpus",
                                   "8", "--set", "cluster.usd_per_gpu_hour=2"},
                                  "hostile.html");
  EXPECT_THAT(answer_in(text).at("answer").at("inputs").at("model").get<std::string>(),
              HasSubstr("</script><script>alert('1')<!-- &\"x\n"));
  EXPECT_THAT(text, HasSubstr("&lt;/script&gt;&lt;script&gt;alert('1')"));
  EXPECT_THAT(text, Not(HasSubstr("\u2028")));
}

TEST(Report, PutsTheMeasuredStepUnderThePredictedOne) {
  std::ofstream(temp_path("model.json")) << R"({"model_type": "llama", "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 256, "max_position_embeddings": 64,
    "architectures": ["LlamaForCausalLM"]})";
  const Words job = {"--model", temp_path("model.json"), "--seq-len", "16", "--strategy",
                     "yafsdp",  "--ckpt-layers",         "2"};
  output_of(shardwright(joined(
      {"run", "--device", "host", "--data", "synthetic"}, job, {"--ranks", "2", "--steps", "2"},
      {"--trace", temp_path("measured.json"), "--out", temp_path("run")})));
  const Words plan = joined(job, {"--cluster", "dgx-h100", "--gpus", "2", "--param-dtype", "fp32"});
  Words measured = joined(plan, {"--measured", temp_path("measured.json")});
  const nlohmann::json page = answer_in(report(measured, "measured.html"));
  EXPECT_FALSE(page.at("measured").at("lanes").empty());
  EXPECT_EQ(page.at("timelines").size(), 1U);

  Words predict = plan;
  predict.insert(predict.begin(), "predict");
  predict.insert(predict.end(), {"--trace", temp_path("predicted.json")});
  ASSERT_EQ(shardwright(predict).exit_code, 0);
  const std::string traces =
      report({"--trace", temp_path("predicted.json"), "--measured", temp_path("measured.json")},
             "traces.html");
  EXPECT_TRUE(answer_in(traces).at("answer").is_null());
  EXPECT_THAT(traces, HasSubstr("<td>step time s, measured</td>"));
  nlohmann::json compared =
      printed({"compare", temp_path("predicted.json"), temp_path("measured.json"), "--top", "0"});
  EXPECT_EQ(answer_in(traces).at("comparison"), compared);
  compared["plan_differences"] = page.at("comparison").at("plan_differences");
  EXPECT_EQ(page.at("comparison"), compared);

  // A measured trace against itself, all its ranks or one of them, differs in nothing.
  for (const Words& ranks : {Words{}, Words{"--rank", "1"}}) {
    Words compare = joined({"compare", temp_path("measured.json"), temp_path("measured.json"),
                            "--json", "--top", "9999"},
                           ranks);
    const ProgramResult same = shardwright(compare);
    ASSERT_EQ(same.exit_code, 0) << same.err;
    const auto document = nlohmann::json::parse(same.out);
    EXPECT_EQ(document.at("predicted_ranks"), ranks.empty() ? 2 : 1);
    EXPECT_EQ(document.at("measured_ranks"), document.at("predicted_ranks"));
    EXPECT_EQ(document.at("step_time_s").at("error"), 0);
    for (const char* part : {"causes", "phases", "classes", "operations"}) {
      ASSERT_FALSE(document.at(part).empty()) << part;
      for (const auto& entry : document.at(part)) EXPECT_EQ(entry.at("difference_s"), 0) << entry;
    }
  }
  expect_end(shardwright({"compare", temp_path("measured.json"), temp_path("measured.json"),
                          "--rank", "7"}),
             3, {"has no rank 7"});

  // Of another model: refused, whether traced or tuned.
  const auto refused = [](Words arguments, const std::string& words) {
    arguments.insert(arguments.begin(), "report");
    arguments.insert(arguments.end(), {"--out", temp_path("no.html")});
    expect_end(shardwright(arguments), 3, {words});
    EXPECT_FALSE(fs::exists(temp_path("no.html")));
  };
  const Words gpt2 = {"--model", "gpt2", "--cluster", "dgx-h100", "--gpus", "2"};
  for (const char* flag : {"--measured", "--trace"}) {
    Words other = joined(gpt2, {flag, temp_path("measured.json")});
    refused(other, "expected a trace of the same model");
  }
  const ProgramResult tuned = shardwright({"tune", "--model", "gpt2", "--cluster", "dgx-h100",
                                           "--gpus", "2", "--seq-len", "128", "--json"});
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  std::ofstream(temp_path("gpt2.json")) << tuned.out;
  Words other = joined(plan, {"--tuning", temp_path("gpt2.json")});
  refused(other, "expected a tuning of the same model");
}

TEST(Report, StaysSmallForTheLargestModels) {
  const std::string text =
      report({"--model", "llama-3.1-405b", "--cluster", "dgx-h100", "--gpus", "512", "--seq-len",
              "4096", "--grad-accum", "8", "--ckpt-layers", "all"},
             "large.html");
  EXPECT_LT(text.size(), 500'000u);
}

TEST(Report, RefusesInOneSentence) {
  const auto expect = [](const Words& arguments, int code, const std::string& words) {
    const ProgramResult result = shardwright(arguments);
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(words));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  std::ofstream(temp_path("other.json")) << R"({"schema": "shardwright.sizing/1.0"})";
  const Words job = {"report", "--model",           "gpt2", "--cluster", "dgx-h100",
                     "--out",  temp_path("no.html")};
  const auto with = [&](const Words& more) { return joined(job, more); };
  expect({"report", "--out", temp_path("no.html")}, 2, "--model is missing");
  expect({"report", "--model", "gpt2", "--cluster", "dgx-h100"}, 2, "--out is required");
  expect(with({"--tuning", temp_path("other.json")}), 3, "shardwright.tuning");
  expect(with({"--measured", temp_path("other.json")}), 3, "other.json");
  expect(with({"--strategy", "ddp,fsdp2", "--trace", temp_path("other.json")}), 3,
         "--strategy names 2 strategies");
  EXPECT_FALSE(fs::exists(temp_path("no.html")));
}

// The curve is liveness by another clock: it ends where it began, and its top is the peak, up to
// tensors of streams that meet in time but not in the host's order.
TEST(Report, DrawsTheMemoryThatIsPredicted) {
  const Model model = load_model(profiles::data_dir() / "models", "llama-2-7b");
  for (const char* stack : {"native", "hf-eager", "torch-eager"}) {
    for (const Strategy strategy : {Strategy::kYafsdp, Strategy::kFsdp1, Strategy::kFsdp2,
                                    Strategy::kZero2, Strategy::kDdp}) {
      Plan plan;
      plan.strategy = strategy;
      plan.gpus = 8;
      plan.grad_accum = 2;
      plan.ckpt_layers = 8;
      plan.stack = stack;
      sim::Predictor predictor(model, profiles::load_profile("dgx-h100", stack));
      Timeline timeline;
      const sim::Prediction prediction = predictor.predict(plan, {.timeline = &timeline});
      const std::vector<MemorySample> curve =
          sim::memory_over_time(predictor.program().stages.front(), timeline);
      ASSERT_GT(curve.size(), 100u);
      EXPECT_EQ(curve.front().allocated_bytes, curve.back().allocated_bytes);
      Bytes top = 0;
      for (const MemorySample& sample : curve) top = std::max(top, sample.allocated_bytes);
      const auto peak = static_cast<double>(prediction.memory.peak_allocated_bytes);
      EXPECT_GT(static_cast<double>(top), 0.8 * peak) << stack << " " << name_of(strategy);
      EXPECT_LT(static_cast<double>(top), 1.25 * peak) << stack << " " << name_of(strategy);
    }
  }
}

}  // namespace
}  // namespace shardwright::cli
