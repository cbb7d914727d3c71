// SPDX-License-Identifier: Apache-2.0
// Guards `calibrate` as a user meets it: a log becomes a profile that predict takes, --check
// notices a machine that has changed, and what cannot be used is said in one sentence.

#include <cmath>
#include <cstdio>

#include "cli/text.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

std::string path_of(const std::string& name) {
  return (temp_folder() / name).string();
}

/// A log of all_gather_perf on eight GPUs whose large messages run at `bus_gb_s`.
std::string nccl_log(const std::string& name, double bus_gb_s) {
  const std::string path = path_of(name);
  std::ofstream log(path);
  log << "# Collective test starting: all_gather_perf\n"
         "# nThread 1 nGpus 8 minBytes 1024 maxBytes 1073741824 step: 4(factor)\n"
         "# Using devices\n";
  for (int rank = 0; rank < 8; ++rank) {
    log << "#  Rank  " << rank << " Group  0 Pid   1000 on     node0 device  " << rank << " [0x0"
        << rank << "] NVIDIA H100 80GB HBM3\n";
  }
  log << "#       size         count      type   redop    root     time   algbw   busbw #wrong "
         "    time   algbw   busbw #wrong\n"
         "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)        "
         "    (us)  (GB/s)  (GB/s)\n";
  for (int power = 10; power <= 30; ++power) {
    const double size = std::ldexp(1.0, power);
    const double on_wire = size * 7 / 8;
    const double us = 10.5 + on_wire / (bus_gb_s * 1e3) + 5.5e-3 * std::sqrt(on_wire);
    const double rate = size / us / 1e3;
    char line[256];
    std::snprintf(line, sizeof line,
                  "%12.0f %13.0f      half    none      -1 %8.2f %7.2f %7.2f      0 %8.2f %7.2f "
                  "%7.2f      0\n",
                  size, size / 16, us, rate, rate * 7 / 8, us * 1.01, rate / 1.01,
                  rate / 1.01 * 7 / 8);
    log << line;
  }
  return path;
}

TEST(Calibrate, ALogBecomesAProfileThatPredictTakes) {
  const std::string log = nccl_log("all_gather.txt", 200);
  const std::string out = path_of("mine.json");
  const json document = document_of(shardwright(
      {"calibrate", "--nccl-tests", log, "--base", "dgx-h100", "--out", out, "--json"}));
  EXPECT_EQ(document.at("schema"), "shardwright.calibration/1.0");
  bool bandwidth = false;
  for (const json& value : not_empty(document.at("values"))) {
    if (value.at("path") == "cost.collectives.simple.bytes_per_s") {
      bandwidth = value.at("determined").get<bool>();
      EXPECT_LT(value.at("after").get<double>(), 0.8 * value.at("before").get<double>());
    }
    // The log shows no products.
    if (value.at("group") == "products") {
      EXPECT_EQ(value.at("after"), value.at("before"));
    }
  }
  EXPECT_TRUE(bandwidth);
  ASSERT_EQ(document.at("groups").size(), 1u);
  EXPECT_LT(document.at("groups")[0].at("held_out").at("mape").get<double>(), 0.09);

  const auto predicted = [&](const std::string& cluster) {
    const ProgramResult prediction = shardwright({"predict", "--model", "llama-3-8b", "--cluster",
                                                  cluster, "--strategy", "fsdp2", "--json"});
    EXPECT_EQ(prediction.exit_code, 0) << prediction.err;
    return json::parse(prediction.out).at("iteration_time_s").get<double>();
  };
  EXPECT_GT(predicted(out), predicted("dgx-h100"));
}

TEST(Calibrate, CheckNoticesAMachineThatHasChanged) {
  const std::string out = path_of("checked.json");
  ASSERT_EQ(shardwright({"calibrate", "--nccl-tests", nccl_log("then_all_gather.txt", 350),
                         "--base", "dgx-h100", "--out", out})
                .exit_code,
            0);
  const std::string log = path_of("then_all_gather.txt");
  expect_says(output_of(shardwright({"calibrate", "--trace", log, "--check", out})),
              {"still holds"});
  const ProgramResult slower = shardwright(
      {"calibrate", "--nccl-tests", nccl_log("now_all_gather.txt", 200), "--check", out});
  EXPECT_EQ(slower.exit_code, 6) << slower.out << slower.err;
  EXPECT_THAT(slower.out, HasSubstr("changed"));
}

TEST(Calibrate, MergesProfilesOfOneBase) {
  const std::string one = path_of("one.json"), two = path_of("two.json");
  for (const auto& [out, gb_s] : {std::pair{one, 300.0}, {two, 310.0}}) {
    ASSERT_EQ(shardwright({"calibrate", "--nccl-tests", nccl_log("all_gather_part.txt", gb_s),
                           "--base", "dgx-h100", "--out", out})
                  .exit_code,
              0);
  }
  const std::string both = path_of("both.json");
  const ProgramResult result =
      shardwright({"calibrate", "--merge", one, two, "--out", both, "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json merged = json::parse(std::ifstream(both));
  EXPECT_EQ(merged.at("base"), "dgx-h100");
  EXPECT_EQ(merged.at("calibration").at("sources").size(), 2u);
  const json single = json::parse(std::ifstream(one));
  EXPECT_EQ(merged.at("calibration").at("rows").size(), single.at("calibration").at("rows").size());
  EXPECT_EQ(merged.at("calibration").at("rows")[0].at("count").get<int>(),
            2 * single.at("calibration").at("rows")[0].at("count").get<int>());
}

TEST(Calibrate, FitsInAHundredColumns) {
  const ProgramResult result = shardwright(
      {"calibrate", "--nccl-tests", nccl_log("narrow_all_gather.txt", 250), "--base", "dgx-h100"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), 100) << line;
  EXPECT_THAT(result.out, HasSubstr("cost.collectives.simple.bytes_per_s"));
}

TEST(Calibrate, WrongUseIsOneSentence) {
  const std::string log = nccl_log("wrong_all_gather.txt", 250);
  const auto error = [](Words arguments, int code) {
    arguments.insert(arguments.begin(), "calibrate");
    const ProgramResult result = shardwright(arguments);
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_TRUE(result.out.empty());
    return result.err;
  };
  EXPECT_THAT(error({}, 2), HasSubstr("--trace FILE"));
  EXPECT_THAT(error({"--nccl-tests", log}, 2), HasSubstr("--base is missing"));
  EXPECT_THAT(error({"--check", "dgx-h100"}, 2), HasSubstr("--check needs"));
  EXPECT_THAT(error({"--trace", log, "--check", "dgx-h100"}, 3),
              HasSubstr("a profile that calibrate wrote"));
  EXPECT_THAT(error({"--merge", "dgx-h100"}, 3), HasSubstr("a profile that calibrate wrote"));
  EXPECT_THAT(error({"--trace", path_of("nowhere.json"), "--base", "dgx-h100"}, 3),
              HasSubstr("nowhere.json"));
  std::ofstream(path_of("newer.json")) << R"({"schema": "shardwright.cluster/2.0"})";
  EXPECT_THAT(error({"--trace", log, "--base", path_of("newer.json")}, 3),
              HasSubstr("written by a newer Shardwright"));
  EXPECT_FALSE(std::filesystem::exists(path_of("never.json")));
  error({"--trace", path_of("nowhere.json"), "--base", "dgx-h100", "--out", path_of("never.json")},
        3);
  EXPECT_FALSE(std::filesystem::exists(path_of("never.json")));
}

TEST(Calibrate, RefusesATraceOfAnotherGpuThanTheBases) {
  const std::string a100 =
      (std::filesystem::path(SHARDWRIGHT_TEST_DATA) / "traces/torch_ddp_rank0.json.gz").string();
  expect_end(shardwright({"calibrate", "--trace", a100, "--base", "dgx-h100", "--out",
                          path_of("of_another_gpu.json")}),
             3, {"recorded on NVIDIA A100-PG509-200", "expected a base of what was recorded"});
  EXPECT_FALSE(std::filesystem::exists(path_of("of_another_gpu.json")));
  EXPECT_THAT(shardwright({"calibrate", "--trace", a100, "--base", "p4d"}).err,
              ::testing::Not(HasSubstr("recorded on")));
}

std::string nccl_log_of(const std::string& gpu, const std::string& name, const std::string& rows) {
  std::string log = "# Collective test starting: all_gather_perf\n# Using devices\n";
  for (int rank = 0; rank < 8; ++rank) {
    log += "#  Rank  " + std::to_string(rank) + " Group  0 Pid   1000 on     node0 device  " +
           std::to_string(rank) + " [0x0" + std::to_string(rank) + "] " + gpu + "\n";
  }
  std::ofstream(path_of(name)) << log << rows;
  return path_of(name);
}

std::string nccl_rows(double least_us, double most_us) {
  std::string rows;
  for (int i = 20; i < 24; ++i) {
    const double us = i % 2 == 0 ? least_us : most_us;
    char line[160];
    std::snprintf(line, sizeof line, "%d %d half none -1 %.2f 1.00 0.88 0\n", 1 << i, 1 << (i - 1),
                  us);
    rows += line;
  }
  return rows;
}

TEST(Calibrate, HoldsTheNamesOfLogsAgainstTheBase) {
  const std::string rows = nccl_rows(100, 120);
  const std::string geforce = nccl_log_of("NVIDIA GeForce RTX 5090", "geforce.txt", rows);
  const auto run = [](const std::string& log, Words more) {
    more.insert(more.begin(), {"calibrate", "--nccl-tests", log, "--base", "dgx-h100"});
    return shardwright(more);
  };
  expect_end(run(geforce, {}), 3, {"recorded on NVIDIA GeForce RTX 5090", "for example"});
  EXPECT_EQ(run(geforce, {"--force"}).exit_code, 3);  // there is a base for it
  const std::string other = nccl_log_of("NVIDIA TITAN Z", "titan.txt", rows);
  EXPECT_THAT(run(other, {}).err, HasSubstr("--force for a GPU that no profile names"));
  EXPECT_EQ(run(other, {"--force"}).exit_code, 0);
  EXPECT_EQ(run(nccl_log_of("NVIDIA H100 80GB HBM3", "own.txt", rows), {}).exit_code, 0);
}

TEST(Calibrate, ReadsItsOwnResultHoweverWide) {
  const std::string log = nccl_log_of("NVIDIA H100 80GB HBM3", "wide.txt", nccl_rows(1, 900e6));
  const std::string out = path_of("wide.json");
  const ProgramResult result =
      shardwright({"calibrate", "--nccl-tests", log, "--base", "dgx-h100", "--out", out});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(shardwright({"inspect", "profile", out}).exit_code, 0);
}

}  // namespace
}  // namespace shardwright::cli
