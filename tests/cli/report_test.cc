// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/machine/program_path.h"
#include "cli/render/html/html.h"
#include "cli/render/html/pictures.h"
#include "cli/render/html/strip.h"
#include "profiles/data_dir.h"
#include "profiles/profile.h"
#include "sim/core/base/error.h"
#include "sim/core/hf/config.h"
#include "sim/predict.h"
#include "sim/trace/memory_over_time.h"
#include "tests/support/files.h"
#include "tests/support/not_empty.h"
#include "tests/support/run_program.h"
#include "tests/support/shardwright.h"
#include "tests/support/temp_folder.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::get;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProgramResult;
using testing::run_program;
using testing::shardwright;
using testing::temp_path;
using Words = std::vector<std::string>;

/// Fails on what XML does not allow: a bare '<' or '&', an attribute without quotes, a wrong
/// nesting.
void expect_well_formed(const std::string& text) {
  std::vector<std::string> open;
  std::size_t begin = 0;
  int elements = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '&') {
      const std::string rest = text.substr(i, 6);
      ASSERT_TRUE(rest.starts_with("&amp;") || rest.starts_with("&lt;") ||
                  rest.starts_with("&gt;") || rest == "&quot;" || rest.starts_with("&#39;"))
          << rest;
    }
    if (text[i] != '<') continue;
    begin = i;
    bool quoted = false;
    while (i < text.size() && (quoted || text[i] != '>')) quoted ^= text[i++] == '"';
    ASSERT_LT(i, text.size()) << text.substr(begin, 80);
    std::string tag = text.substr(begin + 1, i - begin - 1);
    if (tag.starts_with("!DOCTYPE")) continue;
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    std::string bare;  // without what stands in quotes
    for (const char c : tag) {
      if (c == '"') quoted = !quoted;
      if (!quoted || c == '"') bare += c;
    }
    ASSERT_FALSE(quoted) << tag;
    ASSERT_EQ(std::count(bare.begin(), bare.end(), '"'),
              2 * std::count(bare.begin(), bare.end(), '='))
        << tag;
    ++elements;
    if (name.starts_with("/")) {
      ASSERT_FALSE(open.empty()) << tag;
      ASSERT_EQ("/" + open.back(), name) << "at " << text.substr(begin, 60);
      open.pop_back();
    } else if (!tag.ends_with("/")) {
      open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty()) << open.back();
  EXPECT_GT(elements, 20);
}

void expect_self_contained(const std::string& text) {
  for (const char* outside : {"http:", "https:", "//", "url(", "src=", "href=", "@import",
                              "<script", "<link", "<iframe"}) {
    EXPECT_EQ(text.find(outside), std::string::npos) << outside;
  }
}

/// By Python's parser of XML, where there is one.
void expect_parsed_by_python(const std::string& file) {
  const fs::path python = program_path("python3");
  if (python.empty()) return;
  const ProgramResult result =
      run_program({python.string(), "-c",
                   "import sys, xml.etree.ElementTree as e; e.parse(sys.argv[1])", file});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

std::string report(Words arguments, const std::string& name) {
  arguments.insert(arguments.begin(), "report");
  arguments.insert(arguments.end(), {"--out", temp_path(name)});
  const ProgramResult result = shardwright(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("The report is in "));
  const std::string text = get(temp_path(name));
  expect_well_formed(text);
  expect_self_contained(text);
  expect_parsed_by_python(temp_path(name));
  return text;
}

TEST(Report, SaysWhatThePredictionAndTheSearchSay) {
  const Words job = {"--model", "llama-2-7b", "--cluster", "dgx-h100",
                     "--gpus",  "16",         "--seq-len", "2048"};
  Words tune = job;
  tune.insert(tune.end(), {"--strategy", "yafsdp,fsdp2,ddp"});
  tune.insert(tune.begin(), "tune");
  tune.insert(tune.end(), {"--json", "--out", temp_path("plan.json")});
  const ProgramResult tuned = shardwright(tune);
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  std::ofstream(temp_path("tuning.json")) << tuned.out;
  const std::string text = report(
      {"--plan", temp_path("plan.json"), "--tuning", temp_path("tuning.json")}, "report.html");
  const auto document = nlohmann::json::parse(tuned.out);
  EXPECT_THAT(text, HasSubstr("llama-2-7b on 16 × h100"));
  EXPECT_THAT(text, HasSubstr("90 % interval"));
  EXPECT_THAT(text, HasSubstr("The step is device-bound: the host issues in"));
  for (const char* heading :
       {"What was asked", "Memory of a GPU at its peak", "Where the time goes", "One layer",
        "The step", "Why this plan and not another", "Where this comes from"}) {
    EXPECT_THAT(text, HasSubstr(std::string("<h2>") + heading + "</h2>"));
  }
  for (const auto& sentence : not_empty(document.at("why")))
    EXPECT_THAT(text, HasSubstr(html::escape(sentence.get<std::string>())));
  EXPECT_THAT(text, HasSubstr("shardwright tune --model llama-2-7b"));
  EXPECT_THAT(text, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(text, HasSubstr("@media print"));
  EXPECT_THAT(text, Not(HasSubstr("Predicted and measured")));
  EXPECT_THAT(text, HasSubstr(" (this report)</td>"));
  EXPECT_THAT(report({"--plan", temp_path("plan.json"), "--tuning", temp_path("tuning.json"),
                      "--micro-batch", "97"},
                     "other.html"),
              HasSubstr("The plan of this report is none of these"));
}

TEST(Report, ShowsAPlanThatDoesNotFit) {
  const std::string text = report({"--model", "llama-3-70b", "--cluster", "dgx-h100", "--strategy",
                                   "ddp", "--stack", "torch-eager"},
                                  "unfit.html");
  EXPECT_THAT(text, HasSubstr("<b>does not fit</b>"));
  EXPECT_THAT(text, HasSubstr(" too much: "));
  EXPECT_THAT(text, HasSubstr("class=\"over\""));
}

TEST(Report, SaysThatTheGpusArePartOfANode) {
  const auto of = [](const std::string& gpus) {
    return report({"--model", "gpt2", "--cluster", "dgx-h100", "--gpus", gpus}, "part.html");
  };
  EXPECT_THAT(of("7"), HasSubstr("a part of one node: 7 of its 8 GPUs, with nothing beside them"));
  for (const char* whole : {"1", "8", "16"}) EXPECT_THAT(of(whole), Not(HasSubstr("a part of")));
}

TEST(Report, EscapesWhatUsersName) {
  const fs::path hostile = testing::temp_folder() / "<script>alert('1')<&\"x\n\x01 \xff";
  fs::create_directories(hostile);
  fs::copy_file(profiles::data_dir() / "models" / "gpt2.json", hostile / "config.json");
  const std::string text = report({"--model", hostile.string(), "--cluster", "dgx-h100", "--gpus",
                                   "8", "--set", "cluster.usd_per_gpu_hour=2"},
                                  "hostile.html");
  EXPECT_THAT(text, HasSubstr("&lt;script&gt;alert(&#39;1&#39;)&lt;&amp;&quot;x"));
  EXPECT_THAT(text, Not(HasSubstr("<script")));
}

TEST(Report, PutsTheMeasuredStepUnderThePredictedOne) {
  std::ofstream(temp_path("model.json")) << R"({"model_type": "llama", "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 256, "max_position_embeddings": 64,
    "architectures": ["LlamaForCausalLM"]})";
  const ProgramResult ran = shardwright({"run",
                                         "--model",
                                         temp_path("model.json"),
                                         "--data",
                                         "synthetic",
                                         "--ranks",
                                         "2",
                                         "--steps",
                                         "2",
                                         "--seq-len",
                                         "16",
                                         "--strategy",
                                         "yafsdp",
                                         "--ckpt-layers",
                                         "2",
                                         "--device",
                                         "host",
                                         "--trace",
                                         temp_path("measured.json"),
                                         "--out",
                                         temp_path("run")});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const Words plan = {"--model",       temp_path("model.json"),
                      "--cluster",     "dgx-h100",
                      "--gpus",        "2",
                      "--seq-len",     "16",
                      "--strategy",    "yafsdp",
                      "--ckpt-layers", "2",
                      "--param-dtype", "fp32"};
  Words measured = plan;
  measured.insert(measured.end(), {"--measured", temp_path("measured.json")});
  const std::string text = report(measured, "measured.html");
  EXPECT_THAT(text, HasSubstr("<h2>Predicted and measured</h2>"));
  EXPECT_THAT(text, HasSubstr("Measured: the median of 2 ranks."));
  EXPECT_LT(text.find(">predicted: "), text.find(">measured: "));

  Words predict = plan;
  predict.insert(predict.begin(), "predict");
  predict.insert(predict.end(), {"--trace", temp_path("predicted.json")});
  ASSERT_EQ(shardwright(predict).exit_code, 0);
  const std::string traces =
      report({"--trace", temp_path("predicted.json"), "--measured", temp_path("measured.json")},
             "traces.html");
  EXPECT_THAT(traces, HasSubstr("<h1>Timeline of a step</h1>"));
  EXPECT_THAT(traces, HasSubstr("<h2>Predicted and measured</h2>"));
  EXPECT_THAT(traces, Not(HasSubstr("What was asked")));

  // A measured trace against itself, all its ranks or one of them, differs in nothing.
  for (const Words& ranks : {Words{}, Words{"--rank", "1"}}) {
    Words compare = {
        "compare", temp_path("measured.json"), temp_path("measured.json"), "--json", "--top",
        "9999"};
    compare.insert(compare.end(), ranks.begin(), ranks.end());
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
  const ProgramResult none = shardwright(
      {"compare", temp_path("measured.json"), temp_path("measured.json"), "--rank", "7"});
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_THAT(none.err, HasSubstr("has no rank 7"));

  // Of another model: refused, whether traced or tuned.
  const auto refused = [](Words arguments, const std::string& words) {
    arguments.insert(arguments.begin(), "report");
    arguments.insert(arguments.end(), {"--out", temp_path("no.html")});
    const ProgramResult result = shardwright(arguments);
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, HasSubstr(words));
    EXPECT_FALSE(fs::exists(temp_path("no.html")));
  };
  const Words gpt2 = {"--model", "gpt2", "--cluster", "dgx-h100", "--gpus", "2"};
  for (const char* flag : {"--measured", "--trace"}) {
    Words other = gpt2;
    other.insert(other.end(), {flag, temp_path("measured.json")});
    refused(other, "expected a trace of the same model");
  }
  const ProgramResult tuned = shardwright({"tune", "--model", "gpt2", "--cluster", "dgx-h100",
                                           "--gpus", "2", "--seq-len", "128", "--json"});
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  std::ofstream(temp_path("gpt2.json")) << tuned.out;
  Words other = plan;
  other.insert(other.end(), {"--tuning", temp_path("gpt2.json")});
  refused(other, "expected a tuning of the same model");
}

TEST(Report, StaysSmallForTheLargestModels) {
  const std::string text =
      report({"--model", "llama-3.1-405b", "--cluster", "dgx-h100", "--gpus", "512", "--seq-len",
              "4096", "--grad-accum", "8", "--ckpt-layers", "all"},
             "large.html");
  EXPECT_LT(text.size(), 4'000'000u);
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
  const auto with = [&](const Words& more) {
    Words arguments = job;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  expect({"report", "--out", temp_path("no.html")}, 2, "--model is missing");
  expect({"report", "--model", "gpt2", "--cluster", "dgx-h100"}, 2, "--out is required");
  expect(with({"--tuning", temp_path("other.json")}), 3, "shardwright.tuning");
  expect(with({"--measured", temp_path("other.json")}), 3, "other.json");
  expect(with({"--strategy", "ddp,fsdp2"}), 3, "--strategy names 2 strategies");
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
          sim::memory_over_time(*predictor.schedule(), timeline);
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

TEST(Report, FindsALayersPeriod) {
  html::Strip strip;
  strip.rows = {"compute", "communication"};
  const auto add = [&](double begin, double end, Phase phase, int layer, std::size_t row = 0) {
    strip.spans.push_back({row, begin, end, {"", OpKind::kDownProjection, phase, layer}});
  };
  for (int layer = 0; layer < 3; ++layer) add(layer, layer + 0.8, Phase::kForward, layer);
  add(3, 4, Phase::kLoss, -1);
  add(0.5, 9, Phase::kForward, 1, 1);  // another stream's does not count
  for (int i = 0; i < 3; ++i) {
    add(4 + 2 * i, 4.5 + 2 * i, Phase::kRecompute, 2 - i);
    add(5 + 2 * i, 5.5 + 2 * i, Phase::kBackward, 2 - i);
    add(5.5 + 2 * i, 5.9 + 2 * i, Phase::kReduce, 2 - i);
  }
  EXPECT_EQ(html::middle_layer(strip), 1);
  const auto forward = html::layer_window(strip, 1, false);
  EXPECT_EQ(forward->begin_s, 1);
  EXPECT_EQ(forward->end_s, 2);
  EXPECT_EQ(html::layer_window(strip, 2, false)->end_s, 3);  // the loss follows
  const auto backward = html::layer_window(strip, 1, true);
  EXPECT_EQ(backward->begin_s, 6);
  EXPECT_EQ(backward->end_s, 8);
  EXPECT_EQ(html::layer_window(strip, 0, true)->end_s, 9.5);  // nothing follows
  EXPECT_FALSE(html::layer_window(strip, 7, true));
}

TEST(Report, PicksRoundTicks) {
  EXPECT_THAT(html::ticks(10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(html::ticks(0.7, 7), ElementsAre(0, ::testing::DoubleEq(0.1),
                                               ::testing::DoubleEq(0.2), ::testing::DoubleEq(0.3),
                                               ::testing::DoubleEq(0.4), ::testing::DoubleEq(0.5),
                                               ::testing::DoubleEq(0.6), ::testing::DoubleEq(0.7)));
  EXPECT_THAT(html::ticks(0, 5), ElementsAre(0));
  EXPECT_EQ(html::escape("a<b> & \"c\"'\n\xff"), "a&lt;b&gt; &amp; &quot;c&quot;&#39; ?");
}

}  // namespace
}  // namespace shardwright::cli
