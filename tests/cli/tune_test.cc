// SPDX-License-Identifier: Apache-2.0
// `tune` as a user meets it: the contract's document, a plan file that predicts the same again, an
// answer when nothing fits that helps, and sentences for what makes no sense.

#include "cli/flags/tune_flags.h"
#include "cli/text.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

ProgramResult run(const std::string& verb, const Words& flags) {
  return run_program(joined({SHARDWRIGHT_BINARY, verb}, flags));
}

/// A job of a second, with memory to care about.
Words job(const Words& more = {}) {
  return joined({"--model", "llama-3-8b", "--cluster", "l40s-pcie8", "--gpus", "8", "--seq-len",
                 "4096", "--global-batch", "32"},
                more);
}

/// The same in fewer plans.
Words quick(const Words& more = {}) {
  return joined(job({"--attention", "flash", "--strategy", "yafsdp,fsdp2,hsdp"}), more);
}

json tuned(const Words& flags, int exit_code = 0) {
  const ProgramResult result = run("tune", joined(flags, {"--json"}));
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  return json::parse(result.out, nullptr, false);
}

json read_json(const std::string& path) {
  std::ifstream in(path);
  return json::parse(in);
}

TEST(Tune, PrintsTheContractsDocument) {
  const json document = tuned(job());
  EXPECT_EQ(document.at("schema"), "shardwright.tuning/1.0");
  const json& best = document.at("best");
  for (const char* knob :
       {"strategy", "shard_group", "ckpt_layers", "recompute", "micro_batch", "grad_accum",
        "reduce_dtype", "moment_dtype", "buffers", "prefetch", "attention"}) {
    EXPECT_TRUE(best.at("plan").contains(knob)) << knob;
  }
  EXPECT_EQ(
      best.at("plan").at("micro_batch").get<int>() * best.at("plan").at("grad_accum").get<int>(),
      4);
  // What changes the arithmetic is left alone unless it is allowed.
  EXPECT_EQ(best.at("plan").at("reduce_dtype"), "fp32");
  EXPECT_EQ(best.at("plan").at("moment_dtype"), "fp32");
  EXPECT_TRUE(best.at("prediction").at("memory").at("fits").get<bool>());
  ASSERT_EQ(document.at("top").size(), 10U);
  EXPECT_EQ(document.at("top")[0], best);
  double step_s = 0;
  for (const json& one : document.at("top")) {
    EXPECT_GE(one.at("prediction").at("iteration_time_s").get<double>(), step_s);
    step_s = one.at("prediction").at("iteration_time_s");
  }
  EXPECT_FALSE(document.at("pareto").empty());
  EXPECT_EQ(
      document.at("pruned").get<std::int64_t>() + document.at("simulated").get<std::int64_t>(),
      document.at("considered").get<std::int64_t>());
  EXPECT_GT(document.at("considered").get<std::int64_t>(), 10'000);
  EXPECT_GT(document.at("seconds").get<double>(), 0);
  EXPECT_TRUE(document.at("rejected").is_object());
  EXPECT_GT(document.at("why").size(), 10U);
  EXPECT_TRUE(document.at("nearest_feasible").is_null());
}

TEST(Tune, WritesAPlanThatPredictReproducesExactly) {
  for (const Words& more :
       {Words{}, Words{"--stack", "hf-eager", "--set", "cluster.nic_efficiency=0.5"}}) {
    const std::string path = temp_path("tune_plan.json");
    const json document = tuned(quick(joined(more, {"--out", path})));
    const ProgramResult again = run("predict", {"--plan", path, "--json"});
    ASSERT_EQ(again.exit_code, 0) << again.err;
    EXPECT_EQ(json::parse(again.out), document.at("best").at("prediction"));
    const json file = read_json(path);
    EXPECT_EQ(file.at("schema"), "shardwright.plan/1.0");
    EXPECT_EQ(file.at("plan"), document.at("best").at("plan"));
    EXPECT_EQ(file.at("prediction"), document.at("best").at("prediction"));
    EXPECT_THAT(file.at("command").get<std::string>(),
                StartsWith("shardwright tune --model llama-3-8b"));
  }
}

TEST(Tune, HoldsFixedWhatIsGiven) {
  const json plan = tuned(job({"--strategy", "zero2,fsdp2", "--micro-batch", "2", "--ckpt-layers",
                               "30", "--recompute", "full", "--buffers", "3", "--attention",
                               "flash", "--moment-dtype", "bf16"}))
                        .at("best")
                        .at("plan");
  EXPECT_THAT(plan.at("strategy").get<std::string>(), ::testing::AnyOf("zero2", "fsdp2"));
  expect_has(plan, R"({"micro_batch": 2, "grad_accum": 2, "ckpt_layers": 30,
        "recompute": "full", "buffers": 3, "moment_dtype": "bf16"})"_json);
}

TEST(Tune, ObjectivesAndMarginsDoWhatTheySay) {
  const auto memory = [](const json& document) {
    return document.at("best").at("prediction").at("memory").at("total_bytes").get<double>();
  };
  const auto seconds = [](const json& document) {
    return document.at("best").at("prediction").at("iteration_time_s").get<double>();
  };
  const json time = tuned(quick()), room = tuned(quick({"--objective", "headroom"})),
             free = tuned(quick({"--headroom", "20%"})), robust = tuned(quick({"--robust"})),
             dollars = tuned(quick({"--objective", "tokens-per-dollar"})),
             bf16 = tuned(quick({"--allow", "bf16-reduce,bf16-moments"}));
  const double usable = time.at("best").at("prediction").at("memory").at("usable_bytes");
  EXPECT_LT(memory(room), memory(time));
  EXPECT_GT(seconds(room), seconds(time));
  EXPECT_LE(memory(free), 0.8 * usable);
  EXPECT_GE(seconds(free), seconds(time));
  EXPECT_LE(memory(robust) * 1.05, usable);
  EXPECT_EQ(seconds(dollars), seconds(time));  // on so many GPUs, time is money
  EXPECT_LE(seconds(bf16), seconds(time));
}

TEST(Tune, FitsItsTextIntoAHundredColumns) {
  for (const Words& flags :
       {quick({"--stack", "torch-eager", "--robust"}), quick({"--headroom", "60%"}),
        quick({"--allow", "bf16-moments", "--objective", "headroom"})}) {
    const ProgramResult result = run("tune", flags);
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(display_width(line), 100) << line;
      EXPECT_FALSE(line.ends_with(' ')) << line;
    }
  }
  const std::string text = run("tune", job()).out;
  expect_says(text, {"The best plan", "best plans of different kinds", "Why: one knob moved",
                     "Why not another strategy", "If the prediction is off", "With memory 5 %",
                     "predicted in full"});
}

/// The command line with the advice taken: `flags` is "--ckpt-layers 27".
Words advised(Words flags, const std::string& advice) {
  std::istringstream words(advice);
  for (std::string flag, value; words >> flag >> value;) {
    const auto at = std::find(flags.begin(), flags.end(), flag);
    if (at == flags.end()) {
      flags.insert(flags.end(), {flag, value});
    } else {
      *(at + 1) = value;
    }
  }
  return flags;
}

TEST(Tune, WhenNothingFitsTheAdviceHelps) {
  const Words asked = job({"--micro-batch", "4", "--ckpt-layers", "1", "--strategy", "yafsdp"});
  const ProgramResult text = run("tune", asked);
  EXPECT_EQ(text.exit_code, 4);
  EXPECT_THAT(text.err, AllOf(StartsWith("error: none of "), HasSubstr("the nearest plan that")));
  EXPECT_THAT(text.out, AllOf(HasSubstr("Nothing fits"), HasSubstr("--ckpt-layers ")));
  const json document = tuned(asked, 4);
  EXPECT_TRUE(document.at("best").is_null());
  EXPECT_TRUE(document.at("top").empty());
  EXPECT_GT(document.at("closest").at("excess_bytes").get<std::int64_t>(), 0);
  ASSERT_FALSE(document.at("ways").empty());
  EXPECT_EQ(document.at("nearest_feasible"), document.at("ways")[0]);
  for (const json& way : document.at("ways")) {
    const json helped = tuned(advised(asked, way.at("flags").get<std::string>()));
    EXPECT_EQ(helped.at("best").at("plan"), way.at("plan")) << way.at("flags");
  }
}

TEST(Tune, PlacesAPlanThatIsGiven) {
  const std::string path = temp_path("tune_given.json");
  const json asked = tuned(
      job({"--strategy", "fsdp2", "--ckpt-layers", "all", "--recompute", "full", "--out", path}));
  const json document = tuned({"--plan", path});
  EXPECT_EQ(document.at("given").at("plan"), asked.at("best").at("plan"));
  EXPECT_GT(document.at("given").at("cost").get<double>(), 0);
  const json& plan = document.at("best").at("plan");
  EXPECT_EQ(plan.at("micro_batch").get<int>() * plan.at("grad_accum").get<int>(), 4);
}

TEST(Tune, CtrlCEndsWithAValidPlan) {
  const std::string path = temp_path("tune_interrupted.json");
  std::filesystem::remove(path);
  // The shell ignores SIGINT for what runs in its background, so a signal that comes too early is
  // lost, and one that comes too late finds nobody.
  const std::string script =
      "\"$0\" tune --model llama-3-70b --cluster a100-80g-4xhdr200 --gpus 256 --stack hf-eager "
      "--global-batch 4096 --json --out \"$1\" & sleep 0.4; kill -INT $!; wait $!";
  const json document =
      document_of(run_program({"/bin/sh", "-c", script, SHARDWRIGHT_BINARY, path}));
  EXPECT_EQ(read_json(path).at("plan"), document.at("best").at("plan"));
  EXPECT_TRUE(document.at("best").at("prediction").at("memory").at("fits").get<bool>());
}

/// Fewer sequences a step than GPUs, and a model that no GPU holds a layer's state of.
Words large(const Words& more = {}) {
  return joined({"--model", "llama-3.1-405b", "--cluster", "dgx-h100", "--gpus", "1024",
                 "--global-batch", "512"},
                more);
}

TEST(Tune, ATimeLimitEndsWithTheBestPlanSoFar) {
  // Proving takes this search a second and more; the first plans that fit are there at once.
  const Words words{SHARDWRIGHT_BINARY, "tune",     "--model", "llama-3.1-405b",
                    "--cluster",        "dgx-h100", "--gpus",  "1024",
                    "--seq-len",        "8192",     "--json",  "--time-limit"};
  Words soon = words, never = words;
  soon.emplace_back("0.3");
  never.emplace_back("0");
  const ProgramResult result = run_program(soon, {"LC_ALL=C"});
  if (result.exit_code == 1) {  // on a machine that is busy otherwise
    EXPECT_THAT(result.err, HasSubstr("expected more than --time-limit 0.3"));
  } else {
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json answer = json::parse(result.out);
    EXPECT_TRUE(answer.at("stopped"));
    EXPECT_TRUE(answer.at("best").at("prediction").at("memory").at("fits"));
  }
  EXPECT_EQ(run_program(never).exit_code, 3);
}

TEST(Tune, TakesModelParallelismWhereDataParallelismCannotTrain) {
  const std::string path = temp_path("tune_divided.json");
  const json document = tuned(large({"--out", path}));
  const json& best = document.at("best");
  const json& plan = best.at("plan");
  EXPECT_EQ(plan.at("stack"), "megatron-core");
  EXPECT_GT(plan.at("tp").get<int>() * plan.at("pp").get<int>(), 1);
  EXPECT_TRUE(best.at("prediction").at("memory").at("fits").get<bool>());
  EXPECT_EQ(
      document.at("pruned").get<std::int64_t>() + document.at("simulated").get<std::int64_t>(),
      document.at("considered").get<std::int64_t>());
  EXPECT_THAT(document.at("other_software").at("refusal").get<std::string>(),
              HasSubstr("512 sequences"));
  std::string why;
  for (const json& sentence : document.at("why")) why += sentence.get<std::string>() + "\n";
  for (const char* words : {"tp ", "pp ", "slower", "Why not data parallelism alone"})
    EXPECT_THAT(why, HasSubstr(words));
  const ProgramResult again = run("predict", {"--plan", path, "--json"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out), best.at("prediction"));
  expect_end(
      run("run", {"--plan", path, "--data", "synthetic", "--out", temp_path("tune_divided_run")}),
      3,
      {fmt::format("tune_divided.json: cp is {}, which run does not do",
                   plan.at("cp").get<int>())});
  // Searched again from its own plan: the same.
  const json second = tuned({"--plan", path});
  EXPECT_EQ(second.at("best").at("plan"), plan);
}

TEST(Tune, ModelParallelAnswersFitIntoAHundredColumns) {
  for (const Words& flags : {large(), large({"--allow", "fp8", "--objective", "tokens-per-dollar"}),
                             Words{"--model", "mixtral-8x7b", "--cluster", "gb200-nvl72", "--gpus",
                                   "144", "--seq-len", "4096", "--allow", "software"}}) {
    const ProgramResult result = run("tune", flags);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("Why: a size halved or doubled"));
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(display_width(line), 100) << line;
      EXPECT_FALSE(line.ends_with(' ')) << line;
    }
  }
}

TEST(Tune, RacksAreFilledInPart) {
  const Words job{"--model", "mixtral-8x7b", "--cluster", "gb200-nvl72", "--seq-len", "4096"};
  const json inputs = tuned(joined(job, {"--gpus", "128", "--global-batch", "128"}))
                          .at("best")
                          .at("prediction")
                          .at("inputs");
  EXPECT_EQ(inputs.at("racks"), 2);
  EXPECT_EQ(inputs.at("gpus_of_each_rack"), 64);
  expect_error(run("tune", joined(job, {"--gpus", "130"})), 3,
               AllOf(HasSubstr("gpus is 130"), HasSubstr("128 or 132")));
}

TEST(Tune, SizesThatDivideNothingAreNamed) {
  expect_error(run("tune", large({"--tp", "3"})), 3, HasSubstr("tp is 3"));
  expect_error(run("tune", large({"--ep", "8"})), 3, HasSubstr("no experts"));
  expect_error(run("tune", {"--model", "mixtral-8x7b", "--cluster", "dgx-h100", "--gpus", "64",
                            "--ep", "7"}),
               3, AllOf(HasSubstr("ep is 7"), HasSubstr("8 experts, expected 4 or 8")));
  expect_error(run("tune", large({"--precision", "nvfp4"})), 3,
               AllOf(HasSubstr("precision is nvfp4"), HasSubstr("lacks")));
  expect_error(run("tune", large({"--stack", "native", "--cp", "8"})), 3,
               AllOf(HasSubstr("cp is 8"), HasSubstr("native")));
}

// What keeps a model of 7B parameters off one card of 80 GB is the fp32 master, 4 bytes a
// parameter.
TEST(Tune, PutsSevenBillionParametersOnOneCardByMasterWeightsInBf16) {
  const Words one = {"--model",       "qwen2.5-7b", "--cluster", "dgx-h100", "--gpus",       "1",
                     "--seq-len",     "1024",       "--stack",   "native",   "--grad-accum", "8",
                     "--param-dtype", "bf16"};
  const Words narrow = {"--reduce-dtype", "bf16", "--moment-dtype", "bf16"};
  const json refused = tuned(joined(one, narrow), 4);
  EXPECT_TRUE(
      std::any_of(refused.at("ways").begin(), refused.at("ways").end(),
                  [](const json& way) { return way.at("flags") == "--master-dtype bf16"; }));
  const json advised = tuned(joined(joined(one, narrow), {"--master-dtype", "bf16"}));
  EXPECT_EQ(advised.at("best").at("plan").at("master_dtype"), "bf16");
  EXPECT_TRUE(advised.at("best").at("prediction").at("memory").at("fits").get<bool>());
  // Where nothing is given, all that is needed is named at once, or may be chosen.
  EXPECT_THAT(tuned(one, 4).at("nearest_feasible").at("flags").get<std::string>(),
              AllOf(HasSubstr("--master-dtype bf16"), HasSubstr("--moment-dtype bf16")));
  const json chosen = tuned(joined(one, {"--allow", "bf16-reduce,bf16-master,bf16-moments"}));
  EXPECT_EQ(chosen.at("best").at("plan").at("master_dtype"), "bf16");
  EXPECT_THAT(run("tune", joined(one, {"--allow", "bf16-reduce,bf16-master,bf16-moments"})).out,
              HasSubstr("bf16 master weights"));
}

TEST(Tune, SaysWhatMakesNoSense) {
  const auto refused = [](const Words& flags) { return run("tune", flags); };
  expect_error(refused(job({"--objective", "speed"})), 3,
               AllOf(HasSubstr("--objective is 'speed'"), HasSubstr("time, tokens-per-dollar")));
  expect_error(refused(job({"--headroom", "120%"})), 3, HasSubstr("--headroom is '120%'"));
  expect_error(refused(job({"--allow", "fp7"})), 3,
               AllOf(HasSubstr("--allow is 'fp7'"), HasSubstr("adamw-8bit, software")));
  expect_error(refused(job({"--allow", "bf16-moments", "--moment-dtype", "fp32"})), 3,
               HasSubstr("--moment-dtype is fp32; leave one of them out"));
  expect_error(refused(job({"--allow", "bf16-master", "--master-dtype", "fp32"})), 3,
               HasSubstr("--master-dtype is fp32; leave one of them out"));
  expect_error(refused(job({"--micro-batch", "3"})), 3,
               AllOf(HasSubstr("--micro-batch is 3"), HasSubstr("divisor of the 4 sequences")));
  expect_error(refused(job({"--ckpt-layers", "5", "--recompute", "none"})), 3,
               HasSubstr("--recompute is none"));
  expect_error(refused(job({"--strategy", "fsdp2", "--shard-group", "4"})), 3,
               HasSubstr("shard_group is 4"));
  expect_error(refused({"--model", "llama-3-8b", "--cluster", "dgx-h100", "--global-batch", "100",
                        "--stack", "hf-eager"}),
               3, AllOf(HasSubstr("--global-batch is 100"), HasSubstr("96 or 104")));
  expect_error(refused({"--cluster", "dgx-h100"}), 2, HasSubstr("--model is missing"));
  expect_error(refused(job({"--objctive", "time"})), 2, HasSubstr("did you mean '--objective'"));
}

TEST(Tune, RefusesPlanFilesThatItCannotTrust) {
  const auto refused = [](const std::string& content) {
    const std::string path = temp_path("tune_bad_plan.json");
    std::ofstream(path) << content;
    return run("tune", {"--plan", path});
  };
  expect_error(run("tune", {"--plan", temp_path("no_such_plan.json")}), 3,
               HasSubstr("no_such_plan.json"));
  expect_error(refused("{\"schema\""), 3, HasSubstr("tune_bad_plan.json"));
  expect_error(refused(R"({"schema":"shardwright.plan/2.0","plan":{}})"), 3,
               AllOf(HasSubstr("shardwright.plan/2.0"), HasSubstr("newer")));
  expect_error(refused(R"({"schema":"shardwright.plan/1.0","plan":{"strategy":"fsdp9","gpus":8}})"),
               3, HasSubstr("fsdp9"));
  // A folder that is not there cannot take the plan either.
  expect_error(run("tune", job({"--ckpt-layers", "all", "--recompute", "full", "--strategy",
                                "fsdp2", "--json", "--out", temp_path("no/such/folder/p.json")})),
               3, HasSubstr("no/such/folder"));
}

TEST(TuneFlags, HeadroomIsAShare) {
  EXPECT_DOUBLE_EQ(parse_headroom("5%"), 0.05);
  EXPECT_DOUBLE_EQ(parse_headroom("5 %"), 0.05);
  EXPECT_DOUBLE_EQ(parse_headroom("0.05"), 0.05);
  EXPECT_DOUBLE_EQ(parse_headroom("0"), 0);
  for (const char* text : {"", "%", "5", "-1%", "100%", "a lot", "nan", "5%%"}) {
    EXPECT_THROW(parse_headroom(text), Error) << text;
  }
}

}  // namespace
}  // namespace shardwright::cli
