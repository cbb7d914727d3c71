// SPDX-License-Identifier: Apache-2.0

#include <cmath>

#include "profiles/ledger/ledger.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

ProgramResult validate(const Words& flags) {
  return run_program(joined({SHARDWRIGHT_BINARY, "validate"}, flags));
}

/// The head and the first `rows` rows of the shipped ledger.
std::string short_ledger(const std::string& name, int rows) {
  std::ifstream in(profiles::shipped_ledger());
  std::string text, line;
  for (int i = 0; i <= rows && std::getline(in, line); ++i) text += line + "\n";
  return written(name, text);
}

TEST(Validate, ScoresChoicesAndStrangers) {
  const ProgramResult two = validate({"--ledger", short_ledger("choice.csv", 4), "--json"});
  ASSERT_EQ(two.exit_code, 0) << two.err;
  const json choice = json::parse(two.out).at("summary").at("choice");
  // YaFSDP and FSDP of one model on one cluster, twice.
  ASSERT_EQ(choice.at("groups"), 2);
  ASSERT_EQ(choice.at("by_group").size(), 2U);
  expect_has(choice, R"({"kendall_tau": 1, "regret_mean": 0, "regret_worst": 0})"_json);
  EXPECT_GT(choice.at("random_regret_mean"), 0.01);
  EXPECT_FALSE(json::parse(two.out).at("summary").contains("strangers"));

  const json all = json::parse(validate({"--json"}).out).at("summary");
  const json& strangers = all.at("strangers");
  EXPECT_EQ(strangers.at("time").at("n"), 32);
  EXPECT_EQ(strangers.at("by_source").size(), 3U);
  EXPECT_THAT(strangers.at("use").get<std::string>(), HasSubstr("never fitted"));
  EXPECT_EQ(all.at("as_strangers").at("runs"), 795);
  const ProgramResult text = validate({});
  EXPECT_THAT(text.out, HasSubstr("never fitted to"));
  EXPECT_THAT(text.out, HasSubstr("Mean rank correlation (Kendall)"));
}

TEST(Validate, PrintsTheContractsDocument) {
  const ProgramResult result = validate({"--ledger", short_ledger("four.csv", 4), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const json document = json::parse(result.out);
  EXPECT_EQ(document.at("schema"), "shardwright.validation/1.0");
  ASSERT_EQ(document.at("rows").size(), 4U);
  const json& by_gpu = document.at("summary").at("by_gpu");
  std::size_t times = 0;
  for (const auto& [gpu, scores] : by_gpu.items())
    times += scores.at("time").at("n").get<std::size_t>();
  EXPECT_EQ(times, document.at("summary").at("time").at("n").get<std::size_t>());
  const json& row = document.at("rows")[0];
  EXPECT_EQ(row.at("id"), "m001");
  EXPECT_EQ(row.at("measured_iter_time_s"), 0.81);
  EXPECT_NEAR(row.at("time_error").get<double>(),
              row.at("predicted_iter_time_s").get<double>() / 0.81 - 1, 1e-12);
  EXPECT_TRUE(row.at("measured_peak_gib").is_null());
  EXPECT_TRUE(row.at("memory_error").is_null());
  EXPECT_GT(row.at("predicted_peak_gib").get<double>(), 1);
  EXPECT_EQ(row.at("fits"), true);
  EXPECT_EQ(row.at("outcome"), "ok");
  EXPECT_TRUE(row.at("skipped").is_null());

  const json& summary = document.at("summary");
  double sum = 0;
  for (const json& each : document.at("rows")) sum += std::abs(each.at("time_error").get<double>());
  EXPECT_EQ(summary.at("time").at("n"), 4);
  EXPECT_NEAR(summary.at("time").at("mape").get<double>(), sum / 4, 1e-12);
  for (const char* key : {"median", "worst"}) EXPECT_TRUE(summary.at("time").contains(key));
  EXPECT_EQ(summary.at("memory").at("n"), 0);
  EXPECT_EQ(summary.at("outcome").at("n"), 4);
  EXPECT_TRUE(summary.at("outcome").contains("wrong"));
  EXPECT_EQ(summary.at("by_source").at("YaFSDP README").at("time").at("n"), 4);
  EXPECT_EQ(summary.at("speedup").at("n"), 2);

  ASSERT_EQ(summary.at("by_framework").size(), 1U);
  const json& framework = summary.at("by_framework")[0];
  EXPECT_EQ(framework.at("framework"), "hf-eager");
  EXPECT_EQ(framework.at("n"), 4);
  EXPECT_EQ(framework.at("mape"), summary.at("time").at("mape"));
  EXPECT_EQ(framework.at("interval"), summary.at("interval"));
  EXPECT_EQ(framework.at("source_left_out").at("n"), 4);
  EXPECT_NE(framework.at("source_left_out").at("mape"), framework.at("mape"));
  ASSERT_EQ(framework.at("years").size(), 1U);
  EXPECT_TRUE(framework.at("years")[0].at("year").is_null());
}

TEST(Validate, KnowsNothingOfRunsLeftOutByOverriddenValues) {
  const json framework = document_of(validate({"--ledger", short_ledger("two.csv", 2), "--json",
                                               "--set", "stack.host.step_s=0.05"}))
                             .at("summary")
                             .at("by_framework")[0];
  EXPECT_EQ(framework.at("n"), 2);
  EXPECT_EQ(framework.at("source_left_out").at("n"), 0);
}

TEST(Validate, SaysWhichSoftwareStandsForOneThatDoesNotShip) {
  std::ifstream in(profiles::shipped_ledger().parent_path() / "parallel.csv");
  std::string text, line;
  std::getline(in, text);
  text += "\n";
  while (std::getline(in, line)) {
    if (line.starts_with("p1149,") || line.starts_with("p1148,")) text += line + "\n";
  }
  const std::string ledger = written("two.csv", text);
  const json rows = json::parse(validate({"--ledger", ledger, "--json"}).out).at("rows");
  ASSERT_EQ(rows.size(), 2U);
  for (const json& row : rows) EXPECT_EQ(row.at("stack_called"), "megatron-lm") << row.at("id");
  EXPECT_THAT(validate({"--ledger", ledger}).out, HasSubstr("in 2 runs: megatron-lm as"));
  const json own = json::parse(validate({"--ledger", short_ledger("one.csv", 1), "--json"}).out);
  EXPECT_TRUE(own.at("rows").at(0).at("stack_called").is_null());
}

TEST(Validate, PredictsTheShippedLedgerWithoutSkipping) {
  const json document = document_of(validate({"--json"}));
  EXPECT_EQ(document.at("rows").size(), 209U);
  int suspect = 0;
  for (const json& row : document.at("rows")) {
    EXPECT_THAT(row.at("seen").get<std::string>(),
                ::testing::AnyOf("cell", "stack_gpu", "source_only", "nothing"));
    suspect += !row.at("suspect").is_null();
  }
  EXPECT_EQ(suspect, 2);
  EXPECT_EQ(document.at("summary").at("suspect").at("n"), 2);
  EXPECT_EQ(document.at("summary").at("time").at("n"), 202);
  EXPECT_FALSE(document.at("summary").at("constants_of_one_source").empty());
  EXPECT_EQ(document.at("summary").at("skipped"), 0);
  EXPECT_EQ(document.at("summary").at("speedup").at("n"), 16);
  EXPECT_EQ(document.at("summary").at("layer_periods").size(), 2U);
}

TEST(Validate, ScoresKernelTables) {
  const std::string gemm = written("gemm.csv",
                                   "gpu,m,n,k,time_us\na100-80g,4096,4096,4096,600\n"
                                   "h100-80g,4096,4096,4096,250\n");
  const std::string collectives = written("collectives.csv",
                                          "gpu,gpus,nodes,collective,total_bytes,time_us\n"
                                          "a100-80g,8,1,all_gather,67108864,400\n");
  const std::string ledger = short_ledger("one.csv", 1);
  const json summary = document_of(validate({"--ledger", ledger, "--gemm", gemm, "--collectives",
                                             collectives, "--json"}))
                           .at("summary");
  EXPECT_EQ(summary.at("gemm").at("n"), 2);
  EXPECT_EQ(summary.at("gemm").at("by_gpu").at("h100-80g").at("n"), 1);
  EXPECT_GT(summary.at("gemm").at("mape").get<double>(), 0);
  EXPECT_TRUE(summary.at("gemm").contains("p90"));
  EXPECT_EQ(summary.at("collectives").at("n"), 1);

  const ProgramResult text =
      validate({"--ledger", ledger, "--gemm", gemm, "--collectives", collectives});
  EXPECT_THAT(text.out, HasSubstr("GEMMs"));
  EXPECT_THAT(text.out, HasSubstr("Collectives"));
}

TEST(Validate, PrintsEveryRowOnlyWhenAsked) {
  const std::string ledger = short_ledger("two.csv", 2);
  EXPECT_THAT(validate({"--ledger", ledger, "--rows"}).out, HasSubstr("m002"));
  const std::string brief = validate({"--ledger", ledger}).out;
  EXPECT_THAT(brief, ::testing::Not(HasSubstr("m002")));
  EXPECT_THAT(brief, HasSubstr("YaFSDP README"));
  EXPECT_THAT(brief, HasSubstr("One layer of backward"));
}

TEST(Validate, CountsSkippedRows) {
  std::ifstream in(short_ledger("skip_source.csv", 1));
  std::string text(std::istreambuf_iterator<char>(in), {});
  const std::size_t at = text.find("a100-80g,64,8");
  ASSERT_NE(at, text.npos);
  text.replace(at, 13, "a100-80g,60,8");
  const std::string ledger = written("skip.csv", text);
  const json document = json::parse(validate({"--ledger", ledger, "--json"}).out);
  EXPECT_THAT(document.at("rows")[0].at("skipped").get<std::string>(), HasSubstr("gpus is 60"));
  EXPECT_TRUE(document.at("rows")[0].at("predicted_iter_time_s").is_null());
  EXPECT_EQ(document.at("summary").at("skipped"), 1);
  EXPECT_THAT(validate({"--ledger", ledger}).out, HasSubstr("Skipped 1: gpus is 60"));
}

TEST(Validate, RefusesBadFilesInOneSentence) {
  expect_error(validate({"--ledger", "/nowhere.csv"}), 3, "/nowhere.csv");
  const std::string no_column = written("columns.csv", "id,source\na,b\n");
  expect_error(validate({"--ledger", no_column}), 3, "there is no column \"model\"");
  expect_error(validate({"--ledger", written("empty.csv", "")}), 3, "is empty");
  const std::string bad_gemm = written("bad_gemm.csv", "gpu,m,n,k,time_us\nx,1,1,1,1\n");
  expect_error(validate({"--gemm", bad_gemm}), 3, "x");
  expect_error(validate({"--set", "cluster.nope=1"}), 3, "cluster.nope");
  expect_error(validate({"--set", "nonsense"}), 2, "KEY=VALUE");
  expect_error(validate({"--bogus"}), 2, "--bogus");
}

/// The head and the rows of these trainings, without those that follow.
std::string some_trainings(const std::string& name, const Words& ids) {
  std::ifstream in(profiles::data_dir() / "published" / "whole_runs.csv");
  std::string text, line;
  std::getline(in, text);
  text += "\n";
  while (std::getline(in, line)) {
    for (const std::string& id : ids) {
      if (line.starts_with(id + ",")) text += line + "\n";
    }
  }
  return written(name, text);
}

/// A results file with one run of a plan of tune, measured as `step_s`, and one that was skipped.
std::string gpu_results(const std::string& name, double step_s, const json& profile) {
  const std::string plan = (temp_folder() / (name + ".plan")).string();
  const ProgramResult tuned = run_program({SHARDWRIGHT_BINARY, "tune", "--model", "llama-3.2-1b",
                                           "--cluster", "dgx-h100", "--gpus", "1", "--seq-len",
                                           "4096", "--stack", "native", "--json", "--out", plan});
  EXPECT_EQ(tuned.exit_code, 0) << tuned.err;
  json run = {{"model", "llama-3.2-1b"},
              {"gpus", 1},
              {"step_s", step_s},
              {"peak_bytes", std::int64_t{1} << 34},
              {"attention", {{"kernel", "cudnn"}, {"why", "fastest"}}},
              {"predicted_step_s", 2 * step_s}};
  run["plan_document"] = json::parse(std::ifstream(plan));
  json file = {
      {"schema", "shardwright.gpu_results/1.0"},
      {"when", "2026-11-22"},
      {"machine", {{"gpus", {{{"name", "NVIDIA H100 80GB HBM3"}}}}}},
      {"parts",
       {{"models",
         {{"cluster", "dgx-h100"},
          {"runs",
           {run, {{"model", "llama-3.1-8b"}, {"gpus", 1}, {"skipped", "needs 109.4 GiB"}}}}}}}}};
  if (!profile.is_null()) file["parts"]["measure"] = {{"profile_document", profile}};
  return written(name, file.dump());
}

TEST(Validate, PredictsAnewWhatWasTimedOnAGpu) {
  const std::string ledger = short_ledger("few.csv", 1);
  const json slower = {
      {"schema", "shardwright.cluster/1.0"}, {"id", "mine"}, {"base", "dgx-a100-80g"}};
  const json told = document_of(validate({"--ledger", ledger, "--json", "--gpu-results",
                                          gpu_results("gpu.json", 0.5, slower)}))["gpu_results"];
  EXPECT_EQ(told["gpu"], "NVIDIA H100 80GB HBM3");
  ASSERT_EQ(told["runs"].size(), 1u);
  const json& run = told["runs"][0];
  const ProgramResult predicted =
      run_program({SHARDWRIGHT_BINARY, "predict", "--json", "--plan", temp_path("gpu.json.plan")});
  const double step_s = json::parse(predicted.out)["iteration_time_s"];
  EXPECT_EQ(run["predicted_step_s"], step_s);
  EXPECT_DOUBLE_EQ(run["error"], step_s / 0.5 - 1);
  EXPECT_EQ(run["predicted_then_step_s"], 1.0);
  EXPECT_GT(run["predicted_after_measure_step_s"], 1.2 * step_s);
  EXPECT_DOUBLE_EQ(told["time"]["worst"], std::abs(step_s / 0.5 - 1));
  EXPECT_EQ(told["skipped"][0], "llama-3.1-8b on 1: needs 109.4 GiB");
  const ProgramResult text =
      validate({"--ledger", ledger, "--gpu-results", gpu_results("gpu.json", 0.5, nullptr)});
  EXPECT_THAT(text.out, HasSubstr("Runs on NVIDIA H100 80GB HBM3, 2026-11-22"));
  EXPECT_THAT(text.out, HasSubstr("not run: llama-3.1-8b on 1: needs 109.4 GiB"));
}

TEST(Validate, RefusesAResultsFileOfAnotherKind) {
  expect_error(validate({"--gpu-results", written("no.json", R"({"schema": "other/1.0"})")}), 3,
               "schema is \"other/1.0\", expected one of shardwright.gpu_results/1.0");
  expect_error(validate({"--gpu-results", gpu_results("bad.json", -1, nullptr)}), 3,
               "parts.models.runs[0].step_s");
}

TEST(Validate, ScoresWholeTrainings) {
  const std::string file =
      some_trainings("trainings.csv", {"mpt-7b", "deepseek-v2", "trinity-large"});
  const json document = document_of(
      validate({"--ledger", short_ledger("one.csv", 1), "--whole-runs", file, "--json"}));
  ASSERT_EQ(document.at("whole_runs").size(), 3U);
  for (const json& row : document.at("whole_runs")) {
    EXPECT_TRUE(row.at("skipped").is_null()) << row;
    EXPECT_LT(row.at("interval_gpu_hours")[0].get<double>(), row.at("predicted_gpu_hours"));
    EXPECT_GT(row.at("interval_gpu_hours")[1].get<double>(), row.at("predicted_gpu_hours"));
    EXPECT_GT(row.at("predicted_gpu_hours").get<double>(), row.at("ideal_gpu_hours"));
  }
  const json& mpt = document.at("whole_runs")[0];
  EXPECT_EQ(mpt.at("published_gpu_hours"), 100320);
  EXPECT_EQ(mpt.at("assumed").at("stack"), "mpt-eager");
  EXPECT_EQ(mpt.at("assumed").at("plan").at("gpus"), 440);
  const json& model_parallel = document.at("whole_runs")[1].at("assumed");
  EXPECT_EQ(model_parallel.at("stack"), "megatron-core");
  EXPECT_EQ(model_parallel.at("plan").at("pp"), 16);
  const json& analytic = document.at("whole_runs")[2].at("assumed");
  EXPECT_TRUE(analytic.at("plan").is_null());
  EXPECT_FALSE(analytic.at("notes").empty());
  const json& summary = document.at("summary").at("whole_runs");
  EXPECT_EQ(summary.at("n"), 2);  // the third is of tier C
  EXPECT_GT(summary.at("median_width").get<double>(), 1);
  EXPECT_LE(summary.at("median_width").get<double>(), 3);

  const ProgramResult text =
      validate({"--ledger", short_ledger("one.csv", 1), "--whole-runs", file});
  EXPECT_THAT(text.out, HasSubstr("published GPU hours, ideal steps"));
  EXPECT_THAT(text.out, HasSubstr("trainings of tiers A and B"));
}

TEST(Validate, AMistakeInTheTrainingsNamesFileLineAndColumn) {
  expect_error(validate({"--whole-runs", written("bad-runs.csv", "id,family\na,b\n")}), 3,
               "bad-runs.csv");
  expect_error(validate({"--whole-runs", "no_such_runs.csv"}), 3, "no_such_runs.csv");
}

}  // namespace
}  // namespace shardwright::cli
